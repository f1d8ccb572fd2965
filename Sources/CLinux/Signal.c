// A signal as a readable descriptor. A dispatch signal source loses signals on Linux: it rearms a one-shot watch around
// a signalfd, and what comes meanwhile goes to the ignoring handler. Here the handler itself leaves the mark, which
// stays until it is read.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

static _Atomic int noticed = -1;

static void notice(int signal) {
  (void)signal;
  int kept = errno;
  uint64_t one = 1;
  ssize_t written = write(atomic_load_explicit(&noticed, memory_order_acquire), &one, sizeof one);
  (void)written;  // refused only when the counter is at its limit, and then it is readable all the same
  errno = kept;
}

int clinux_notice_signal(int signal) {
  clinux_check();
  int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) return -1;
  atomic_store_explicit(&noticed, descriptor, memory_order_release);
  // On the alternate stack where the thread has one: a coroutine's may be too small for the signal's frame.
  struct sigaction action = {.sa_handler = notice, .sa_flags = SA_RESTART | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, NULL) == 0) return descriptor;
  close(descriptor);
  return -1;
}
