// The floating-point status of the running thread, where it takes part in a switch; nothing elsewhere.
#ifndef CPROBE_FLOATING_POINT_FLAGS_H
#define CPROBE_FLOATING_POINT_FLAGS_H

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { CPROBE_MXCSR_CLEAN = 0x1F80, CPROBE_MXCSR_INEXACT = 0x20 };
static inline void cprobe_clear_flags(void) { _mm_setcsr(CPROBE_MXCSR_CLEAN); }
static inline void cprobe_raise_inexact(void) { _mm_setcsr(CPROBE_MXCSR_CLEAN | CPROBE_MXCSR_INEXACT); }
#else
static inline void cprobe_clear_flags(void) {}
static inline void cprobe_raise_inexact(void) {}
#endif

#endif
