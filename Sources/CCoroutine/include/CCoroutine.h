// Stacks and switches, for programs in C, C++ and Swift: what a coroutine needs, and nothing of what runs it.
//
//   context         a coroutine: a guarded stack whose top page holds this control block.
//   saved context   the state of a parked flow of control: a saved stack pointer, and its values of the words that a
//                   switch exchanges. A coroutine has one, and so has the flow that resumed it. What few flows have,
//                   such as C++ exceptions that are being handled, is saved in the flow's own frame (hazards 14, 15).
//   switch          parks the running flow in one saved context, and continues the flow parked in another.
//
// Use. `cco_create` makes a context, `cco_resume` runs it until it calls `cco_suspend` or returns, `cco_destroy` gives
// its stack back. A context may be resumed by another thread each time; a body must not keep the address of a
// thread-local over a suspension. Examples/CCore/numbers.c is a whole program. Nothing here starts a thread
// that stays, but `cco_guard_thread` installs a handler for SIGSEGV and SIGBUS, and is optional.
//
// States of a context. The caller ensures that one thread at a time uses a context (by a scheduler's serial execution,
// or a generator's claim).
//
//     cco_create          a switch to it          a switch away
//   ------------> READY ----------------> RUNNING <===============> SUSPENDED
//                                         ^     |    a switch to it
//                          a switch to it |     | the entry function returns
//                          (next body)    |     v
//                                         FINISHED
//
// cco_destroy accepts READY and FINISHED, never SUSPENDED: a stack with live frames is first resumed with an error, so
// that its frames release what they own.
//
// No switch writes the state. `phase` distinguishes READY, FINISHED and "inside a body"; it is written once at the
// start and once at the end of each body. Inside a body the context is SUSPENDED while `parked.stack` is set, and
// RUNNING while it is NULL. Every switch writes that word anyway.
//
// The switch itself is in CCoroutineSwitch.h.
#ifndef CCOROUTINE_H
#define CCOROUTINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What other compilers of C do not know: nullability, attributes for Swift, and before C23 the type of an enumeration.
#if defined(__clang__)
#define CCO_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define CCO_NONNULL_END _Pragma("clang assume_nonnull end")
#define CCO_SWIFT(attribute) __attribute__((swift_attr(attribute)))
#else
#define CCO_NONNULL_BEGIN
#define CCO_NONNULL_END
#define CCO_SWIFT(attribute)
#define _Nullable
#define _Nonnull
#endif
#if defined(__clang__) || defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define CCO_IS(type) : type
#else
#define CCO_IS(type)
#endif

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

// ---------------------------------------------------------------------------------------------------- status codes

/// The result of a call. Misuse is a result, never undefined behaviour; `cco_status_message` has the sentence.
typedef enum cco_status CCO_IS(int32_t) {
  CCO_OK = 0,
  CCO_STACK_TOO_LARGE = 1,   ///< beyond the largest size class (CCO_LARGEST_STACK)
  CCO_OUT_OF_MAPS = 2,       ///< vm.max_map_count reached while guarding a stack with mprotect
  CCO_OUT_OF_MEMORY = 3,     ///< the kernel refused address space (RLIMIT_AS, vm.overcommit_memory)
  CCO_NOT_RESUMABLE = 4,     ///< resume of a context that is running or finished
  CCO_NOT_RUNNING = 5,       ///< suspend of a context that is not running, or from a stack that is not its own
  CCO_HAS_LIVE_FRAMES = 6,   ///< destroy of a context that is suspended or running
  CCO_OUT_OF_THREADS = 7,    ///< the kernel refused the two threads that start-up needs for a moment
} cco_status;

/// One English sentence that says what happened and what to do about it. Static storage.
const char *cco_status_message(cco_status status);

// ------------------------------------------------------------------------------------------------- threads and TLS

