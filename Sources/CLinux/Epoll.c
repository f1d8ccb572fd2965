// The kernel's poller for the Swift layer. Descriptors are added once, edge-triggered, in both directions.
//
// Why Swift does not import <sys/epoll.h>: it belongs to no Clang module of the C library. If this module's header
// included it, common types such as pthread_attr_t would become members of this module, and the compiler would tell
// programs that import Coroutine to import CLinux for them.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert((int)CLINUX_POLL_READABLE == EPOLLIN && (int)CLINUX_POLL_WRITABLE == EPOLLOUT, "the kernel's bits");
_Static_assert((int)CLINUX_POLL_FAILED == EPOLLERR && (int)CLINUX_POLL_HUNG_UP == EPOLLHUP, "the kernel's bits");
_Static_assert((int)CLINUX_READY_URGENT == EPOLLPRI, "the kernel's bits");
_Static_assert((int)CLINUX_READY_HALF_CLOSED == EPOLLRDHUP, "the kernel's bits");

int clinux_poller(void) {
  clinux_check();
  return clinux_above_standard(epoll_create1(EPOLL_CLOEXEC));
}

int clinux_ready_watch(int poller, int descriptor, uint64_t key) {
  clinux_check();
  struct epoll_event event = {
      .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET,
      .data = {.u64 = key},
  };
  if (epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event) == 0) return 0;
  if (errno != EEXIST) return errno;
  // Another thread has just added it with the same key.
  return epoll_ctl(poller, EPOLL_CTL_MOD, descriptor, &event) == 0 ? 0 : errno;
}

void clinux_ready_unwatch(int poller, int descriptor) {
  clinux_check();
  struct epoll_event unused = {0};
  epoll_ctl(poller, EPOLL_CTL_DEL, descriptor, &unused);
}

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441  // on every architecture; older headers do not name it
#endif

// Linux has epoll_pwait2 from 5.11 on. A filter of a container may refuse it, with any error or with the result 0. That
// means a timeout, so a worker would check its timers in a busy loop. So each timeout is compared with the clock, until
// there was a correct one during which the thread has slept. A thread that only waited for a processor proves nothing.
//
//   UNTRIED --a correct timeout, and the thread has slept--> PROVEN
//      |
//      +--an error, or a timeout too early--> ABSENT
typedef enum { UNTRIED, PROVEN, ABSENT } fine_timeouts;
static atomic_int has_fine_timeouts = UNTRIED;

static int64_t monotonic_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// The number of times that the calling thread has slept.
static long sleeps(void) {
  struct rusage use = {0};
  getrusage(RUSAGE_THREAD, &use);
  return use.ru_nvcsw;
}

static int wait_for_events(int poller, struct epoll_event *events, int most, int64_t nanoseconds) {
  int state = atomic_load_explicit(&has_fine_timeouts, memory_order_relaxed);
  if (nanoseconds > 0 && state != ABSENT) {
    struct timespec time = {
        .tv_sec = (time_t)(nanoseconds / 1000000000),
        .tv_nsec = (long)(nanoseconds % 1000000000),
    };
    int64_t begin = state == PROVEN ? 0 : monotonic_now();
    long slept = state == PROVEN ? 0 : sleeps();
    int count = (int)syscall(SYS_epoll_pwait2, poller, events, most, &time, NULL, 0);
    if (count > 0 || (count == 0 && state == PROVEN)) return count;
    if (count < 0 && (errno == EINTR || errno == EBADF)) return count;
    int64_t waited = count == 0 ? monotonic_now() - begin : 0;
    bool is_over = count == 0 && waited >= nanoseconds;
    if (!is_over || sleeps() != slept)
      atomic_store_explicit(&has_fine_timeouts, is_over ? PROVEN : ABSENT, memory_order_relaxed);
    if (is_over) return 0;
    nanoseconds -= waited;
  }
  int milliseconds = -1;
  if (nanoseconds >= 0) {
    // Rounded up: with a timeout of zero the caller would poll in a busy loop until its timer is due.
    int64_t whole = nanoseconds / 1000000 + (nanoseconds % 1000000 != 0);
    milliseconds = whole < INT_MAX ? (int)whole : INT_MAX;
  }
  return epoll_wait(poller, events, most, milliseconds);
}

int clinux_ready_wait(int poller, clinux_ready_event *events, int most, int64_t nanoseconds) {
  clinux_check();
  struct epoll_event taken[128];
  if (most > 128) most = 128;
  int count = wait_for_events(poller, taken, most, nanoseconds);
  for (int i = 0; i < count; i++) {
    events[i] = (clinux_ready_event){.key = taken[i].data.u64, .events = taken[i].events};
  }
  return count;
}

int clinux_eventfd(void) {
  clinux_check();
  return clinux_above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

void clinux_eventfd_signal(int descriptor) {
  clinux_check();
  int kept = errno;
  uint64_t one = 1;
  ssize_t written = write(descriptor, &one, sizeof one);
  (void)written;  // refused only after 2^64 signals
  errno = kept;
}
