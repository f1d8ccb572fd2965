// The C core of Coroutine: stacks and switches. It knows nothing of queues, jobs or Swift types.
//
//   slot      a place where a parked flow of control can be found again: a saved stack pointer and the two list heads
//             that Swift keeps in thread-local storage for it (hazards 2 and 3). A coroutine has one, so has whoever
//             resumed it. What is there more rarely, a Task or C++ exceptions, it keeps in its own frame (14 and 15).
//   context   a coroutine: a guarded stack whose top page holds this control block.
//   switch    parks the running flow in one slot and continues the one parked in another.
//
// States of a context. Only the thread that switches touches `state`; the caller sees to it that a context is used by
// one thread at a time (a scheduler's serial execution, a generator's claim).
//
//     cco_create          cco_resume              cco_suspend
//   ------------> READY ------------> RUNNING <==============> SUSPENDED
//                   ^                    |        cco_resume
//        cco_reset  |                    | the entry function returns
//                   +---- FINISHED <-----+
//                            |
//                            +---> cco_destroy (also from READY; never from SUSPENDED: a stack with live frames is
//                                  resumed with an error first, so that its frames release what they hold)
//
// Why so much of it is `static inline`: a processor predicts returns from a stack of recent calls, which a switch does
// not exchange, so every real call between the caller and the jump costs a misprediction (hazard 12). From the inline
// functions to Boost's assembly there is one call and one tail jump. Swift inlines them in functions, not in closures
// that are passed as C functions: such a closure should call a function marked @inline(never) and do nothing else.
#ifndef CCOROUTINE_H
#define CCOROUTINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

// ---------------------------------------------------------------------------------------------------- status codes

/// What a call answers. Misuse is an answer, never undefined behaviour; `cco_status_message` has the sentence.
typedef enum cco_status : int32_t {
  CCO_OK = 0,
  CCO_STACK_TOO_LARGE = 1,   ///< beyond the largest size class (CCO_LARGEST_STACK)
  CCO_OUT_OF_MAPS = 2,       ///< vm.max_map_count reached while guarding a stack with mprotect
  CCO_OUT_OF_MEMORY = 3,     ///< the kernel refused address space (RLIMIT_AS, vm.overcommit_memory)
  CCO_NOT_RESUMABLE = 4,     ///< resume of a context that is running or finished
  CCO_NOT_RUNNING = 5,       ///< suspend of a context that is not running, or from a stack that is not its own
  CCO_HAS_LIVE_FRAMES = 6,   ///< destroy or reset of a context that is suspended or running
} cco_status;

/// One English sentence that says what happened and what to do about it. Static storage.
const char *cco_status_message(cco_status status);

// ------------------------------------------------------------------------------------------------- threads and TLS

/// What the layer above keeps for each thread. Reached through `cco_thread()`, never by an address that is held over a
/// switch: the same code may go on on another thread (hazard 4).
typedef struct cco_thread_words {
  void *_Nullable carrier;          ///< the Swift layer's Carrier that is mounted on this thread, NULL outside of any
  void *_Nullable locals;        ///< head of the CoroutineLocal bindings of a thread outside of any coroutine
  void *_Nullable settling;      ///< promises that the outermost settle on this thread has yet to settle
  void *_Nullable no_accesses;   ///< stands in for Swift's access list where that was not found
  void *_Nullable no_task_locals;  ///< stands in for Swift's task-local list where that was not found
  /// The slot that this thread switched to last. It lies on the stack that runs now: in a context's control block or in
  /// a resumer's frame. For the overflow report alone, which must not guess from an address (hazard 6).
  const void *_Nullable running;
  uintptr_t tasks_left;            ///< where waits inside of a Task are refused: how many Tasks wait below a switch
  void *_Nullable no_state[2];     ///< stand in for the words of a Task or of C++ exceptions where those were not found
} cco_thread_words;

