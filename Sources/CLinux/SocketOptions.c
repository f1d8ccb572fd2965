// Options of sockets by number and value, memberships of multicast groups, and what a descriptor of unknown origin is.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

static struct {
  int level, name;
} const values[] = {
    [CLINUX_RECEIVE_BUFFER] = {SOL_SOCKET, SO_RCVBUF},       [CLINUX_SEND_BUFFER] = {SOL_SOCKET, SO_SNDBUF},
    [CLINUX_USER_TIMEOUT] = {IPPROTO_TCP, TCP_USER_TIMEOUT}, [CLINUX_KEEP_IDLE] = {IPPROTO_TCP, TCP_KEEPIDLE},
    [CLINUX_KEEP_INTERVAL] = {IPPROTO_TCP, TCP_KEEPINTVL},   [CLINUX_TYPE] = {SOL_SOCKET, SO_TYPE},
    [CLINUX_DOMAIN] = {SOL_SOCKET, SO_DOMAIN},               [CLINUX_IS_LISTENING] = {SOL_SOCKET, SO_ACCEPTCONN},
};

int clinux_set_value(int socket, clinux_socket_value option, int value) {
  clinux_check();
  int result = setsockopt(socket, values[option].level, values[option].name, &value, sizeof value);
  return result < 0 ? -errno : 0;
}

int clinux_get_value(int socket, clinux_socket_value option) {
  clinux_check();
  int value = 0;
  socklen_t length = sizeof value;
  int result = getsockopt(socket, values[option].level, values[option].name, &value, &length);
  return result < 0 ? -errno : value;
}

int clinux_join_group(int socket, const void *address, uint32_t length, uint32_t interface) {
  clinux_check();
  struct group_req request = {.gr_interface = interface};
  if (length > sizeof request.gr_group) return -EINVAL;
  memcpy(&request.gr_group, address, length);
  int level = request.gr_group.ss_family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
  return setsockopt(socket, level, MCAST_JOIN_GROUP, &request, sizeof request) < 0 ? -errno : 0;
}

int clinux_make_own(int descriptor) {
  clinux_check();
  int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) return -errno;
  if (!(flags & O_NONBLOCK) && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0) return -errno;
  return fcntl(descriptor, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
}

int64_t clinux_silence(int socket) {
  clinux_check();
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) < 0) return -errno;
  return info.tcpi_last_data_recv;
}
