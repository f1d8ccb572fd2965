// A fence on every processor that runs this process: what lets a lock's usual owner do without atomic exchanges
// (SpinLock.swift). The kernel's membarrier sends an interrupt to those that run one of our threads; a thread that does
// not run has had its fence when it was switched out.
//
// Registered before main, because then the process has one thread and it costs nothing; later it would cost a grace
// period of the kernel, milliseconds. A child of fork inherits the registration.
#include "Internal.h"

#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Written before main, read only afterwards.
static bool can_fence;

static bool membarrier_does(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

__attribute__((constructor)) static void register_fence(void) {
  const char *setting = getenv("COROUTINE_LOCK_BIAS");
  bool is_off = setting != NULL && strcmp(setting, "0") == 0;
  can_fence = !is_off && membarrier_does(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

bool cco_can_fence_all(void) { return can_fence; }

void cco_fence_all(void) {
  if (membarrier_does(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  if (membarrier_does(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
      membarrier_does(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    return;
  }
  // To go on would let two threads into one critical section.
  fprintf(stderr, "Coroutine: the kernel refuses membarrier, which it allowed at start. Allow the system call in the "
                  "process's filter, or start with COROUTINE_LOCK_BIAS=0.\n");
  abort();
}