/// What start-up found out. Written once by `cco_start`, read-only afterwards; offsets are from the thread pointer.
typedef struct cco_runtime_facts {
  intptr_t words_offset;        ///< of this thread's cco_thread_words
  intptr_t accesses_offset;     ///< of the head of Swift's list of dynamic accesses, or of `no_accesses`
  intptr_t task_locals_offset;  ///< of the head of Swift's task-local list, or of `no_task_locals`
  intptr_t task_offset;         ///< of Swift's "current Task" word, or of `no_state`
  intptr_t executors_offset;      ///< of the head of Swift's list of running executors, or of `no_state`
  intptr_t exceptions_offset;   ///< of the C++ runtime's two words about exceptions, or of `no_state`
  uint32_t careful;             ///< non-zero: switches take the out-of-line path (sanitizers, a cure that fell back)
  uint32_t refuses_tasks;       ///< non-zero: a coroutine must not wait while it runs inside of a Task (hazard 14)
  uint32_t reconciles;          ///< non-zero: this processor stalls on a changed MXCSR, so switches reconcile it;
                                ///< decided by CPUID, or by the environment variable COROUTINE_RECONCILE (0 or 1)
  uint32_t forked;              ///< non-zero: a forked child, in which no thread runs coroutines (Fork.c)
} cco_runtime_facts;
// Sound because only cco_start writes it, once, before the first context exists; and `forked` a child's only thread,
// inside of fork. (The attribute is for Swift's eyes.)
extern cco_runtime_facts cco_facts __attribute__((swift_attr("nonisolated(unsafe)")));

/// Finds out all of `cco_facts`. Idempotent, thread-safe; every function below that makes a context calls it.
void cco_start(void);

/// The thread pointer, read anew at each use: `volatile` keeps the compiler from reusing one over a switch.
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

/// The Task that Swift takes the calling code for; NULL for none.
void *_Nullable cco_current_task(void);

/// Whether a wait here would park a Task's synchronous part together with the coroutine: asked where `refuses_tasks`.
bool cco_is_inside_task(void);

// ------------------------------------------------------------------------------------------------ slots and switch

/// Where a parked flow of control can be found again. Valid while that flow is parked.
typedef struct cco_saved_context {
  void *_Nullable stack;        ///< Boost's fcontext_t, the saved stack pointer; with sanitizers Sanitizer.c's record
  void *_Nullable task_locals;  ///< head of Swift's task-local list (hazard 3)
  void *_Nullable accesses;     ///< head of Swift's list of dynamic accesses (hazard 2)
  void *_Nullable spare;        ///< with `accesses` the two words that Swift's own functions want in the careful path
} cco_saved_context;

/// boost::context::detail::transfer_t, two registers on both architectures.
typedef struct cco_transfer {
  void *_Nullable stack;
  void *_Nullable data;
} cco_transfer;

/// Boost's jump, by a tail call from the one C++ file.
cco_transfer cco_jump(void *_Nullable to, void *_Nullable data);

// What AVX-512 adds to the registers that a call does not preserve.
#if defined(__AVX512F__)
#define CCO_VECTORS_CLOBBERED                                                                                        \
  "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",      \
      "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#else
#define CCO_VECTORS_CLOBBERED
#endif

