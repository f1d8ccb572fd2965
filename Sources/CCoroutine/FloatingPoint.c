// Hazard 1: the floating-point trap of stock fcontext. The cure itself is `cco_reconcile_floating_point`, in the header
// because every switch runs it; here is the proof at start-up that the saved frame begins with MXCSR.
//
// The probe parks a coroutine that has set a rounding mode of its own and looks at the first word of its saved frame:
// with two different modes the word must be exactly the MXCSR that was set. On other architectures the floating-point
// status is not part of the saved frame and nothing stalls.
//
// Not every x86-64 processor stalls: an Intel Xeon goes from 9 to 142 ns a round trip, an AMD EPYC (Zen 4) stays at 11,
// but there reading MXCSR takes 6 ns a switch. So start-up also measures: the same round trip with equal and with
// different flags, the best of several batches each. The stall is two times 65 ns; whoever shows less than STALL more
// does without.
#include "Internal.h"

#include <time.h>

static const char *description = "not started";
const char *cco_floating_point_description(void) { return description; }

#if defined(__x86_64__)

#include <pmmintrin.h>
#include <xmmintrin.h>

// What a thread's MXCSR is before anybody changed it: all exceptions masked, round to nearest.
// The x87 unit has a control word of its own: extended precision, masked, to nearest. fesetround changes both.
enum { DEFAULT_MXCSR = 0x1F80, FLAGS = 0x3F, DEFAULT_X87 = 0x37F };

void cco_restore_floating_point(void) {
  unsigned current = _mm_getcsr();
  if (((current ^ DEFAULT_MXCSR) & ~(unsigned)FLAGS) != 0) _mm_setcsr(DEFAULT_MXCSR | (current & FLAGS));
  unsigned short x87;
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  if (x87 != DEFAULT_X87) {
    x87 = DEFAULT_X87;
    __asm__ volatile("fldcw %0" : : "m"(x87));
  }
}

static void park_with_mode(cco_context *context, void *argument) {
  (void)context;
  unsigned before = _mm_getcsr();
  _mm_setcsr(*(const unsigned *)argument);
  void *ignored = NULL;
  (void)cco_suspend(context, NULL, &ignored);
  _mm_setcsr(before);
}

static bool frame_begins_with(unsigned mode) {
  cco_context *probe = NULL;
  void *ignored = NULL;
  if (cco_create(1, park_with_mode, &mode, &probe) != CCO_OK) return false;
  (void)cco_resume(probe, NULL, &ignored);
  bool found = *(const unsigned *)cco_sanitizer_saved_stack(probe->parked.stack) == mode;
  (void)cco_resume(probe, NULL, &ignored);
  (void)cco_destroy(probe);
  return found;
}

enum { STALL = 40, BATCHES = 8, TRIPS = 64 };

static long nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void ping(cco_context *context, void *argument) {
  (void)argument;
  void *stop = NULL;
  while (stop == NULL) (void)cco_suspend(context, NULL, &stop);
}

// Runs while `reconciles` is still zero, so the two sides' flags stay as different as they are set here.
static long best_round_trip(unsigned flags) {
  cco_context *probe = NULL;
  void *ignored = NULL;
  unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~(unsigned)FLAGS);
  if (cco_create(1, ping, NULL, &probe) != CCO_OK) return 0;
  (void)cco_resume(probe, NULL, &ignored);
  _mm_setcsr((before & ~(unsigned)FLAGS) | flags);
  long best = INT32_MAX;
  for (int batch = 0; batch < BATCHES; batch++) {
    long start = nanoseconds();
    for (int trip = 0; trip < TRIPS; trip++) (void)cco_resume(probe, NULL, &ignored);
    long taken = nanoseconds() - start;
    if (taken < best) best = taken;
  }
  (void)cco_resume(probe, probe, &ignored);
  (void)cco_destroy(probe);
  _mm_setcsr(before);
  return best / TRIPS;
}

void cco_floating_point_start(void) {
  if (cco_is_disabled(CCO_CURE_FLOATING_POINT)) {
    description = "off: disabled by a test";
  } else if (best_round_trip(0x20) - best_round_trip(0) < STALL) {
    description = "not needed: this processor was measured at start and does not stall on different sticky flags";
    cco_mark_active(CCO_CURE_FLOATING_POINT, true);
  } else if (frame_begins_with(0x1F80 | _MM_ROUND_UP) && frame_begins_with(0x1F80 | _MM_ROUND_DOWN | 0x20)) {
    cco_facts.reconciles = 1;
    description = "on: the saved frame begins with MXCSR, differences of flags are reconciled before each jump";
    cco_mark_active(CCO_CURE_FLOATING_POINT, true);
  } else {
    description = "off: this Boost saves MXCSR elsewhere; a switch between different sticky flags takes about 140 ns";
  }
}

#else

// Boost's frame on aarch64 holds d8 to d15 but not FPCR: the rounding mode is the thread's, over switches as over
// calls, and not this core's to reset.
void cco_restore_floating_point(void) {}

void cco_floating_point_start(void) {
  description = "not needed: this architecture does not stall on a changed floating-point status";
  cco_mark_active(CCO_CURE_FLOATING_POINT, true);
}

#endif
