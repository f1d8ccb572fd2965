// The switch: parks the running flow in one saved context and continues the flow parked in another.
//
// Why it is `static inline`: a processor predicts returns from a stack of recent calls, which a switch does not
// exchange. So every real call between the caller and the jump costs a misprediction (hazard 12). From the inline
// functions to Boost's assembly there are one jump and one tail jump. Swift inlines them in functions, but not in
// closures that are passed as C functions. Such a closure should only call a function marked @inline(never).
#ifndef CCOROUTINE_SWITCH_H
#define CCOROUTINE_SWITCH_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

/// boost::context::detail::transfer_t, two registers on both architectures.
typedef struct cco_transfer {
  void *_Nullable stack;
  void *_Nullable data;
} cco_transfer;

/// Boost's jump, by a tail call from Context.cpp.
cco_transfer cco_jump(void *_Nullable to, void *_Nullable data);

// The registers of AVX-512 that a call does not preserve.
#if defined(__AVX512F__)
#define CCO_VECTORS_CLOBBERED                                                                                        \
  "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",      \
      "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#else
#define CCO_VECTORS_CLOBBERED
#endif

/// `cco_jump` without a call instruction. The processor predicts each return from a stack of recent calls. Boost's code
/// comes back by a jump, so a call to it would leave an entry that no return takes. After every switch all returns
/// would then be predicted one frame too far down: 5 to 10 ns for each frame that returns. So the code pushes the
/// address to come back to, and jumps. A recursion that switches at every level takes 18 ns a level instead of 31.
static inline __attribute__((always_inline)) cco_transfer cco_jump_unpredicted(void *_Nullable to,
                                                                               void *_Nullable data) {
#if defined(__x86_64__)
  cco_transfer arrival;
  // The red zone of 128 bytes below the stack pointer may hold variables of the enclosing function. The stack is
  // aligned as for a call, because without optimisation `cco_jump` has a frame. %r15 keeps the stack pointer, because
  // the jump preserves callee-saved registers; %rbx would do too, but LLVM reserves it in functions with a variable
  // frame.
  __asm__ volatile(
      "movq %%rsp, %%r15\n\t"
      "leaq -128(%%rsp), %%rsp\n\t"
      "andq $-16, %%rsp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "jmp cco_jump@PLT\n"
      "1:\n\t"
      "movq %%r15, %%rsp"
      : "=a"(arrival.stack), "=d"(arrival.data), "+D"(to), "+S"(data)
      :
      : "rcx", "r8", "r9", "r10", "r11", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", CCO_VECTORS_CLOBBERED "st", "st(1)", "st(2)",
        "st(3)", "st(4)", "st(5)", "st(6)", "st(7)", "cc", "memory");
  return arrival;
#else
  return cco_jump(to, data);
#endif
}

/// `cco_switch` for the rare cases: a flow with state of its own, sanitizers, fallbacks.
void cco_switch_carefully(cco_saved_context *from, cco_saved_context *to);

/// Hazard 1: a jump that changes MXCSR stalls the pipeline for 130 ns, and after one inexact result the sticky
/// exception flags differ for ever. The first word of a saved frame is its MXCSR, which start-up verifies. If only
/// flags differ, the word gets the current ones. Control bits stay, so a coroutine keeps its rounding mode. Reading
/// MXCSR costs 1 ns on processors that stall, and 6 ns on others, which therefore do not read it (`reconciles`).
static inline __attribute__((always_inline)) void cco_reconcile_floating_point(void *stack) {
#if defined(__x86_64__)
  uint32_t current, *saved = (uint32_t *)stack;
  __asm__ volatile("stmxcsr %0" : "=m"(current));
  if (__builtin_expect(current != *saved, 0) && ((current ^ *saved) & ~UINT32_C(0x3F)) == 0) *saved = current;
#else
  (void)stack;
#endif
}

/// Whether a switch must take the careful path: always, or because the running flow has state that few have: it is
/// inside of a Task (hazard 14), of a `catch` block, or of a cleanup by an exception (hazard 15). One branch for all.
static inline __attribute__((always_inline)) bool cco_must_be_careful(const char *thread) {
  const char *state = thread + cco_facts.state_offset[1], *exceptions = thread + cco_facts.exceptions_offset;
  return (cco_facts.careful | *(const uintptr_t *)state | *(const uintptr_t *)exceptions |
          *(const uint32_t *)(exceptions + sizeof(void *))) != 0;
}

/// Parks the running flow in `from` and continues the one parked in `to`. Returns when another flow switches back to
/// `from`, perhaps on another thread. Constant time.
static inline __attribute__((always_inline)) void cco_switch(cco_saved_context *from, cco_saved_context *to) {
  char *thread = cco_thread_pointer();
  if (__builtin_expect(cco_must_be_careful(thread), 0)) {
    cco_switch_carefully(from, to);
    return;
  }
  void *_Nullable *first = (void *_Nullable *)(thread + cco_facts.exchanged_offset[0]);
  void *_Nullable *second = (void *_Nullable *)(thread + cco_facts.exchanged_offset[1]);
  from->exchanged[0] = *first;
  *first = to->exchanged[0];
  from->exchanged[1] = *second;
  *second = to->exchanged[1];
  void *stack = to->stack;
  ((cco_thread_words *)(thread + cco_facts.words_offset))->running = stack;
  to->stack = 0;
  if (cco_facts.reconciles) cco_reconcile_floating_point(stack);
  cco_transfer arrival = cco_jump_unpredicted(stack, from);
  // `from` runs again. The flow that switched here passed its saved context; only now is its stack pointer known.
  __atomic_store_n(&((cco_saved_context *)arrival.data)->stack, arrival.stack, __ATOMIC_RELEASE);
}

/// Runs a READY or SUSPENDED context until it suspends or finishes. `value` becomes the result of its `cco_suspend`; a
/// READY context has none, and the value is lost. `*answer` is the value that it gave to cco_suspend, NULL if it
/// finished.
static inline __attribute__((always_inline)) cco_status cco_resume(cco_context *context, void *_Nullable value,
                                                                   void *_Nullable *_Nonnull answer) {
  // READY and RUNNING are 1 and 2. A context that runs, or is about to start, has no saved stack pointer.
  if ((uint32_t)context->phase - 1 > 1 || context->parked.stack == NULL) return cco_refuse_resume(context);
  cco_saved_context here;
  context->caller = &here;
  context->value = value;
  cco_switch(&here, &context->parked);
  *answer = context->value;
  return CCO_OK;
}

/// Parks the running context and continues its resumer, which gets `value`. `*answer` is the value of the next resume.
static inline __attribute__((always_inline)) cco_status cco_suspend(cco_context *context, void *_Nullable value,
                                                                    void *_Nullable *_Nonnull answer) {
  char *here = (char *)__builtin_frame_address(0);
  // A frame that executes on the context's own stack belongs to its body, so the context is RUNNING.
  if (here < context->low || here >= (char *)context + sizeof(cco_context)) return cco_refuse_suspend(context);
  context->value = value;
  cco_switch(&context->parked, (cco_saved_context *)context->caller);
  *answer = context->value;
  return CCO_OK;
}

/// Hazard 1 again: a body that changed the rounding mode must not leave it to the next body on the same stack.
void cco_restore_floating_point(void);

/// The same for a thread that runs one body of the program after the other, on every architecture: its rounding mode,
/// and whether it flushes small numbers to zero.
void cco_reset_floating_point(void);

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
