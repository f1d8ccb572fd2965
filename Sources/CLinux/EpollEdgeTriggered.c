// Edge-triggered epoll for descriptors that the library owns: added once, in both directions, until they are closed.
// EpollOneShot.c serves descriptors that others own. Here, and not imported, for the reason that EpollOneShot.c gives.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert((int)CLINUX_READY_URGENT == EPOLLPRI, "the kernel's bits");
_Static_assert((int)CLINUX_READY_HALF_CLOSED == EPOLLRDHUP, "the kernel's bits");

int clinux_ready_watch(int poller, int descriptor, uint64_t key) {
  clinux_check();
  struct epoll_event event = {
      .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET,
      .data = {.u64 = key},
  };
  if (epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event) == 0) return 0;
  // Another thread has just added it, with the same key: the kernel tells files apart, not only their numbers.
  return errno == EEXIST ? 0 : errno;
}

void clinux_ready_unwatch(int poller, int descriptor) {
  clinux_check();
  struct epoll_event unused = {0};
  epoll_ctl(poller, EPOLL_CTL_DEL, descriptor, &unused);
}

int clinux_ready_wait(int poller, clinux_ready_event *events, int most, int milliseconds) {
  clinux_check();
  struct epoll_event taken[128];
  if (most > 128) most = 128;
  int count = epoll_wait(poller, taken, most, milliseconds);
  for (int i = 0; i < count; i++) {
    events[i] = (clinux_ready_event){.key = taken[i].data.u64, .events = taken[i].events};
  }
  return count;
}

int clinux_eventfd(void) {
  clinux_check();
  return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void clinux_eventfd_signal(int descriptor) {
  clinux_check();
  uint64_t one = 1;
  ssize_t written = write(descriptor, &one, sizeof one);
  (void)written;  // refused only when the counter is at its limit, and then it is readable all the same
}

void clinux_eventfd_clear(int descriptor) {
  clinux_check();
  uint64_t count;
  ssize_t taken = read(descriptor, &count, sizeof count);
  (void)taken;
}
