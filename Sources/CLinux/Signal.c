// A signal as a readable descriptor. A dispatch signal source loses signals on Linux: it rearms a one-shot watch around
// a signalfd, and what comes meanwhile goes to the ignoring handler. Here the handler itself leaves the mark, which
// stays until it is read.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

// One descriptor for each signal, made once: a handler that is still running may write to it at any time.
static _Atomic int noticed[NSIG];
static struct sigaction former[NSIG];
static atomic_bool handled[NSIG];

// A forked child shares the descriptors, and only the parent reads them: it would notice a signal of the child. So in
// the child, signals have their former effect.
void clinux_release_all_signals(void) {
  for (int signal = 1; signal < NSIG; signal++) {
    if (atomic_load_explicit(&handled[signal], memory_order_relaxed)) sigaction(signal, &former[signal], NULL);
  }
}

static void notice(int signal) {
  int kept = errno;
  uint64_t one = 1;
  // One more than the descriptor, so that 0 means none.
  ssize_t written = write(atomic_load_explicit(&noticed[signal], memory_order_acquire) - 1, &one, sizeof one);
  (void)written;  // refused only when the counter is at its limit, and then it is readable all the same
  errno = kept;
}

int clinux_notice_signal(int signal) {
  clinux_check();
  if (signal <= 0 || signal >= NSIG) {
    errno = EINVAL;
    return -1;
  }
  int descriptor = atomic_load_explicit(&noticed[signal], memory_order_acquire) - 1;
  if (descriptor < 0) {
    descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (descriptor < 0) return -1;
    atomic_store_explicit(&noticed[signal], descriptor + 1, memory_order_release);
  }
  // On the alternate stack where the thread has one: a coroutine's may be too small for the signal's frame.
  struct sigaction action = {.sa_handler = notice, .sa_flags = SA_RESTART | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, &former[signal]) != 0) return -1;
  atomic_store_explicit(&handled[signal], true, memory_order_relaxed);
  return descriptor;
}

void clinux_release_signal(int signal) {
  atomic_store_explicit(&handled[signal], false, memory_order_relaxed);
  sigaction(signal, &former[signal], NULL);
}