/// The words of each thread. They are reached through `cco_thread()`, never by an address that is kept over a switch,
/// because the same code may continue on another thread (hazard 4).
typedef struct cco_thread_words {
  void *_Nullable layer[8];      ///< belong to the layer above; all zero on a new thread
  /// The saved stack pointer that this thread switched to last, so an address in the stack that runs now. (The address
  /// of the saved context would not do: a coroutine that waits on a second stack is parked in the block of its first.)
  /// Only the handler of faults reads it, because the address of a fault is not enough (hazard 6).
  const void *_Nullable running;
  const void *_Nullable found;       ///< the context that cco_context_here has found last on this thread, or NULL,
  const void *_Nullable found_low;   ///< the lowest address of its stack,
  uintptr_t found_maps;              ///< and the number of changes of the mappings at that time
  void *_Nullable no_exchanged[2];   ///< replace the words that switches exchange, if there are none
  void *_Nullable no_state[2];       ///< replace the words of a flow's state, or of C++ exceptions, if there are none
} cco_thread_words;

/// The results of start-up. `cco_start` writes them once; offsets are from the thread pointer.
///
/// Two pairs of words belong to other runtimes, such as a language's. The layer above finds them (Layer.h). Without a
/// layer they are `no_exchanged` and `no_state`, which nothing sets.
typedef struct cco_core_facts {
  intptr_t words_offset;          ///< of this thread's cco_thread_words
  intptr_t exchanged_offset[2];   ///< of words of which each flow of control has its own values
  intptr_t state_offset[2];       ///< of words that few flows set; the first is set only while the second is
  intptr_t exceptions_offset;     ///< of the C++ runtime's two words about exceptions
  uint32_t careful;     ///< non-zero: switches go out of line (sanitizers, a mitigation that fell back)
  uint32_t reconciles;  ///< non-zero: this processor stalls on a changed MXCSR, so switches reconcile it; decided by
                        ///< CPUID, or by the environment variable COROUTINE_RECONCILE (0 or 1)
} cco_core_facts;
// Sound because only cco_start writes it, once, before the first context exists. (Swift reads the attribute.)
extern cco_core_facts cco_facts CCO_SWIFT("nonisolated(unsafe)");

/// Sets all of `cco_facts`; all that makes a context calls it. False: it got no thread, and the next call tries again.
bool cco_start(void);

/// The thread pointer, read anew at each use: `volatile` prevents the compiler from reusing one after a switch.
static inline __attribute__((always_inline)) char *cco_thread_pointer(void) {
  char *pointer;
#if defined(__x86_64__)
  __asm__ volatile("movq %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__)
  __asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer));
#else
#error "Coroutine runs on x86-64 and aarch64."
#endif
  return pointer;
}

static inline __attribute__((always_inline)) cco_thread_words *cco_thread(void) {
  return (cco_thread_words *)(cco_thread_pointer() + cco_facts.words_offset);
}

/// Calls cco_start unless it has run: one load, which acquires what cco_start has written.
static inline __attribute__((always_inline)) void cco_start_if_needed(void) {
  if (__builtin_expect(__atomic_load_n(&cco_facts.careful, __ATOMIC_ACQUIRE) != 0, 0)) cco_start();
}

// --------------------------------------------------------------------------------------------------------- contexts

/// The state of a parked flow of control. Valid while that flow is parked.
typedef struct cco_saved_context {
  void *_Nullable stack;         ///< Boost's fcontext_t, the saved stack pointer; with sanitizers Sanitizer.c's record
  void *_Nullable exchanged[2];  ///< this flow's values of the words at `cco_facts.exchanged_offset`
  void *_Nullable spare;         ///< the layer's, for the careful path
} cco_saved_context;

/// Whether a flow is completely switched out into `saved`. `stack` is NULL while the flow runs. The next flow sets it
/// when the switch is complete. From any thread; acquires all that the flow did.
bool cco_is_parked(const cco_saved_context *saved);

typedef struct cco_context cco_context;

/// The body of a context. It gets the context and the argument of `cco_create`. Its return ends the body, and the
/// result is the flow to continue: NULL is the resumer's. The address of the context's own `parked` means that the
/// entry function is called again without a switch, because the stack already has its next body.
typedef cco_saved_context *_Nullable (*cco_entry)(cco_context *context, void *_Nullable argument);

typedef enum cco_state CCO_IS(uint32_t) {
  CCO_READY = 1,      ///< has a stack, no frames of the body yet
  CCO_RUNNING = 2,    ///< its body runs
  CCO_SUSPENDED = 3,  ///< parked with live frames
  CCO_FINISHED = 4,   ///< the body has returned; the stack holds nothing
} cco_state;

