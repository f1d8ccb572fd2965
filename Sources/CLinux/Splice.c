// Moves bytes between sockets through a pipe, without copying them into the process (splice).
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

int clinux_pipe(int ends[2], int bytes) {
  clinux_check();
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) < 0) return -errno;
  // A system that has no room for more leaves the usual size.
  (void)fcntl(ends[1], F_SETPIPE_SZ, bytes);
  return 0;
}

int64_t clinux_splice_in(int socket, int pipe, size_t count) {
  clinux_check();
  ssize_t result = splice(socket, NULL, pipe, NULL, count, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  return result < 0 ? -errno : result;
}

// splice has no flag against SIGPIPE, as sendfile has none (clinux_send_file says how that is met).
int64_t clinux_splice_out(int pipe, int socket, size_t count) {
  clinux_check();
  sigset_t broken, pending, outer;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  sigemptyset(&pending);
  sigpending(&pending);
  int was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &broken, &outer);
  ssize_t result = splice(pipe, NULL, socket, NULL, count, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  int64_t answer = result < 0 ? -errno : result;
  if (answer == -EPIPE && !was_pending) {
    struct timespec now = {0, 0};
    while (sigtimedwait(&broken, NULL, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &outer, NULL);
  return answer;
}
