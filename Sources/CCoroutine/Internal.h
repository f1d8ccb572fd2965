// The internal interface between the files of the C core. Its siblings, CCoroutineRuntime and CCoroutineInspect, may
// include it; nothing else may.
#ifndef CCOROUTINE_INTERNAL_H
#define CCOROUTINE_INTERNAL_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

// ---- Stack.c: acquires and releases stacks. An acquired stack has its control block at the top, with `low`,
// `size_class`, `serial`, `slot_index` and `slab` set, and is registered with sanitizers and Valgrind.
cco_status cco_stack_acquire(size_t stack_size, cco_context *_Nullable *_Nonnull context);
void cco_stack_release(cco_context *context);
// Probes which guards this kernel has. Called once by cco_start.
void cco_stacks_start(void);
// Called under the report's lock.
const char *cco_guard_description(void);

// While a walk of stacks is under way, slabs stay mapped (Trim.c). The child of a fork has none of the walks.
void cco_pin_slabs(void);
void cco_unpin_slabs(void);
void cco_forget_pins(void);

// ---- Context.cpp: the last frame of each stack is a return address at this distance behind the symbol.
void cco_coroutine_start(void) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
enum { CCO_ROOT_OFFSET = 1 };
#else
enum { CCO_ROOT_OFFSET = 4 };
#endif

// Whether the frames of a context continue those of its caller: a stack of cco_call_on_stack.
bool cco_is_call(const cco_context *context);
// Ends the process, because the thread ends within the body of `context`, or of a thread.
__attribute__((noreturn)) void cco_refuse_thread_end(const cco_context *_Nullable context);

// ---- Search.c: finds the words that belong to other runtimes.
bool cco_search(cco_core_facts *facts);
// Whether a word has no fixed offset, so that switches must call a function.
bool cco_search_wants_careful(void);
// Exchanges the two words of which each flow has its own values, at a switch on the careful path.
void cco_exchange(cco_saved_context *from, cco_saved_context *to);

// ---- ThreadState.c: the thread-local state of a flow of control that few flows have. The first function removes it
// from the calling thread, the second restores it, perhaps on another thread.
typedef struct cco_exceptions {
  void *_Nullable caught;  // the head of the list of exceptions that are being handled
  uint32_t uncaught;       // the number of exceptions that are being thrown
} cco_exceptions;
typedef struct cco_thread_state {
  char *thread;
  void *_Nullable words[2];  // those at `state_offset`
  cco_exceptions exceptions;
  bool is_marked;  // what the layer has answered
} cco_thread_state;
bool cco_take_thread_state(cco_thread_state *state);
void cco_put_thread_state(const cco_thread_state *state);

// ---- Exceptions.c: hazard 15.
typedef struct cco_exception_words {
  intptr_t offset;  // from the thread pointer
  bool hold;        // the proof with an exception of this thread has succeeded
} cco_exception_words;
cco_exception_words cco_find_exceptions(void);
// ExceptionsProof.cpp: throws an exception, and checks that the runtime uses these words of the calling thread.
bool cco_prove_exceptions(cco_exceptions *words);
// Returns false if the careful path must call the runtime's function for the words.
bool cco_exceptions_start(cco_exception_words on_one_thread, cco_exception_words on_another);
cco_exceptions *cco_thread_exceptions(void);
const char *cco_exceptions_description(void);

// ---- FloatingPoint.c: hazard 1's start-up probe.
void cco_floating_point_start(void);
const char *cco_floating_point_description(void);

// ---- Overflow.c: hazard 6.
const char *cco_overflow_description(void);

// ---- Sanitizer.c: every annotation. In a plain build each function is empty or a plain jump.
bool cco_sanitizer_wants_careful(void);
// A jump between stacks with the sanitizers' annotations; `forever`: this stack is never resumed.
cco_transfer cco_annotated_jump(void *_Nullable to, void *_Nullable data, bool forever);
// The first jump into a new stack, with the context as data; and its arrival there.
cco_transfer cco_sanitizer_enter(cco_context *context, void *stack);
cco_transfer cco_sanitizer_entered(cco_transfer birth);
// The saved stack pointer behind a saved context's `stack`.
void *cco_sanitizer_saved_stack(void *stack);
// Before a stack goes back to the pool.
void cco_sanitizer_forget(cco_context *context);
// When a stack starts and stops being in use; inline, because usually no tool records it.
void cco_sanitizer_start(void);
extern bool cco_sanitizer_watches;
void cco_sanitizer_note_in_use(cco_context *context);
void cco_sanitizer_note_idle(cco_context *context);
static inline void cco_sanitizer_stack_in_use(cco_context *context) {
  if (__builtin_expect(cco_sanitizer_watches, 0)) cco_sanitizer_note_in_use(context);
}
static inline void cco_sanitizer_stack_idle(cco_context *context) {
  if (__builtin_expect(cco_sanitizer_watches, 0)) cco_sanitizer_note_idle(context);
}

// ---- Start.c: which mitigations a test has switched off.
bool cco_is_disabled(uint32_t mitigation);
void cco_mark_active(uint32_t mitigation, bool active);

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
