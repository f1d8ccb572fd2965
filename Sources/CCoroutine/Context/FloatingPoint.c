// Hazard 1: a jump of fcontext that changes MXCSR stalls the pipeline. The mitigation is
// `cco_reconcile_floating_point`, in CCoroutineSwitch.h because every switch runs it. This file decides whether it
// runs, and proves at start-up that the saved frame begins with MXCSR.
//
// The probe parks a coroutine that has set a rounding mode, and reads the first word of its saved frame. With two
// different modes, the word must be exactly the MXCSR that was set. Then the probe writes another mode there, as the
// mitigation writes flags, and the coroutine must continue with that mode. On other architectures the floating-point
// status is not part of the saved frame, and nothing stalls.
//
// Not every x86-64 processor stalls, so its vendor and family decide (`cco_stalls_on_flags`). On a Xeon of family 6 the
// stall makes a round trip take 140 ns instead of 10. An EPYC (Zen 4) stays at 11 ns, but reading MXCSR would cost it
// 6 ns a switch. A short measurement at start-up cannot decide, because on some processors the stall depends on the
// history of branches, and a loop that only switches does not show it.
#include "Internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char description[192] = "not started";
const char *cco_floating_point_description(void) { return description; }

bool cco_stalls_on_flags(const char *maker, uint32_t family) {
  bool amd = strcmp(maker, "AuthenticAMD") == 0 || strcmp(maker, "HygonGenuine") == 0;
  // Zen and later, Hygon's Zen included. An unknown processor reconciles: a needless reconciliation costs 1 to 6 ns, a
  // missing one 130 ns.
  return !(amd && family >= 0x17);
}

#if defined(__x86_64__)

#include <cpuid.h>
#include <xmmintrin.h>

// The MXCSR of a new thread: all exceptions masked, round to nearest. FLAGS are its sticky exception flags. The x87
// unit has a control word of its own: extended precision, masked, to nearest. fesetround changes both words.
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

void cco_reset_floating_point(void) { cco_restore_floating_point(); }

typedef struct modes {
  unsigned parked;   // the MXCSR with which the coroutine parks
  unsigned resumed;  // the MXCSR that it has when it is resumed
} modes;

static cco_saved_context *park_with_mode(cco_context *context, void *argument) {
  modes *mine = argument;
  unsigned before = _mm_getcsr();
  _mm_setcsr(mine->parked);
  void *ignored = NULL;
  (void)cco_suspend(context, NULL, &ignored);
  mine->resumed = _mm_getcsr();
  _mm_setcsr(before);
  return NULL;
}

// Whether a frame that is parked with `mode` begins with it, and a coroutine continues with the mode written there.
static bool frame_begins_with(unsigned mode, unsigned written) {
  cco_context *probe = NULL;
  void *ignored = NULL;
  modes seen = {.parked = mode};
  if (cco_create(1, park_with_mode, &seen, &probe) != CCO_OK) return false;
  (void)cco_resume(probe, NULL, &ignored);
  unsigned *word = cco_sanitizer_saved_stack(probe->parked.stack);
  bool is_there = *word == mode;
  if (is_there) *word = written;
  (void)cco_resume(probe, NULL, &ignored);
  (void)cco_destroy(probe);
  return is_there && seen.resumed == written;
}

typedef struct processor {
  char maker[13];
  uint32_t family, model;
} processor;

static processor this_processor(void) {
  processor found = {.maker = "unknown"};
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) {
    memcpy(found.maker, &ebx, 4);
    memcpy(found.maker + 4, &edx, 4);
    memcpy(found.maker + 8, &ecx, 4);
  }
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    found.family = (eax >> 8) & 0xF;
    found.model = (eax >> 4) & 0xF;
    if (found.family == 0xF) found.family += (eax >> 20) & 0xFF;
    if (found.family == 6 || found.family >= 0xF) found.model += ((eax >> 16) & 0xF) << 4;
  }
  return found;
}

void cco_floating_point_start(void) {
  processor cpu = this_processor();
  bool stalls = cco_stalls_on_flags(cpu.maker, cpu.family);
  // For measurements. Other values are ignored.
  const char *asked = getenv("COROUTINE_RECONCILE");
  bool is_forced = asked && (strcmp(asked, "0") == 0 || strcmp(asked, "1") == 0);
  const char *why = is_forced ? ", by COROUTINE_RECONCILE" : "";
  bool wanted = is_forced ? asked[0] == '1' : stalls;
  char name[48];
  snprintf(name, sizeof name, "%s family %u model %u", cpu.maker, cpu.family, cpu.model);
  if (cco_is_disabled(CCO_MITIGATION_FLOATING_POINT)) {
    snprintf(description, sizeof description, "off: disabled by a test (%s)", name);
  } else if (!wanted) {
    const char *state = stalls ? "off: a switch between different sticky flags takes about 140 ns" : "not needed";
    snprintf(description, sizeof description, "%s%s (%s)", state, why, name);
    cco_mark_active(CCO_MITIGATION_FLOATING_POINT, !stalls);
  } else if (frame_begins_with(DEFAULT_MXCSR | _MM_ROUND_UP, DEFAULT_MXCSR | _MM_ROUND_TOWARD_ZERO | 1) &&
             frame_begins_with(DEFAULT_MXCSR | _MM_ROUND_DOWN | 0x20, DEFAULT_MXCSR | _MM_ROUND_UP)) {
    cco_facts.reconciles = 1;
    snprintf(description, sizeof description, "on%s: different sticky flags are reconciled before each jump (%s)", why,
             name);
    cco_mark_active(CCO_MITIGATION_FLOATING_POINT, true);
  } else {
    snprintf(description, sizeof description,
             "off: this Boost saves MXCSR elsewhere; a switch between different sticky flags takes about 140 ns (%s)",
             name);
  }
}

#else

// Boost's frame on aarch64 holds d8 to d15 but not FPCR. So a switch keeps the thread's rounding mode, as a call does.
void cco_restore_floating_point(void) {}

void cco_reset_floating_point(void) {
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  if (control != 0) __asm__ volatile("msr fpcr, xzr");
}

void cco_floating_point_start(void) {
  snprintf(description, sizeof description, "not needed: this architecture does not stall on a changed status");
  cco_mark_active(CCO_MITIGATION_FLOATING_POINT, true);
}

#endif
