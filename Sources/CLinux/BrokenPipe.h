// Calls that have no flag against SIGPIPE (splice, sendfile) are enclosed in these two. The signal is blocked
// meanwhile, and one that the call has raised for this thread is consumed.
//
// A SIGPIPE that was pending before stays pending. That is possible only if it was blocked before: otherwise it would
// have been delivered. So the usual case, in which it was not, costs two calls of the system.
#ifndef CLINUX_BROKEN_PIPE_H
#define CLINUX_BROKEN_PIPE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct broken_pipe {
  sigset_t outer;
  bool was_blocked, was_pending;
};

static inline struct broken_pipe block_broken_pipe(void) {
  struct broken_pipe state = {.was_blocked = false, .was_pending = false};
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  sigemptyset(&state.outer);
  pthread_sigmask(SIG_BLOCK, &broken, &state.outer);
  state.was_blocked = sigismember(&state.outer, SIGPIPE) == 1;
  if (state.was_blocked) {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    state.was_pending = sigismember(&pending, SIGPIPE) == 1;
  }
  return state;
}

// `result`: what the call between the two has returned, the negative error number or the bytes of `count`. A call that
// fails after a part raises the signal as well, and returns the part. If nothing was raised, the look costs one call of
// the system for a short transfer.
static inline void restore_broken_pipe(const struct broken_pipe *state, int64_t result, size_t count) {
  bool may_be_raised = result < 0 ? result == -EPIPE : (size_t)result < count;
  if (may_be_raised && !state->was_pending) {
    sigset_t broken;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    struct timespec now = {0, 0};
    while (sigtimedwait(&broken, NULL, &now) < 0 && errno == EINTR) {
    }
  }
  if (!state->was_blocked) pthread_sigmask(SIG_SETMASK, &state->outer, NULL);
}

#endif