/// `cco_jump` without a call instruction, as far as the processor can see. It predicts each return from a stack of
/// recent calls; Boost's code comes back by a jump, so a call to it would leave an entry there that no return takes.
/// After every switch all returns would then be predicted one frame too far down: 5 to 10 ns for each frame that
/// returns. So the address to come back to is pushed, and the rest is a jump. A recursion that switches at every level
/// takes 18 ns instead of 31 a level.
static inline __attribute__((always_inline)) cco_transfer cco_jump_unpredicted(void *_Nullable to,
                                                                               void *_Nullable data) {
#if defined(__x86_64__)
  cco_transfer arrival;
  // The 128 bytes below the stack pointer may hold variables of the function that this is inlined into. Aligned as for
  // a call, because without optimisation `cco_jump` is a function with a frame. %r15 comes back as it was, like every
  // register that a callee preserves; %rbx would as well, but is LLVM's in functions with a variable frame.
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

/// `cco_switch` with everything that is rare: a flow inside of a Task or of a C++ handler, sanitizers, fallbacks.
void cco_switch_carefully(cco_saved_context *from, cco_saved_context *to);

/// Hazard 1: a jump that changes MXCSR stalls the pipeline for 130 ns, and the sticky exception flags differ for good
/// after one inexact result. The first word of a saved frame is its MXCSR (verified at start-up, else `careful`): where
/// only flags differ it takes over the current ones. Control bits stay, so a coroutine keeps its rounding mode. Reading
/// MXCSR costs 1 ns on processors that stall and 6 ns on others, which therefore leave it out (`reconciles`).
static inline __attribute__((always_inline)) void cco_reconcile_floating_point(void *stack) {
#if defined(__x86_64__)
  uint32_t current, *saved = (uint32_t *)stack;
  __asm__ volatile("stmxcsr %0" : "=m"(current));
  if (__builtin_expect(current != *saved, 0) && ((current ^ *saved) & ~UINT32_C(0x3F)) == 0) *saved = current;
#else
  (void)stack;
#endif
}

/// Whether a switch must go the careful way: always, or because the running flow is inside of a Task (hazard 14), of a
/// `catch` block or of a cleanup by an exception (hazard 15). One branch for all of it.
static inline __attribute__((always_inline)) bool cco_must_be_careful(const char *thread) {
  const char *executors = thread + cco_facts.executors_offset, *exceptions = thread + cco_facts.exceptions_offset;
  return (cco_facts.careful | *(const uintptr_t *)executors | *(const uintptr_t *)exceptions |
          *(const uint32_t *)(exceptions + sizeof(void *))) != 0;
}

/// Parks the running flow in `from` and continues the one parked in `to`. Returns when somebody switches back to
/// `from`, perhaps on another thread. Constant time.
static inline __attribute__((always_inline)) void cco_switch(cco_saved_context *from, cco_saved_context *to) {
  char *thread = cco_thread_pointer();
  if (__builtin_expect(cco_must_be_careful(thread), 0)) {
    cco_switch_carefully(from, to);
    return;
  }
  void *_Nullable *accesses = (void *_Nullable *)(thread + cco_facts.accesses_offset);
  void *_Nullable *locals = (void *_Nullable *)(thread + cco_facts.task_locals_offset);
  from->accesses = *accesses;
  *accesses = to->accesses;
  from->task_locals = *locals;
  *locals = to->task_locals;
  ((cco_thread_words *)(thread + cco_facts.words_offset))->running = to;
  void *stack = to->stack;
  to->stack = 0;
  if (cco_facts.reconciles) cco_reconcile_floating_point(stack);
  cco_transfer arrival = cco_jump_unpredicted(stack, from);
  // We are `from` again. Whoever switched here passed its own slot; only now is its stack pointer known.
  __atomic_store_n(&((cco_saved_context *)arrival.data)->stack, arrival.stack, __ATOMIC_RELEASE);
}

/// Whether a flow is completely switched out into `slot`: a slot's `stack` is NULL from the switch into the flow until
/// the one who was switched to has learnt where it is parked. From any thread; acquires all that the flow did.
bool cco_is_parked(const cco_saved_context *slot);

// --------------------------------------------------------------------------------------------------------- contexts

typedef struct cco_context cco_context;

/// The body of a context: gets the context and the argument given to `cco_create`. Returning finishes the context.
typedef void (*cco_entry)(cco_context *context, void *_Nullable argument);

typedef enum cco_state : uint32_t {
  CCO_READY = 1,      ///< has a stack, no frames of the body yet
  CCO_RUNNING = 2,    ///< between a resume and the next suspend
  CCO_SUSPENDED = 3,  ///< parked with live frames
  CCO_FINISHED = 4,   ///< the body has returned; the stack holds nothing
} cco_state;

/// Who a stack belongs to, for the last words of an overflow.
typedef struct cco_label {
  uint64_t id;
  const char *_Nullable name;  ///< UTF-8, terminated
  const char *_Nullable file;  ///< launch place, `file_length` bytes, not terminated
  uint32_t file_length;
  uint32_t line;
} cco_label;

/// The control block, in the top page of its own stack: a parked coroutine costs one page.
struct cco_context {
  cco_saved_context parked;                  ///< where this coroutine is parked, while it is not running
  cco_saved_context *_Nullable caller;     ///< where its resumer is parked, while it is running
  void *_Nullable value;          ///< what crosses with the next switch
  cco_entry _Nullable entry;      ///< NULL asks a stack to leave for good (sanitizer builds)
  void *_Nullable argument;
  cco_state state;
  uint32_t size_class;
  uint64_t serial;                ///< names one use of the stack: stacks are used again, these numbers are not
  char *low;                      ///< lowest usable byte; the guard lies below
  void *_Nullable sanitizer;      ///< TSan's fiber, where that is compiled in
  uint32_t valgrind;              ///< Valgrind's stack number, where that is compiled in
  uint32_t slot_index;            ///< position in its slab
  void *slab;
  void *_Nullable base;           ///< frame of the function whose calls the body's are, where there is one
  const cco_label *_Nullable label;  ///< whose it is just now; valid while the body runs
};

/// One past the highest byte that frames may use: the control block lies right above.
static inline char *cco_high(const cco_context *context) { return (char *)context; }

/// Makes a READY context on a guarded stack of at least `stack_size` bytes (rounded up to a size class). Answers
/// CCO_STACK_TOO_LARGE, CCO_OUT_OF_MAPS or CCO_OUT_OF_MEMORY. Any thread. Tens of ns on a pooled stack, µs on a new
/// one.
cco_status cco_create(size_t stack_size, cco_entry entry, void *_Nullable argument,
                      cco_context *_Nullable *_Nonnull context);

/// Gives a FINISHED context a new body and makes it READY again: the hot stack stays.
cco_status cco_reset(cco_context *context, cco_entry entry, void *_Nullable argument);

/// Gives the stack of a READY or FINISHED context back to the pool. Answers CCO_HAS_LIVE_FRAMES otherwise.
cco_status cco_destroy(cco_context *context);

cco_status cco_refuse_resume(const cco_context *context);
cco_status cco_refuse_suspend(const cco_context *context);

/// Runs a READY or SUSPENDED context until it suspends or finishes. `value` is what its `cco_suspend` answers (lost by
/// a READY one: its body has no suspend to receive it); `*answer` is what it gave to cco_suspend, NULL when it
/// finished.
static inline __attribute__((always_inline)) cco_status cco_resume(cco_context *context, void *_Nullable value,
                                                                   void *_Nullable *_Nonnull answer) {
  if (context->state != CCO_READY && context->state != CCO_SUSPENDED) return cco_refuse_resume(context);
  cco_saved_context here;
  context->caller = &here;
  context->value = value;
  context->state = CCO_RUNNING;
  cco_switch(&here, &context->parked);
  *answer = context->value;
  return CCO_OK;
}

/// Parks the running context and goes back to whoever resumed it, which gets `value`. `*answer` is the next resume's
/// value.
static inline __attribute__((always_inline)) cco_status cco_suspend(cco_context *context, void *_Nullable value,
                                                                    void *_Nullable *_Nonnull answer) {
  char *here = (char *)__builtin_frame_address(0);
  if (context->state != CCO_RUNNING || here < context->low || here >= (char *)context + sizeof(cco_context))
    return cco_refuse_suspend(context);
  context->value = value;
  context->state = CCO_SUSPENDED;
  cco_switch(&context->parked, (cco_saved_context *)context->caller);
  *answer = context->value;
  return CCO_OK;
}

/// Whether an x86-64 processor stalls on a changed MXCSR: `maker` and `family` are what CPUID says, the family with its
/// extension. True for those that are not known.
bool cco_stalls_on_flags(const char *maker, uint32_t family);

/// Hazard 1 again: a body that changed the rounding mode must not leave it to the next body on the same stack.
void cco_restore_floating_point(void);

// ---------------------------------------------------------------------------------------------------------- stacks

enum { CCO_STACK_CLASSES = 7 };
#define CCO_LARGEST_STACK ((size_t)16 << 20)
#define CCO_STANDARD_STACK ((size_t)512 << 10)

/// Index of the smallest class that holds `stack_size` bytes, CCO_STACK_CLASSES when none does.
uint32_t cco_stack_class(size_t stack_size);

/// How stacks are guarded on this machine.
typedef enum cco_guard_kind : uint32_t {
  CCO_GUARD_MARKERS = 1,   ///< MADV_GUARD_INSTALL: no mapping is split
  CCO_GUARD_MPROTECT = 2,  ///< mprotect: two mappings a stack, bounded by vm.max_map_count
} cco_guard_kind;

typedef struct cco_stack_counters {
  uint64_t live;          ///< stacks in use by contexts
  uint64_t pooled;        ///< stacks waiting for reuse, touched or not
  uint64_t pooled_dirty;  ///< of these, with pages that hold memory
  uint64_t peak;          ///< most stacks ever in use at once
  uint64_t mapped_bytes;  ///< address space reserved for slabs
  cco_guard_kind guard;
} cco_stack_counters;
cco_stack_counters cco_stacks(void);

/// How many stacks are pooled with pages that hold memory, as in the counters. Does not start the runtime: a program
/// that has made no context has none, and may be about to exit.
uint64_t cco_pooled_dirty(void);

/// Gives the memory of pooled stacks back to the kernel, in bulk, the longest unused first; keeps the `keep` most
/// recent of each size class hot. Slabs of which nothing is in use are unmapped, one of each class excepted. Returns
/// how many stacks were trimmed. 0.3 to 0.6 µs a stack.
size_t cco_trim(size_t keep);

/// As cco_trim, for those stacks only that nobody has needed since the last call: what a program uses again and again
/// stays hot, what a burst has left behind goes. Meant to be called every few seconds while many stacks are pooled.
size_t cco_trim_surplus(size_t keep);

/// The context whose stack or guard contains `address`, NULL for none. Lock-free and async-signal-safe.
/// `cco_context_at(cco_thread()->running, NULL)` is the one that runs on the calling thread.
const cco_context *_Nullable cco_context_at(const void *address, bool *_Nullable in_guard);

// ----------------------------------------------------------------------------------- what Swift's C library leaves out

/// Names the calling thread, for debuggers and `top`. The kernel keeps the first 15 bytes.
void cco_name_thread(const char *name);

/// From now on `signal` makes the answered descriptor, an eventfd, readable until its 8 bytes are read. For one signal
/// of the process; -1 with errno.
int cco_notice_signal(int signal);

/// Whether the kernel would make a timer's descriptor (timerfd) now.
bool cco_can_make_timer(void);

/// What a descriptor is watched for, and what happened to it: the kernel's bits. A hang-up and an error concern both
/// directions and need not be asked for.
typedef enum cco_poll_events : uint32_t {
  CCO_POLL_READABLE = 0x1,
  CCO_POLL_WRITABLE = 0x4,
  CCO_POLL_FAILED = 0x8,
  CCO_POLL_HUNG_UP = 0x10,
  CCO_POLL_ONCE = 1u << 30,  ///< disarmed by its first event
} cco_poll_events;

typedef struct cco_poll_event {
  uint32_t events;
  int32_t descriptor;
} cco_poll_event;

/// A new epoll descriptor, close-on-exec; -1 with errno.
int cco_poller(void);

/// Watches `descriptor` for `events` from now on, instead of what it was watched for. Answers 0 or an error number.
int cco_poller_arm(int poller, int descriptor, uint32_t events);

/// Takes at most `most` events, 128 at once, without waiting. Answers how many; -1 with errno.
int cco_poller_collect(int poller, cco_poll_event *events, int most);

// What a Swift object's first owner may do while nobody else knows the object: a retain without the atomic instruction.
extern void *swift_nonatomic_retain(void *object);
static inline __attribute__((always_inline)) void cco_retain_unshared(void *object) {
  (void)swift_nonatomic_retain(object);
}

// A retain of a Swift object whose memory is certain and whose life is not: false for one that is in its deinit.
extern void *swift_tryRetain(void *object);
static inline __attribute__((always_inline)) bool cco_try_retain(void *object) {
  return swift_tryRetain(object) != 0;
}

// ------------------------------------------------------------------------------------------- overflow and reports

/// Hazard 6: gives the calling thread an alternate signal stack, once, and installs the process-wide handler, once.
/// Called by whatever is about to run coroutines on a thread.
void cco_guard_thread(void);

/// Which sanitizers the C files were compiled with: the importer does not see `__has_feature`, so Swift asks here.
typedef enum cco_sanitizers : uint32_t {
  CCO_ADDRESS_SANITIZER = 1,
  CCO_THREAD_SANITIZER = 2,
  CCO_LEAK_SANITIZER = 4,
  CCO_VALGRIND = 8,  ///< requests are compiled in; they cost nothing outside Valgrind
} cco_sanitizers;
uint32_t cco_compiled_sanitizers(void);

/// TSan edges for hand-overs it cannot see (a continuation resumed from a dispatch thread). Nothing elsewhere.
void cco_publish(const void *address);
void cco_observe(const void *address);

/// Between the two, TSan takes no note of what this thread reads and writes: for calls into libraries that synchronise
/// where it cannot see. Nothing elsewhere.
void cco_unrecorded_begin(void);
void cco_unrecorded_end(void);

/// The cures of hazards.md, each a bit: for `cco_disable` and `cco_mitigations`.
typedef enum cco_mitigation : uint32_t {
  CCO_MITIGATION_FLOATING_POINT = 1,
  CCO_MITIGATION_ACCESSES = 2,
  CCO_MITIGATION_TASK_LOCALS = 4,
  CCO_MITIGATION_GUARD_MARKERS = 8,
  CCO_MITIGATION_OVERFLOW_REPORT = 16,
  CCO_MITIGATION_GUARDS = 32,
  CCO_MITIGATION_ACCESS_OFFSET = 64,  ///< finding the list head: without it the library's own functions are called
  CCO_MITIGATION_TASKS = 128,
  CCO_MITIGATION_EXCEPTIONS = 256,
  CCO_MITIGATION_TASK_MOVES = 512,  ///< taking a Task to another thread: without it a wait inside of one is refused
} cco_mitigation;

/// Switches cures off, before the first context is made, so that a test can show what each one cures. Answers false,
/// and changes nothing, once the runtime has started. Not for production.
bool cco_disable(uint32_t cures);

/// The cures that are active.
uint32_t cco_mitigations(void);

/// A few lines of English: each hazard, whether its cure is active, and what it fell back to and why. Static storage.
const char *cco_report(void);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#include "CCoroutineProcessor.h"

#endif
