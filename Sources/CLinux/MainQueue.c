// Serves the main queue on the main thread, while that waits for something else.
//
// Before dispatch_main(), blocks of the main queue run only where the main thread asks for them. CoreFoundation's run
// loop does so, by the two functions of libdispatch that this file uses: an eventfd, which is readable when the queue
// gets a first block, and a call that runs all blocks. That call does nothing in a block of the main queue.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

// Weak, because no public header has them: without them the queue is not served.
extern int _dispatch_get_main_queue_handle_4CF(void) __attribute__((weak));
extern void _dispatch_main_queue_callback_4CF(void *unused) __attribute__((weak));
extern const char *dispatch_queue_get_label(void *queue) __attribute__((weak));

bool clinux_is_in_main_queue(void) {
  if (dispatch_queue_get_label == NULL) return false;
  const char *label = dispatch_queue_get_label(NULL);
  return label != NULL && strcmp(label, "com.apple.main-thread") == 0;
}

bool clinux_can_serve_main_queue(void) {
  if (_dispatch_get_main_queue_handle_4CF == NULL || _dispatch_main_queue_callback_4CF == NULL) return false;
  if (!clinux_is_main_thread()) return false;
  // Dispatch opens one at its first use, and ends the process if it gets none.
  int probe = eventfd(0, EFD_CLOEXEC);
  if (probe < 0) return false;
  close(probe);
  return _dispatch_get_main_queue_handle_4CF() >= 0;
}

void clinux_run_main_queue(void) { _dispatch_main_queue_callback_4CF(NULL); }

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * (int64_t)1000000000 + time.tv_nsec;
}

bool clinux_serve_main_queue(int wake, int64_t nanoseconds) {
  clinux_check();
  int handle = _dispatch_get_main_queue_handle_4CF();
  struct pollfd watched[2] = {{wake, POLLIN, 0}, {handle, POLLIN, 0}};
  int64_t end = nanoseconds < 0 ? -1 : now() + nanoseconds;
  // Once at the beginning: another reader may have taken the wake-up of blocks that are there.
  clinux_run_main_queue();
  while (true) {
    int64_t left = end < 0 ? 0 : end - now();
    if (left < 0) left = 0;
    struct timespec time = {left / 1000000000, left % 1000000000};
    int count = ppoll(watched, 2, end < 0 ? NULL : &time, NULL);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0 && watched[0].revents != 0) return true;
    if (count > 0 && watched[1].revents != 0) {
      eventfd_t ignored;
      (void)eventfd_read(handle, &ignored);
      clinux_run_main_queue();
    }
    if (count == 0) return false;
  }
}
