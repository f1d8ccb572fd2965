// The frames of parked coroutines, read while all threads run on. Nothing is stopped, woken or locked, and a switch
// pays nothing for it: the reader finds out whether the coroutine has moved meanwhile, and drops what it has read.
//
//   reader                                             the coroutine, and the flow that resumes it
//   0 pins the slabs (Trim.c)                          a. `parked.stack` = the saved stack pointer, on leaving
//   1 has read `wait` and `since`: it is parked        b. the resumer: `parked.stack` = NULL
//   2 the address of its context                       c. the coroutine runs: its frames change
//   3 `parked.stack` (acquire); NULL: it has moved     d. it writes `wait` (a wait) or `since` (a yield); then a again
//   4 reads frames, and keeps what it has read
//   5 a barrier
//   6 `parked.stack`, `wait`, `since` and the address of its context are as in 1 to 3, or it has moved
//
// Invariants
//  1. Every read is of mapped memory. The caller holds the record. The context was the record's when 2 read it, so its
//     slab was not unmapped before 0, because a job gives up its context before the pool gets the stack; and from 0 on
//     no slab is. A stack that is trimmed reads as zeros. Every frame that is read lies between the saved stack pointer
//     and the control block of one slot, and so does that pointer.
//  2. What passes 6 are the frames of one moment. Two parks of a coroutine differ in `wait`, whose epochs never repeat,
//     or in `since`. So if 6 finds both words unchanged, the coroutine has not parked again since 1. If it had been
//     resumed and were running at 6, `parked.stack` would be NULL: b comes before c on the thread that resumes. If 4
//     has read a word that c has written, then 6 reads what b has written. On x86-64 stores become visible in order.
//     On aarch64 they need not, and a barrier in each switch would cost all switches something; so the reader lets all
//     other threads execute one, by membarrier(2), once for a batch: after it, b is visible wherever c was.
//     A coroutine that ends writes neither word, and its stack may be another one's at 3. But its record has given up
//     its context before the pool got the stack, and 6 reads that address after the words of the other one.
//  3. No frame is false, as far as frame pointers say. Each next frame lies above the one before, and each address is
//     in executable memory of an image. Code without frame pointers that uses the register for something else ends the
//     walk early (`is_whole` is false). A whole walk ends at cco_coroutine_start (Context.cpp).
//
// A coroutine that waits inside of a generator's body is parked on the body's stack. The stack of the step is parked
// as well, in the `caller` of the body's context. So the walk goes on there, until it reaches the coroutine's own.
//
// The layout of a saved frame is Boost's, so a walk of a known stack proves it before the first walk.
#include "CCoroutineInspect.h"
#include "Code.h"
#include "Internal.h"
#include "Stack/Slab.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { SAVED_FRAME = 64, SAVED_FP = 48, SAVED_PC = 56 };
#elif defined(__aarch64__)
enum { SAVED_FRAME = 176, SAVED_FP = 0x90, SAVED_PC = 0xa0 };
#endif
// AHEAD: the number of stacks whose first lines are prefetched together. HOPS: the most bodies in a chain.
enum { AHEAD = 16, HOPS = 64 };

// Not instrumented: after a fault, in a build with AddressSanitizer, a wild frame pointer may lead into a red zone of
// the coroutine's own stack.
__attribute__((no_sanitize("address"))) static uintptr_t word_at(uintptr_t address) {
  return __atomic_load_n((const uintptr_t *)address, __ATOMIC_RELAXED);
}

// Appends the frames of one stack. Returns whether they end at the root.
static bool walk_frames(cco_walk *walk, uintptr_t stack, uintptr_t high, uintptr_t fp, uintptr_t pc,
                        cco_walk_target *into) {
  uintptr_t low = stack;
  const uintptr_t root = (uintptr_t)cco_coroutine_start + CCO_ROOT_OFFSET;
  while (pc != root) {
    if (into->count == into->most || !cco_is_code(walk, pc)) return false;
    into->frames[into->count++] = pc;
    if (fp < low || fp > high - 16 || fp % 8 != 0) return false;
    pc = word_at(fp + 8);
    low = fp + 16;
    fp = word_at(fp);
  }
  return true;
}

