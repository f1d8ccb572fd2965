// What the kernel knows of an open socket, for reports. The library keeps nothing of it, so a socket costs nothing.
#include "Check.h"
#include "CLinux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

typedef union any_address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  struct sockaddr_un local;
  struct sockaddr_storage room;
} any_address;

// Appends an address at `end` of the text; a name in the abstract space begins with `@`.
static void write_address(const any_address *address, socklen_t length, char *end, size_t room) {
  char host[INET6_ADDRSTRLEN] = "";
  switch (address->any.sa_family) {
    case AF_INET:
      inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
      snprintf(end, room, "%s:%u", host, ntohs(address->v4.sin_port));
      break;
    case AF_INET6:
      inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
      snprintf(end, room, "[%s]:%u", host, ntohs(address->v6.sin6_port));
      break;
    case AF_UNIX: {
      size_t before = offsetof(struct sockaddr_un, sun_path);
      int bytes = length > before ? (int)(length - before) : 0;
      bool is_abstract = bytes > 0 && address->local.sun_path[0] == 0;
      snprintf(end, room, "%s%.*s", is_abstract ? "@" : "", bytes - is_abstract, address->local.sun_path + is_abstract);
      break;
    }
    default: break;
  }
}

void clinux_describe_socket(int socket, char *text, size_t size) {
  clinux_check();
  int kept = errno, type = 0;
  socklen_t length = sizeof type;
  any_address address = {.any = {.sa_family = AF_UNSPEC}};
  text[0] = 0;
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &length) == 0) {
    length = sizeof address;
    bool has_peer = getpeername(socket, &address.any, &length) == 0;
    if (!has_peer) {
      length = sizeof address;
      if (getsockname(socket, &address.any, &length) != 0) address.any.sa_family = AF_UNSPEC;
    }
    bool is_unix = address.any.sa_family == AF_UNIX;
    const char *kind = is_unix ? "unix" : type == SOCK_STREAM ? "tcp" : "udp";
    int written = snprintf(text, size, "%s %s", kind, has_peer ? "" : "at ");
    write_address(&address, length, text + written, size - (size_t)written);
  }
  errno = kept;
}

int64_t clinux_socket_idle(int socket) {
  clinux_check();
  struct tcp_info info;
  socklen_t length = sizeof info;
  int kept = errno;
  int64_t idle = -1;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state != TCP_LISTEN) {
    uint32_t sent = info.tcpi_last_data_sent, received = info.tcpi_last_data_recv;
    idle = sent < received ? sent : received;
  }
  errno = kept;
  return idle;
}