/// The owner of a stack, for debuggers and for what a layer reports.
typedef struct cco_label {
  uint64_t id;
  const char *_Nullable name;  ///< UTF-8, terminated; escaped for a place between quotation marks
  const char *_Nullable file;  ///< where it was made: `file_length` bytes, not terminated
  uint32_t file_length;
  uint32_t line;
} cco_label;

/// The control block, in the top page of its own stack: a parked coroutine costs one page.
struct cco_context {
  cco_saved_context parked;                  ///< where this coroutine is parked, while it is not running
  cco_saved_context *_Nullable caller;     ///< where its resumer is parked, while it is running
  void *_Nullable value;          ///< the value that the next switch passes
  cco_entry _Nullable entry;      ///< NULL tells the trampoline to leave for ever (sanitizer builds)
  void *_Nullable argument;
  cco_state phase;  ///< READY, FINISHED, or RUNNING from a body's start to its end; ask `cco_state_of`
  uint32_t size_class;
  uint64_t serial;                ///< identifies one use of the stack: stacks are reused, these numbers are not
  char *low;                      ///< lowest usable byte; the guard lies below
  void *_Nullable sanitizer;      ///< TSan's fiber, if that is compiled in
  uint32_t valgrind;              ///< Valgrind's stack number, if that is compiled in
  uint32_t slot_index;            ///< position in its slab
  void *slab;
  void *_Nullable base;           ///< frame of the function that calls the body, for cco_expect_returns; may be NULL
  const cco_label *_Nullable label;  ///< the owner of the stack; valid while the body runs
};

/// One past the highest byte that frames may use: the control block lies right above.
static inline char *cco_high(const cco_context *context) { return (char *)context; }

/// Makes a READY context on a guarded stack of at least `stack_size` bytes (rounded up to a size class). Returns
/// CCO_STACK_TOO_LARGE, CCO_OUT_OF_MAPS, CCO_OUT_OF_MEMORY or CCO_OUT_OF_THREADS. Any thread. Tens of ns on a pooled
/// stack, µs on a new one.
cco_status cco_create(size_t stack_size, cco_entry entry, void *_Nullable argument,
                      cco_context *_Nullable *_Nonnull context);

/// The state of a context. Exact on the thread that may use the context; on others perhaps out of date.
cco_state cco_state_of(const cco_context *context);

/// Gives the stack of a READY or FINISHED context back to the pool. Returns CCO_HAS_LIVE_FRAMES otherwise.
cco_status cco_destroy(cco_context *context);

/// Calls `body` with `argument` on a stack of at least `stack_size` bytes, as part of the calling flow: what the
/// caller's frames hold, holds in the body, also if the flow parks there and continues on another thread. `label` is
/// for reports. `flow` becomes the `argument` of the context, by which the caller knows whose stack it is. Returns
/// CCO_OK when `body` has returned, or a status of cco_create, and `body` was not called. The body begins with the
/// default rounding mode.
cco_status cco_call_on_stack(size_t stack_size, void (*body)(void *_Nullable argument), void *_Nullable argument,
                             const cco_label *_Nullable label, void *_Nullable flow);

cco_status cco_refuse_resume(const cco_context *context);
cco_status cco_refuse_suspend(const cco_context *context);

/// Whether an x86-64 processor stalls on a changed MXCSR: `maker` and `family` are those of CPUID, the family with its
/// extension. True for unknown processors.
bool cco_stalls_on_flags(const char *maker, uint32_t family);

// ---------------------------------------------------------------------------------------------------------- stacks

enum { CCO_STACK_CLASSES = 7 };
#define CCO_LARGEST_STACK ((size_t)16 << 20)
#define CCO_STANDARD_STACK ((size_t)512 << 10)

/// Index of the smallest class that holds `stack_size` bytes; CCO_STACK_CLASSES if none does.
uint32_t cco_stack_class(size_t stack_size);

/// How stacks are guarded on this machine.
typedef enum cco_guard_kind CCO_IS(uint32_t) {
  CCO_GUARD_MARKERS = 1,   ///< MADV_GUARD_INSTALL: no mapping is split
  CCO_GUARD_MPROTECT = 2,  ///< mprotect: two mappings a stack, bounded by vm.max_map_count
} cco_guard_kind;

