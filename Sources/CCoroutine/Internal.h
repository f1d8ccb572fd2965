// The internal interface between the files of the C core.
#ifndef CCOROUTINE_INTERNAL_H
#define CCOROUTINE_INTERNAL_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

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

// ---- SwiftRuntime.c: the two lists that Swift keeps in thread-local storage.
void cco_swift_runtime_start(cco_runtime_facts *facts);
const char *cco_accesses_description(void);
const char *cco_task_locals_description(void);
// Whether a word has no fixed offset, so that switches must call a library's function.
bool cco_swift_runtime_wants_careful(void);
// Exchanges both lists at a switch on the careful path, by offset or by the library's functions.
void cco_exchange_lists(cco_saved_context *from, cco_saved_context *to);

// ---- TaskLocals.c: whether task-local lists have the layout that the file assumes. Called on a thread without
// bindings, with the offset of their head.
bool cco_prove_task_locals(intptr_t offset);
void cco_task_locals_understood(bool is_understood);

// ---- ThreadBlock.c: the thread-local block of the library whose code contains `symbol`, on the calling thread.
typedef struct cco_thread_block {
  const void *symbol;
  void *_Nullable *_Nullable words;
  size_t count;
  bool is_library;  // not the program itself
} cco_thread_block;
bool cco_find_thread_block(cco_thread_block *block);
// Returns the distance from the thread pointer of the one word that is non-nil only inside `piece`; 0 if there is not
// exactly one. `piece` calls cco_note_inside in the middle.
typedef struct cco_search cco_search;
intptr_t cco_find_head(const void *symbol, void (*piece)(cco_search *search));
void cco_note_inside(cco_search *search);

// ---- ThreadState.c: the thread-local state of a flow of control that runs in a Task or handles a C++ exception. The
// first function removes it from the calling thread, the second restores it, perhaps on another thread.
typedef struct cco_exceptions {
  void *_Nullable caught;  // the head of the list of exceptions that are being handled
  uint32_t uncaught;       // the number of exceptions that are being thrown
} cco_exceptions;
typedef struct cco_thread_state {
  char *thread;
  void *_Nullable task;
  void *_Nullable running;
  cco_exceptions exceptions;
  bool is_counted;  // whether `tasks_left` counts this Task
} cco_thread_state;
bool cco_take_thread_state(cco_thread_state *state);
void cco_put_thread_state(const cco_thread_state *state);

// ---- Tasks.c: hazard 14.
typedef struct cco_task_words {
  intptr_t task, running;
} cco_task_words;
cco_task_words cco_find_task_words(void);
void cco_tasks_start(cco_task_words on_one_thread, cco_task_words on_another);
const char *cco_tasks_description(void);
// Proves that a Task's synchronous part may continue on another thread. Called once switches work.
void cco_tasks_prove(void);
// Changes the frames between `stack` and the top of its coroutine's stack: addresses of the words of thread `from`
// become addresses of those of thread `to`.
void cco_move_task_frames(char *stack, const char *from, const char *to);

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

// ---- ThreadEnd.c: ends the process, because the thread ends within the body of `context`, or of a thread.
__attribute__((noreturn)) void cco_refuse_thread_end(const cco_context *_Nullable context);

// ---- Overflow.c: hazard 6.
const char *cco_overflow_description(void);
// OverflowReport.c: reports that a context touched `fault` with its stack pointer at `pointer`.
void cco_write_overflow_report(const cco_context *context, const char *fault, const char *pointer);
// The same for the stack of the calling thread itself, which has `bytes`.
void cco_write_thread_overflow(size_t bytes);
// FatalReport.c: reports that a context got `signal` at `pc`, with these frame and stack pointers.
void cco_write_fatal_report(const cco_context *context, int signal, uintptr_t pc, uintptr_t frame, uintptr_t stack);
void cco_fatal_reports_start(void);

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

// ---- ForkedThread.c: hazard 13. Called on the thread that forks: before the fork, in the child, at the child's first
// use.
void cco_note_forking_thread(void);
void cco_keep_forked_thread(void);
void cco_renumber_forked_thread(void);

// ---- Image.c: called before the first thread, context or handler. Keeps the image loaded, and looks for another copy.
void cco_settle_image(void);

// ---- Start.c: which mitigations a test has switched off.
bool cco_is_disabled(cco_mitigation mitigation);
void cco_mark_active(cco_mitigation mitigation, bool active);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
