// Processor hints: prefetching and return prediction. They change speed, never results.
#ifndef CCOROUTINE_PROCESSOR_H
#define CCOROUTINE_PROCESSOR_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

/// Prefetches what a new coroutine touches first: its control block (two cache lines), and 13 lines of frames below it.
static inline __attribute__((always_inline)) void cco_prefetch(const cco_context *context) {
  const char *block = (const char *)context;
  for (int line = -13; line <= 1; line++) __builtin_prefetch(block + 64 * line, 1);
}

/// Prefetches one cache line.
static inline __attribute__((always_inline)) void cco_prefetch_line(const void *address) {
  __builtin_prefetch(address, 1);
}

/// The address of the caller's frame.
static inline __attribute__((always_inline)) void *cco_frame(void) { return __builtin_frame_address(0); }

/// Refills the return predictor after a switch: one entry for each frame from the caller up to the context's `base`, at
/// most eight, and two for the way from there to the trampoline.
///
/// A processor predicts returns by a stack of recent calls, which a switch does not exchange. A coroutine that is
/// resumed returns through frames that it entered long ago. Each such return takes an entry that belongs to the
/// resuming flow, so all returns of that flow are mispredicted too, some twenty cycles each. This function pushes as
/// many dummy entries as there will be returns, so the entries of the resuming flow stay in place. With one too few or
/// too many, all of them are mispredicted. The frames are counted by frame pointers; code compiled without them is only
/// slower. The dummy calls skip an instruction, because processors ignore a call to the next instruction, which is a
/// way to read the instruction pointer.
static inline __attribute__((always_inline)) void cco_expect_returns(const cco_context *context) {
#if defined(__x86_64__) && !defined(__SHSTK__)
  char *frame = (char *)__builtin_frame_address(0);
  long returns = 0;
  while (frame < (char *)context->base && returns < 8) {
    char *outer = *(char **)frame;
    if (outer <= frame) break;
    frame = outer;
    returns++;
  }
  if (returns == 0) return;
  // The returns of the function at `base`, and of the entry function into the trampoline.
  returns += 2;
  void *stack;
  // The calls write below the red zone.
  __asm__ volatile(
      "movq %%rsp, %1\n\t"
      "leaq -128(%%rsp), %%rsp\n"
      "1:\tcall 2f\n\tint3\n"
      "2:\tdecq %0\n\t"
      "jnz 1b\n\t"
      "movq %1, %%rsp"
      : "+r"(returns), "=&r"(stack)
      :
      : "memory", "cc");
#else
  (void)context;
#endif
}

/// The pause instruction of a spin loop.
static inline __attribute__((always_inline)) void cco_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