// Walks a flow that is parked at `stack` on the stack of `on`, and the flows below it, down to `own`, or to the last.
static void walk_chain(cco_walk *walk, const cco_context *on, const void *stack, const cco_context *own,
                       cco_walk_target *into) {
  for (int hop = 0; hop < HOPS; hop++) {
    uintptr_t at = (uintptr_t)stack, high = (uintptr_t)on;
    uintptr_t low = (uintptr_t)__atomic_load_n(&on->low, __ATOMIC_RELAXED);
    if (low == 0 || at < low || at > high - SAVED_FRAME || at % 8 != 0) return;
    if (!walk_frames(walk, at, high, word_at(at + SAVED_FP), word_at(at + SAVED_PC), into)) return;
    if (on == own) {
      into->is_whole = true;
      return;
    }
    const cco_saved_context *caller = __atomic_load_n(&on->caller, __ATOMIC_RELAXED);
    on = caller != NULL ? cco_context_at(caller, NULL) : NULL;
    if (on == NULL) {
      into->is_whole = own == NULL;
      return;
    }
    stack = __atomic_load_n(&caller->stack, __ATOMIC_ACQUIRE);
  }
}

static bool is_on(const cco_context *context, const void *stack) {
  uintptr_t low = (uintptr_t)__atomic_load_n(&context->low, __ATOMIC_RELAXED);
  return low != 0 && (uintptr_t)stack >= low && (uintptr_t)stack < (uintptr_t)context;
}

static bool is_unmoved(const cco_walk_target *target) {
  return __atomic_load_n((const cco_context *const *)target->context, __ATOMIC_RELAXED) == target->own &&
         __atomic_load_n(&target->own->parked.stack, __ATOMIC_RELAXED) == target->stack &&
         __atomic_load_n(target->wait, __ATOMIC_RELAXED) == target->wait_word &&
         __atomic_load_n(target->since, __ATOMIC_RELAXED) == target->since_word;
}

static void order_reads(void) {
#if defined(__aarch64__)
  enum { EXPEDITED = 1 << 3 };
  (void)syscall(SYS_membarrier, EXPEDITED, 0, 0);
#endif
  atomic_thread_fence(memory_order_acquire);
}

static void walk_some(cco_walk *walk, cco_walk_target *targets, size_t count) {
  for (size_t i = 0; i < count; i++) {
    cco_walk_target *target = &targets[i];
    target->count = 0;
    target->is_whole = false;
    target->own = __atomic_load_n((const cco_context *const *)target->context, __ATOMIC_ACQUIRE);
    target->outcome = target->own == NULL ? CCO_WALK_NONE : CCO_WALK_MOVED;
    if (target->own != NULL) __builtin_prefetch(target->own);
  }
  for (size_t i = 0; i < count; i++) {
    cco_walk_target *target = &targets[i];
    if (target->own == NULL) continue;
    target->stack = __atomic_load_n(&target->own->parked.stack, __ATOMIC_ACQUIRE);
    if (target->stack != NULL && is_on(target->own, target->stack)) {
      // The frames of a wait, and the first ones of the coroutine, which are beside its control block.
      for (int line = 0; line < 6; line++) __builtin_prefetch((const char *)target->stack + 64 * line);
    }
  }
  for (size_t i = 0; i < count; i++) {
    cco_walk_target *target = &targets[i];
    if (target->own == NULL || target->stack == NULL) continue;
    const cco_context *on = is_on(target->own, target->stack) ? target->own : cco_context_at(target->stack, NULL);
    if (on != NULL) walk_chain(walk, on, target->stack, target->own, target);
  }
  order_reads();
  for (size_t i = 0; i < count; i++) {
    cco_walk_target *target = &targets[i];
    if (target->own == NULL || target->stack == NULL) continue;
    if (target->count > 0 && is_unmoved(target)) target->outcome = CCO_WALK_WALKED;
  }
}

void cco_walk_stacks(cco_walk *walk, cco_walk_target *targets, size_t count) {
  for (size_t i = 0; i < count; i += AHEAD) walk_some(walk, targets + i, count - i < AHEAD ? count - i : AHEAD);
}

