// The kernel's poller for the Swift layer. Here, and not imported, because <sys/epoll.h> belongs to no Clang module of
// the C library: included by this module's header, it would make types as common as pthread_attr_t members of this
// module, and programs that import Coroutine would be told to import CCoroutine for them.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

_Static_assert((int)CLINUX_POLL_READABLE == EPOLLIN && (int)CLINUX_POLL_WRITABLE == EPOLLOUT, "the kernel's bits");
_Static_assert((int)CLINUX_POLL_FAILED == EPOLLERR && (int)CLINUX_POLL_HUNG_UP == EPOLLHUP, "the kernel's bits");
_Static_assert((int)CLINUX_POLL_ONCE == EPOLLONESHOT, "the kernel's bits");

bool clinux_can_make_timer(void) {
  clinux_check();
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer < 0) return false;
  close(timer);
  return true;
}

int clinux_poller(void) {
  clinux_check();
  return epoll_create1(EPOLL_CLOEXEC);
}

int clinux_poller_arm(int poller, int descriptor, uint32_t events) {
  clinux_check();
  struct epoll_event event = {.events = events, .data = {.fd = descriptor}};
  if (epoll_ctl(poller, EPOLL_CTL_MOD, descriptor, &event) == 0) return 0;
  if (errno != ENOENT) return errno;
  return epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : errno;
}

int clinux_poller_collect(int poller, clinux_poll_event *events, int most) {
  clinux_check();
  struct epoll_event taken[128];
  if (most > 128) most = 128;
  int count = epoll_wait(poller, taken, most, 0);
  for (int i = 0; i < count; i++) {
    events[i] = (clinux_poll_event){.events = taken[i].events, .descriptor = taken[i].data.fd};
  }
  return count;
}
