// Processor hints: prefetching and return prediction. They change speed, never results.
#ifndef CCOROUTINE_PROCESSOR_H
#define CCOROUTINE_PROCESSOR_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Has the processor fetch what a new coroutine will touch: its control block and the frames right below, one page.
static inline __attribute__((always_inline)) void cco_prefetch(const cco_context *context) {
  const char *block = (const char *)context;
  for (int line = -13; line <= 1; line++) __builtin_prefetch(block + 64 * line, 1);
}

/// Has it fetch what a switch to a parked coroutine will touch first: the frames that it entered last. Reads the
/// control block; prefetch that first.
static inline __attribute__((always_inline)) void cco_prefetch_frames(const cco_context *context, int lines) {
  // Atomic because a coroutine that was started on the spot may still be on its way out (see cco_is_parked); then this
  // fetches nothing of use.
  const char *frames = (const char *)__atomic_load_n(&context->parked.stack, __ATOMIC_RELAXED);
  for (int line = 0; line < lines; line++) __builtin_prefetch(frames + 64 * line, 1);
}

/// Has it fetch so many lines in a row.
static inline __attribute__((always_inline)) void cco_prefetch_lines(const void *address, int count) {
  for (int line = 0; line < count; line++) __builtin_prefetch((const char *)address + 64 * line, 1);
}

/// Has it fetch any cache line.
static inline __attribute__((always_inline)) void cco_prefetch_line(const void *address) {
  __builtin_prefetch(address, 1);
}

/// The caller's frame, which the one that it calls will find as its caller's.
static inline __attribute__((always_inline)) void *cco_frame(void) { return __builtin_frame_address(0); }

/// Refills the return predictor after a switch: one entry for each frame from the caller up to the context's `base`, at
/// most eight, and two for the way from there to the trampoline.
///
/// A processor predicts returns by a stack of its own, which knows nothing of switches. Where a coroutine that was
/// switched into returns through frames that it entered long ago, each return takes an entry that belongs to the one
/// who switched, and all of that one's returns are mispredicted as well, some twenty cycles each. Entries that lead
/// nowhere, exactly as many as there will be returns, keep its own in place: one too few or too many, and all are lost.
/// The frames are counted by their pointers; where code was compiled without, it is only slower. Calls to the very next
/// instruction would not do, since processors know them as a way to read the instruction pointer.
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
  // Those of the function at `base`, and of the entry function, into the trampoline.
  returns += 2;
  void *stack;
  // Below the red zone.
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

/// Tells the processor that this is a loop that waits for another processor.
static inline __attribute__((always_inline)) void cco_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
