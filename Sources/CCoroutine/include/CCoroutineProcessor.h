// Processor hints: prefetching and return prediction. They change speed, never results.
#ifndef CCOROUTINE_PROCESSOR_H
#define CCOROUTINE_PROCESSOR_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Prefetches what a new coroutine touches first: its control block (two cache lines), and 13 lines of frames below it.
static inline __attribute__((always_inline)) void cco_prefetch(const cco_context *context) {
  const char *block = (const char *)context;
  for (int line = -13; line <= 1; line++) __builtin_prefetch(block + 64 * line, 1);
}

/// Prefetches what a switch to a parked coroutine touches first: the frames that it entered last. Reads the control
/// block; prefetch that first.
static inline __attribute__((always_inline)) void cco_prefetch_frames(const cco_context *context, int lines) {
  // Atomic, because an immediately started coroutine may still be switching out on another thread (cco_is_parked). Then
  // the prefetch is useless.
  const char *frames = (const char *)__atomic_load_n(&context->parked.stack, __ATOMIC_RELAXED);
  for (int line = 0; line < lines; line++) __builtin_prefetch(frames + 64 * line, 1);
}

/// Prefetches `count` cache lines in a row.
static inline __attribute__((always_inline)) void cco_prefetch_lines(const void *address, int count) {
  for (int line = 0; line < count; line++) __builtin_prefetch((const char *)address + 64 * line, 1);
}

/// Prefetches one cache line.
static inline __attribute__((always_inline)) void cco_prefetch_line(const void *address) {
  __builtin_prefetch(address, 1);
}

/// Reads the processor's time stamp counter, without waiting for the instructions before it.
static inline __attribute__((always_inline)) uint64_t cco_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
#error "no time stamp counter is known for this processor"
#endif
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

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
