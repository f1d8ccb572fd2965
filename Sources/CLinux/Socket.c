// The calls of sockets that Swift cannot import: they need anonymous unions, macros, or flags of _GNU_SOURCE. All
// sockets are non-blocking and close-on-exec. A function that returns a count or a descriptor returns the negative
// error number if the kernel refuses.
#include "BrokenPipe.h"
#include "Check.h"
#include "CLinux.h"
#include "Call.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int64_t or_error(ssize_t result) { return result < 0 ? -errno : result; }

int clinux_socket(int family, bool isStream) {
  clinux_check();
  int made = socket(family, (isStream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return (int)or_error(clinux_above_standard(made));
}

int clinux_socket_pair(int ends[2]) {
  clinux_check();
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0) return -errno;
  return clinux_pair_above_standard(ends);
}

int clinux_accept(int listener, void *address, uint32_t *length) {
  clinux_check();
  int64_t made = clinux_call(SYS_accept4, listener, (long)address, (long)length, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0);
  return made < 0 ? (int)made : (int)or_error(clinux_above_standard((int)made));
}

int64_t clinux_receive(int socket, void *bytes, size_t count) {
  clinux_check();
  return clinux_call(SYS_recvfrom, socket, (long)bytes, (long)count, 0, 0, 0);
}

int64_t clinux_receive_from(int socket, void *bytes, size_t count, void *address, uint32_t *length) {
  clinux_check();
  return clinux_call(SYS_recvfrom, socket, (long)bytes, (long)count, MSG_TRUNC, (long)address, (long)length);
}

int64_t clinux_send(int socket, const void *bytes, size_t count) {
  clinux_check();
  return clinux_call(SYS_sendto, socket, (long)bytes, (long)count, MSG_NOSIGNAL, 0, 0);
}

int64_t clinux_send_to(int socket, const void *bytes, size_t count, const void *address, uint32_t length) {
  clinux_check();
  return clinux_call(SYS_sendto, socket, (long)bytes, (long)count, MSG_NOSIGNAL, (long)address, length);
}

int64_t clinux_send_pieces(int socket, const struct clinux_piece *pieces, size_t count) {
  clinux_check();
  _Static_assert(sizeof(struct clinux_piece) == sizeof(struct iovec), "the kernel's layout");
  struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};
  // Not writev, which raises SIGPIPE.
  return clinux_call(SYS_sendmsg, socket, (long)&message, MSG_NOSIGNAL, 0, 0, 0);
}

int64_t clinux_send_file(int socket, int file, int64_t offset, size_t count) {
  clinux_check();
  struct broken_pipe state = block_broken_pipe();
  off_t from = offset;
  int64_t result = or_error(sendfile(socket, file, &from, count));
  restore_broken_pipe(&state, result, count);
  return result;
}

int clinux_shutdown_write(int socket) {
  clinux_check();
  return (int)or_error(shutdown(socket, SHUT_WR));
}

int clinux_pending_error(int socket) {
  clinux_check();
  int code = 0;
  socklen_t length = sizeof code;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &length) < 0) return errno;
  return code;
}

int64_t clinux_readable_bytes(int socket) {
  clinux_check();
  int count = 0;
  return ioctl(socket, FIONREAD, &count) < 0 ? -errno : count;
}

static struct {
  int level, name;
} const options[] = {
    [CLINUX_NO_DELAY] = {IPPROTO_TCP, TCP_NODELAY},   [CLINUX_KEEP_ALIVE] = {SOL_SOCKET, SO_KEEPALIVE},
    [CLINUX_REUSE_ADDRESS] = {SOL_SOCKET, SO_REUSEADDR}, [CLINUX_REUSE_PORT] = {SOL_SOCKET, SO_REUSEPORT},
    [CLINUX_V6_ONLY] = {IPPROTO_IPV6, IPV6_V6ONLY},      [CLINUX_BROADCAST] = {SOL_SOCKET, SO_BROADCAST},
    [CLINUX_LATE_PORT] = {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
    [CLINUX_PACKET_INFO] = {IPPROTO_IP, IP_PKTINFO},
    [CLINUX_PACKET_INFO_V6] = {IPPROTO_IPV6, IPV6_RECVPKTINFO},
};

int clinux_set_option(int socket, clinux_socket_option option, bool isOn) {
  clinux_check();
  int value = isOn;
  return (int)or_error(setsockopt(socket, options[option].level, options[option].name, &value, sizeof value));
}

int clinux_get_option(int socket, clinux_socket_option option) {
  clinux_check();
  int value = 0;
  socklen_t length = sizeof value;
  int result = getsockopt(socket, options[option].level, options[option].name, &value, &length);
  return result < 0 ? -errno : value != 0;
}
