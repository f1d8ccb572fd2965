// A futex: a thread sleeps until another thread changes a word and wakes it. The Swift layer uses it for its workers,
// and for its locks over system calls, allocations and loops.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool clinux_futex_wait(const uint32_t *word, uint32_t expected, uint64_t nanoseconds) {
  clinux_check();
  struct timespec most = {.tv_sec = (time_t)(nanoseconds / 1000000000), .tv_nsec = (long)(nanoseconds % 1000000000)};
  int kept = errno;
  long result = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nanoseconds ? &most : NULL, NULL, 0);
  bool is_late = result < 0 && errno == ETIMEDOUT;
  errno = kept;
  return !is_late;
}

void clinux_futex_wake(const uint32_t *word) {
  clinux_check();
  int kept = errno;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = kept;
}
