// A timer as a readable descriptor (timerfd). Dispatch needs one for the timers of a process.
#include "Check.h"
#include "CLinux.h"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

bool clinux_can_make_timer(void) {
  clinux_check();
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer < 0) return false;
  close(timer);
  return true;
}
