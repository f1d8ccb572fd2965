// Debug builds: ends a process that holds a lock over an operation that the lock forbids. The Swift layer counts the
// locks of each thread; SpinLock.swift says what is checked and where.
#include "CCoroutineRuntime.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void cco_refuse_locked(const char *lock, const char *operation) {
  cco_layer()->spin_locks = cco_layer()->thread_locks = 0;
  cco_layer()->thread_mutexes = cco_layer()->thread_mutexes_below = 0;
  char line[256];
  int length = snprintf(line, sizeof line, "Coroutine: %s while the thread holds a %s; do it outside of the lock\n",
                        operation, lock);
  if (write(STDERR_FILENO, line, (size_t)length) != length) _exit(134);
  abort();
}
