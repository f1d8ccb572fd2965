// Moves bytes between sockets through a pipe, without copying them into the process (splice).
#include "BrokenPipe.h"
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

int clinux_pipe(int ends[2], int bytes) {
  clinux_check();
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) < 0) return -errno;
  int code = clinux_pair_above_standard(ends);
  if (code < 0) return code;
  // A system that has no room for more leaves the usual size.
  (void)fcntl(ends[1], F_SETPIPE_SZ, bytes);
  return 0;
}

int64_t clinux_write_error(const void *bytes, size_t count) {
  clinux_check();
  struct broken_pipe state = block_broken_pipe();
  ssize_t result = write(STDERR_FILENO, bytes, count);
  int64_t answer = result < 0 ? -errno : result;
  restore_broken_pipe(&state, answer, count);
  return answer;
}

bool clinux_error_has_room(int milliseconds) {
  struct pollfd error = {STDERR_FILENO, POLLOUT, 0};
  return poll(&error, 1, milliseconds) == 1 && error.revents == POLLOUT;
}

int64_t clinux_splice_in(int socket, int pipe, size_t count) {
  clinux_check();
  ssize_t result = splice(socket, NULL, pipe, NULL, count, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  return result < 0 ? -errno : result;
}

int64_t clinux_splice_out(int pipe, int socket, size_t count) {
  clinux_check();
  struct broken_pipe state = block_broken_pipe();
  ssize_t result = splice(pipe, NULL, socket, NULL, count, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  int64_t answer = result < 0 ? -errno : result;
  restore_broken_pipe(&state, answer, count);
  return answer;
}