typedef struct cco_stack_counters {
  uint64_t live;          ///< stacks in use by contexts
  uint64_t pooled;        ///< stacks in the pool, hot or cold
  uint64_t pooled_dirty;  ///< hot stacks in the pool, which hold memory
  uint64_t peak;          ///< most stacks ever in use at once
  uint64_t mapped_bytes;  ///< address space reserved for slabs
  cco_guard_kind guard;
} cco_stack_counters;
cco_stack_counters cco_stacks(void);

/// Whether a size class has more than twice as many hot stacks in the pool as cco_trim_surplus keeps of it. Does not
/// start the runtime: a program that has made no context has no stacks, and may be about to exit.
bool cco_has_surplus(size_t keep);

/// Returns the memory of pooled stacks to the kernel, in bulk, the longest unused first. The `keep` most recent ones of
/// each size class stay hot. Unmaps slabs that have no stack in use, except one of each class. Returns the number of
/// trimmed stacks. Takes 0.3 to 0.6 µs a stack.
size_t cco_trim(size_t keep);

/// As cco_trim, but only for stacks that were not used since the last call: the stacks of a steady load stay hot, the
/// stacks of a burst are trimmed. It keeps stacks of 64 MiB of each size class at most, because stacks that were used
/// to their ends hold that much. Called every few seconds while many stacks are pooled.
size_t cco_trim_surplus(size_t keep);

/// The number of stacks in use, as in the counters: one load.
uint64_t cco_stacks_in_use(void);

/// The context whose stack or guard contains `address`, NULL for none. Lock-free and async-signal-safe.
/// `cco_context_at(cco_thread()->running, NULL)` is the context that runs on the calling thread.
const cco_context *_Nullable cco_context_at(const void *address, bool *_Nullable in_guard);

/// The context on whose stack the caller runs; NULL outside of any. Takes a few instructions if this thread has found
/// the same context before.
const cco_context *_Nullable cco_context_here(void);

// ------------------------------------------------------------------------------------------- overflow and reports

/// Hazard 6: gives the calling thread an alternate signal stack, once, and installs the process-wide handler, once.
/// Called before a thread runs coroutines.
void cco_guard_thread(void);

/// Gives a thread that cco_guard_thread has been called on its signal stack again, because foreign code may have
/// switched it off, or have put its own there and released that. One system call.
void cco_restore_signal_stack(void);

/// Calls `body`. If it ends the thread (pthread_exit) instead of returning, the process ends with a sentence, as it
/// does if the body of a coroutine ends its thread.
void cco_call_to_its_end(void (*body)(void *_Nullable argument), void *_Nullable argument);

/// Which sanitizers the C files were compiled with. Other languages do not see `__has_feature`, so they ask here.
typedef enum cco_sanitizers CCO_IS(uint32_t) {
  CCO_ADDRESS_SANITIZER = 1,
  CCO_THREAD_SANITIZER = 2,
  CCO_LEAK_SANITIZER = 4,
  CCO_VALGRIND = 8,  ///< requests are compiled in; they cost nothing outside Valgrind
} cco_sanitizers;
uint32_t cco_compiled_sanitizers(void);

/// The mitigations of hazards.md, each a bit: for `cco_disable` and `cco_mitigations`. The other bits are the layer's.
typedef enum cco_mitigation CCO_IS(uint32_t) {
  CCO_MITIGATION_FLOATING_POINT = 1,
  CCO_MITIGATION_GUARD_MARKERS = 8,
  CCO_MITIGATION_OVERFLOW_REPORT = 16,
  CCO_MITIGATION_GUARDS = 32,
  CCO_MITIGATION_EXCEPTIONS = 256,
} cco_mitigation;

/// Switches mitigations off, before the first context is made, so that a test can show what each one prevents. Returns
/// false, and changes nothing, once the runtime has started. Not for production.
bool cco_disable(uint32_t mitigations);

/// The mitigations that are active.
uint32_t cco_mitigations(void);

/// A few lines of English: each hazard, whether its mitigation is active, and what it fell back to and why. Static
/// storage.
const char *cco_report(void);

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#include "CCoroutineProcessor.h"
#include "CCoroutineSwitch.h"

#endif