size_t cco_walk_interrupted(const cco_context *context, uintptr_t pc, uintptr_t frame, uintptr_t stack,
                            uintptr_t *frames, size_t most, bool *is_whole) {
  cco_walk walk = {.code = NULL};
  cco_walk_target into = {.frames = frames, .most = (uint32_t)most};
  uintptr_t low = (uintptr_t)context->low;
  const cco_saved_context *caller = context->caller;
  // The caller of a generator's body, or of a body on a second stack, is parked, and its frames are part of the answer.
  if (walk_frames(&walk, stack > low ? stack : low, (uintptr_t)context, frame, pc, &into)) {
    const cco_context *below = caller != NULL ? cco_context_at(caller, NULL) : NULL;
    if (below == NULL) {
      into.is_whole = true;
    } else {
      walk_chain(&walk, below, caller->stack, NULL, &into);
    }
  }
  *is_whole = into.is_whole;
  return into.count;
}

// ---- the proof

static const char *const messages[] = {
    [CCO_WALK_READY] = "on: by frame pointers, without stopping anything",
    [CCO_WALK_SANITIZED] = "off: this build has a sanitizer, which would report the reads",
    [CCO_WALK_UNPROVEN] = "off: a walk of a known stack gave other frames than it has (built without frame pointers?)",
    [CCO_WALK_NO_MEMORY] = "off: there was not enough memory",
};
const char *cco_walk_message(cco_walk_status status) { return messages[status]; }

typedef struct proof {
  void *park, *body;  // return addresses: of the function that parks, and of the one that calls it
} proof;

static __attribute__((noinline)) void park_for_proof(cco_context *context, proof *expected) {
  void *answer;
  expected->park = __builtin_return_address(0);
  (void)cco_suspend(context, expected, &answer);
  // Not a tail call.
  __asm__ volatile("" : : "r"(expected) : "memory");
}
static __attribute__((noinline)) void call_for_proof(cco_context *context, proof *expected) {
  expected->body = __builtin_return_address(0);
  park_for_proof(context, expected);
  __asm__ volatile("" : : "r"(expected) : "memory");
}
static cco_saved_context *run_proof(cco_context *context, void *expected) {
  call_for_proof(context, expected);
  __asm__ volatile("" : : "r"(expected) : "memory");
  return NULL;
}

static cco_walk_status prove(cco_walk *walk) {
  proof expected = {NULL, NULL};
  cco_context *context;
  void *answer;
  if (cco_create(1, run_proof, &expected, &context) != CCO_OK) return CCO_WALK_NO_MEMORY;
  (void)cco_resume(context, NULL, &answer);
  uintptr_t frames[16];
  uint64_t word = 0;
  cco_walk_target target = {.context = &context, .wait = &word, .since = &word, .frames = frames, .most = 16};
  walk_some(walk, &target, 1);
  // The frames: park_for_proof, call_for_proof, run_proof, the trampoline.
  bool holds = target.outcome == CCO_WALK_WALKED && target.is_whole && target.count >= 4 &&
               frames[target.count - 3] == (uintptr_t)expected.park &&
               frames[target.count - 2] == (uintptr_t)expected.body;
  (void)cco_resume(context, NULL, &answer);
  (void)cco_destroy(context);
  return holds ? CCO_WALK_READY : CCO_WALK_UNPROVEN;
}

static atomic_uint proven;  // 0: not tried; else the status + 1

static cco_walk_status find_status(cco_walk *walk) {
  unsigned known = atomic_load_explicit(&proven, memory_order_relaxed);
  if (known != 0) return (cco_walk_status)(known - 1);
#if defined(__aarch64__)
  enum { REGISTER_EXPEDITED = 1 << 4 };
  if (syscall(SYS_membarrier, REGISTER_EXPEDITED, 0, 0) != 0) return CCO_WALK_UNPROVEN;
#endif
  cco_walk_status status = prove(walk);
  // Two threads may prove it at once, with the same result. Memory may be there later.
  if (status != CCO_WALK_NO_MEMORY) atomic_store_explicit(&proven, status + 1, memory_order_relaxed);
  return status;
}

cco_walk_status cco_walk_begin(cco_walk *walk) {
  *walk = (cco_walk){.code = NULL};
  if (cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER | CCO_THREAD_SANITIZER)) return CCO_WALK_SANITIZED;
  cco_start();
  if (!cco_find_code(walk)) return CCO_WALK_NO_MEMORY;
  cco_pin_slabs();
  cco_walk_status status = find_status(walk);
  if (status != CCO_WALK_READY) cco_walk_end(walk);
  return status;
}

void cco_walk_end(cco_walk *walk) {
  cco_unpin_slabs();
  cco_forget_code(walk);
}
