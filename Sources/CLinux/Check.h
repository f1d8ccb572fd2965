// Debug builds: ends the process if a thread that holds a spin lock of the Swift layer calls a function of this module.
#ifndef CLINUX_CHECK_H
#define CLINUX_CHECK_H

#if DEBUG

#include "CCoroutineRuntime.h"

static inline void clinux_check(void) {
  if (cco_layer()->spin_locks != 0) cco_refuse_locked("spin lock", "a system call");
}

#else

static inline void clinux_check(void) {}

#endif

#endif
