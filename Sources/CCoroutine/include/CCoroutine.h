// The C core of Coroutine: stacks and switches. It knows no queue, no job and no Swift type.
//
//   saved context   the state of a parked flow of control: a saved stack pointer, and the two list heads that Swift
//                   keeps in thread-local storage for it (hazards 2 and 3). A coroutine has one, and so has the flow
//                   that resumed it. A Task and C++ exceptions are rarer, and are saved in the flow's own frame
//                   (hazards 14 and 15).
//   context         a coroutine: a guarded stack whose top page holds this control block.
//   switch          parks the running flow in one saved context, and continues the flow parked in another.
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

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

// ---------------------------------------------------------------------------------------------------- status codes

/// The result of a call. Misuse is a result, never undefined behaviour; `cco_status_message` has the sentence.
typedef enum cco_status : int32_t {
  CCO_OK = 0,
  CCO_STACK_TOO_LARGE = 1,   ///< beyond the largest size class (CCO_LARGEST_STACK)
  CCO_OUT_OF_MAPS = 2,       ///< vm.max_map_count reached while guarding a stack with mprotect
  CCO_OUT_OF_MEMORY = 3,     ///< the kernel refused address space (RLIMIT_AS, vm.overcommit_memory)
  CCO_NOT_RESUMABLE = 4,     ///< resume of a context that is running or finished
  CCO_NOT_RUNNING = 5,       ///< suspend of a context that is not running, or from a stack that is not its own
  CCO_HAS_LIVE_FRAMES = 6,   ///< destroy of a context that is suspended or running
} cco_status;

/// One English sentence that says what happened and what to do about it. Static storage.
const char *cco_status_message(cco_status status);

// ------------------------------------------------------------------------------------------------- threads and TLS

/// The words of each thread. They are reached through `cco_thread()`, never by an address that is kept over a switch,
/// because the same code may continue on another thread (hazard 4).
typedef struct cco_thread_words {
  void *_Nullable carrier;          ///< the Swift layer's Carrier that is mounted on this thread, NULL outside of any
  // The next two have the layout of a job's (the Swift layer's Flow). They serve a thread outside of any coroutine.
  uintptr_t owner;               ///< the number under which it owns locks, never reused; 0 before it has one
  void *_Nullable locals;        ///< head of the CoroutineLocal bindings
  void *_Nullable settling;      ///< the promises that the outermost settle on this thread has not settled yet
  void *_Nullable no_accesses;   ///< replaces Swift's access list if that was not found
  void *_Nullable no_task_locals;  ///< replaces Swift's task-local list if that was not found
  /// The saved stack pointer that this thread switched to last, so an address in the stack that runs now. (The address
  /// of the saved context would not do: a coroutine that waits on a second stack is parked in the block of its first.)
  /// Only the overflow report reads it, because the address of a fault is not enough (hazard 6).
  const void *_Nullable running;
  uintptr_t tasks_left;            ///< if waits inside of a Task are refused: the number of Tasks below a switch
  uint32_t spin_locks;             ///< debug builds: the number of the Swift layer's spin locks that this thread holds
  uint32_t thread_locks;           ///< debug builds: the number of its locks that may sleep
  uint32_t lock_exemptions;        ///< debug builds: above zero while the thread may allocate under a lock
  uint32_t thread_mutexes;         ///< debug builds: the number of ThreadMutexes that the flow on this thread holds
  uint32_t thread_mutexes_below;   ///< debug builds: of these, the mutexes of the consumers below a generator's body
  const void *_Nullable found;       ///< the context that cco_context_here has found last on this thread, or NULL,
  const void *_Nullable found_low;   ///< the lowest address of its stack,
  uintptr_t found_maps;              ///< and the number of changes of the mappings at that time
  void *_Nullable no_state[2];     ///< replace the words of a Task or of C++ exceptions if those were not found
} cco_thread_words;

/// What a forked child may use.
typedef enum cco_fork : uint32_t {
  CCO_NOT_FORKED = 0,     ///< not a child; or a child that has begun to use the runtime, and is like any process since
  CCO_FORKED_UNUSED = 1,  ///< a child of a process that had not used the runtime: it may use the runtime
  CCO_FORKED_USED = 2,    ///< a child of a process that had used the runtime: it may not
} cco_fork;

/// The results of start-up. `cco_start` writes them once; offsets are from the thread pointer.
typedef struct cco_runtime_facts {
  intptr_t words_offset;        ///< of this thread's cco_thread_words
  intptr_t accesses_offset;     ///< of the head of Swift's list of dynamic accesses, or of `no_accesses`
  intptr_t task_locals_offset;  ///< of the head of Swift's task-local list, or of `no_task_locals`
  intptr_t task_offset;         ///< of Swift's "current Task" word, or of `no_state`
  intptr_t executors_offset;      ///< of the head of Swift's list of running executors, or of `no_state`
  intptr_t exceptions_offset;   ///< of the C++ runtime's two words about exceptions, or of `no_state`
  uint32_t careful;             ///< non-zero: switches go out of line (sanitizers, a mitigation that fell back)
  uint32_t refuses_tasks;       ///< non-zero: a coroutine must not wait while it runs inside of a Task (hazard 14)
  uint32_t reconciles;          ///< non-zero: this processor stalls on a changed MXCSR, so switches reconcile it;
                                ///< decided by CPUID, or by the environment variable COROUTINE_RECONCILE (0 or 1)
  uint32_t forked;              ///< a cco_fork (Fork.c), read by cco_forked
  uint32_t used;                ///< bits of cco_use: what this process has begun to use (Fork.c)
} cco_runtime_facts;
// Sound because only cco_start writes it, once, before the first context exists; `forked` and `used` are atomic.
// (Swift reads the attribute.)
extern cco_runtime_facts cco_facts __attribute__((swift_attr("nonisolated(unsafe)")));

/// The word of the lock of the promise graph (PromiseGraph.swift). It is here because Fork.c frees it in a child.
extern uint32_t cco_promise_lock_word __attribute__((swift_attr("nonisolated(unsafe)")));
static inline uint32_t *_Nonnull cco_promise_lock(void) { return &cco_promise_lock_word; }

/// Sets all of `cco_facts`. Idempotent, thread-safe; every function below that makes a context calls it.
void cco_start(void);

/// What a forked child loses if its parent has used it: threads, timers, and the work that waits for them. Stacks,
/// generators and locks survive.
typedef enum cco_use : uint32_t {
  CCO_USES_THREADS = 1,  ///< threads of the library: the worker pool, blocking calls, signals
  CCO_USES_QUEUES = 2,   ///< Dispatch
} cco_use;

/// Whether this process already uses `what`: one load.
static inline __attribute__((always_inline)) bool cco_uses(cco_use what) {
  return __builtin_expect((__atomic_load_n(&cco_facts.used, __ATOMIC_RELAXED) & (uint32_t)what) != 0, 1);
}

/// What this process may use if it is a forked child: one load. It changes in fork, and at a child's first use.
static inline __attribute__((always_inline)) cco_fork cco_forked(void) {
  return (cco_fork)__atomic_load_n(&cco_facts.forked, __ATOMIC_RELAXED);
}

/// Called before the first use, and before any lock is taken or object made that a child could inherit in the middle of
/// a change. Returns false in a forked child that may not use `what`. Any thread.
bool cco_begin_use(cco_use what);

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

/// Debug builds: ends the process with a sentence, because this thread holds a `lock` over `operation`. Allocates
/// nothing. Resets the counts, so that code that runs before the end (abort's handlers) is not refused too.
__attribute__((noreturn)) void cco_refuse_locked(const char *lock, const char *operation);

/// Calls cco_start unless it has run: one load, which acquires what cco_start has written.
static inline __attribute__((always_inline)) void cco_start_if_needed(void) {
  if (__builtin_expect(__atomic_load_n(&cco_facts.careful, __ATOMIC_ACQUIRE) != 0, 0)) cco_start();
}

/// An item of a task-local list: these words, and behind them the value, with the alignment of its type.
typedef struct cco_task_local {
  uintptr_t next;             ///< the next item, with bits for this item's kind; a value has none set
  const void *key;
  const void *_Nullable type; ///< Swift's metadata of the value
} cco_task_local;

/// False only if the calling flow has no task-local bindings. Called after cco_start.
static inline __attribute__((always_inline)) bool cco_may_have_task_locals(void) {
  const char *thread = cco_thread_pointer();
  return (*(const uintptr_t *)(thread + cco_facts.task_locals_offset) |
          *(const uintptr_t *)(thread + cco_facts.task_offset)) != 0;
}

/// The most recent task-local binding that the calling flow sees, in a Task or outside of one, and the binding after
/// `item`. NULL at the end, and if the bindings cannot be read.
const cco_task_local *_Nullable cco_task_locals(void);
const cco_task_local *_Nullable cco_next_task_local(const cco_task_local *item);

/// Makes `first` and its followers the bindings of the calling flow, which has none, until cco_leave_task_locals. At
/// that call the flow must have exactly these bindings again. The items belong to the caller.
void cco_enter_task_locals(const cco_task_local *first);
void cco_leave_task_locals(void);

/// What cco_put_task_locals_aside has found: the thread's own bindings, and the Task that it runs.
typedef struct cco_aside {
  void *_Nullable bindings;
  void *_Nullable task;
} cco_aside;

/// Begins a flow without bindings and outside of any Task, on a thread that may have both: a handler that runs in a
/// loop of other code's. Ended on the same thread, when the flow has left its bindings.
cco_aside cco_put_task_locals_aside(void);
void cco_take_task_locals_back(cco_aside aside);

/// Whether the bindings of a launching flow can be read (TaskLocals.c).
bool cco_inherits_task_locals(void);

/// The current Task of the calling code in Swift's view; NULL for none.
void *_Nullable cco_current_task(void);

/// Makes `task` the current Task of the calling code, and returns the old one. Changes nothing if that word was not
/// found. The calling code must block `task`, or `task` is suspended until the calling code has ended. The caller
/// restores the old one in the same frame. A Task that is made in between inherits the task-locals of `task`.
void *_Nullable cco_exchange_task(void *_Nullable task);

/// Whether a wait here would park a Task's synchronous part together with the coroutine. Called if `refuses_tasks`.
bool cco_is_inside_task(void);

// --------------------------------------------------------------------------------------------------------- contexts

/// The state of a parked flow of control. Valid while that flow is parked.
typedef struct cco_saved_context {
  void *_Nullable stack;        ///< Boost's fcontext_t, the saved stack pointer; with sanitizers Sanitizer.c's record
  void *_Nullable task_locals;  ///< head of Swift's task-local list (hazard 3)
  void *_Nullable accesses;     ///< head of Swift's list of dynamic accesses (hazard 2)
  void *_Nullable spare;        ///< with `accesses` the two words that Swift's functions need on the careful path
} cco_saved_context;

/// Whether a flow is completely switched out into `saved`. `stack` is NULL while the flow runs. The next flow sets it
/// when the switch is complete. From any thread; acquires all that the flow did.
bool cco_is_parked(const cco_saved_context *saved);

typedef struct cco_context cco_context;

/// The body of a context. It gets the context and the argument of `cco_create`. Its return ends the body, and the
/// result is the flow to continue: NULL is the resumer's. The address of the context's own `parked` means that the
/// entry function is called again without a switch, because the stack already has its next body.
typedef cco_saved_context *_Nullable (*cco_entry)(cco_context *context, void *_Nullable argument);

typedef enum cco_state : uint32_t {
  CCO_READY = 1,      ///< has a stack, no frames of the body yet
  CCO_RUNNING = 2,    ///< its body runs
  CCO_SUSPENDED = 3,  ///< parked with live frames
  CCO_FINISHED = 4,   ///< the body has returned; the stack holds nothing
} cco_state;

/// Escapes `count` bytes of UTF-8 for a line of a report (Escape.c), and returns the number of bytes written. That is
/// at most `room`, and no character and no escape is cut. A text that does not fit ends with `…`, and `is_whole`
/// becomes false. If `is_quoted`, quotation marks and backslashes are escaped too. Async-signal-safe.
size_t cco_escape(char *out, size_t room, const char *text, size_t count, bool is_quoted, bool *is_whole);

/// The owner of a stack, for the report of an overflow.
typedef struct cco_label {
  uint64_t id;
  const char *_Nullable name;  ///< UTF-8, terminated; escaped for a place between quotation marks
  const char *_Nullable file;  ///< of the launch site, `file_length` bytes, not terminated
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
  const cco_label *_Nullable label;  ///< the coroutine that uses the stack; valid while the body runs
};

/// One past the highest byte that frames may use: the control block lies right above.
static inline char *cco_high(const cco_context *context) { return (char *)context; }

/// Makes a READY context on a guarded stack of at least `stack_size` bytes (rounded up to a size class). Returns
/// CCO_STACK_TOO_LARGE, CCO_OUT_OF_MAPS or CCO_OUT_OF_MEMORY. Any thread. Tens of ns on a pooled stack, µs on a new
/// one.
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
typedef enum cco_guard_kind : uint32_t {
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

/// Returns the memory below the saved stack pointers of `count` coroutines, which are parked, and which the caller
/// keeps from being resumed, to the kernel, in whole pages. Returns the number of stacks that have such pages, with
/// memory or without. Takes 0.2 µs a stack, and about as much for each page with memory.
size_t cco_drop_dead_pages(const cco_context *const _Nonnull *_Nonnull held, size_t count);

/// The number of stacks in use, as in the counters: one load.
uint64_t cco_stacks_in_use(void);

/// The context whose stack or guard contains `address`, NULL for none. Lock-free and async-signal-safe.
/// `cco_context_at(cco_thread()->running, NULL)` is the context that runs on the calling thread.
const cco_context *_Nullable cco_context_at(const void *address, bool *_Nullable in_guard);

/// The context on whose stack the caller runs; NULL outside of any. Takes a few instructions if this thread has found
/// the same context before.
const cco_context *_Nullable cco_context_here(void);

// ----------------------------------------------------------------------------------------------------------- cells

/// The number of bytes of a cell: the memory of a job (Job.swift).
#define CCO_CELL_BYTES 256

/// A cell, aligned to 64 bytes, with undefined content. Any thread; a few instructions, unless the thread's cells are
/// used up. Ends the process with a sentence if there is no memory.
void *cco_cell_take(void);

/// Gives a cell back. Any thread, also another one than that which has taken it.
void cco_cell_give(void *cell);

/// About how many cells no thread keeps for itself.
uint64_t cco_cells_pooled(void);

/// Returns the memory of cells that were not used since the last call to the kernel, except for `keep` of them, in
/// blocks of 64 KiB all of whose cells are free. Returns the number of trimmed cells. Takes some tens of ns a cell. If
/// it finds few such blocks, some of the next calls look at no cell.
size_t cco_cells_trim(size_t keep);

/// The number of calls of cco_cells_trim that have looked at cells.
uint64_t cco_cells_walks(void);

// ------------------------------------------------------------------------------------------------- Swift objects

// A retain without the atomic instruction, for an object that no other thread has yet.
extern void *swift_nonatomic_retain(void *object);
static inline __attribute__((always_inline)) void cco_retain_unshared(void *object) {
  (void)swift_nonatomic_retain(object);
}

// Retains a Swift object whose memory is valid, unless it is in its deinit; returns whether it has retained it.
extern void *swift_tryRetain(void *object);
static inline __attribute__((always_inline)) bool cco_try_retain(void *object) {
  return swift_tryRetain(object) != 0;
}

// A reference to a Swift object's memory only, as an `unowned` variable has it: the memory stays readable after the
// object's deinit.
extern void *swift_unownedRetain(void *object);
extern void swift_unownedRelease(void *object);
static inline __attribute__((always_inline)) void cco_retain_memory(void *object) { (void)swift_unownedRetain(object); }
static inline __attribute__((always_inline)) void cco_release_memory(void *object) { swift_unownedRelease(object); }

// Whether a Swift object has one strong reference and is not in its deinit, as `isKnownUniquelyReferenced` says.
extern bool swift_isUniquelyReferenced_nonNull_native(const void *object);
static inline __attribute__((always_inline)) bool cco_has_one_reference(void *object) {
  return swift_isUniquelyReferenced_nonNull_native(object);
}

// Whether a Swift object has so many strong references, and no weak one (the runtime counts one for the object itself).
// If the callers have them all, no other thread can get one.
extern size_t swift_retainCount(void *object);
extern size_t swift_weakRetainCount(void *object);
static inline __attribute__((always_inline)) bool cco_has_references(void *object, size_t count) {
  return swift_retainCount(object) == count && swift_weakRetainCount(object) == 1;
}

/// Hazard 16: every retain before this line happens before every store after it. No instruction.
///
/// LLVM's optimizer for Swift moves a retain down past stores, atomic ones included. After the store that gives up a
/// lock, or that publishes an outcome, another thread may already have released the object.
static inline __attribute__((always_inline)) void cco_order_retains(void) { __asm__ volatile("" ::: "memory"); }

// -------------------------------------------------------------------------------------------------------- worlds

/// The number of simulated worlds that run now. Any thread changes it, atomically, around the run of its world. It is
/// read without order, because only the thread that runs a world must see its own change.
extern uint32_t cco_worlds __attribute__((swift_attr("nonisolated(unsafe)")));

static inline __attribute__((always_inline)) bool cco_has_worlds(void) {
  return __builtin_expect(__atomic_load_n(&cco_worlds, __ATOMIC_RELAXED) != 0, 0);
}

static inline void cco_worlds_changed(int32_t difference) {
  (void)__atomic_add_fetch(&cco_worlds, (uint32_t)difference, __ATOMIC_RELAXED);
}

// ------------------------------------------------------------------------------------------- overflow and reports

/// Hazard 6: gives the calling thread an alternate signal stack, once, and installs the process-wide handler, once.
/// Called before a thread runs coroutines.
void cco_guard_thread(void);

/// Calls `body`. If it ends the thread (pthread_exit) instead of returning, the process ends with a sentence, as it
/// does if the body of a coroutine ends its thread.
void cco_call_to_its_end(void (*body)(void *_Nullable argument), void *_Nullable argument);

/// Which sanitizers the C files were compiled with: the importer does not see `__has_feature`, so Swift asks here.
typedef enum cco_sanitizers : uint32_t {
  CCO_ADDRESS_SANITIZER = 1,
  CCO_THREAD_SANITIZER = 2,
  CCO_LEAK_SANITIZER = 4,
  CCO_VALGRIND = 8,  ///< requests are compiled in; they cost nothing outside Valgrind
} cco_sanitizers;
uint32_t cco_compiled_sanitizers(void);

/// Happens-before edges for TSan where it sees none (a continuation resumed from a dispatch thread). No code elsewhere.
void cco_publish(const void *address);
void cco_observe(const void *address);

/// Between the two, TSan ignores the reads and writes of this thread: for calls into libraries whose synchronisation it
/// does not see. No code elsewhere.
void cco_unrecorded_begin(void);
void cco_unrecorded_end(void);

/// The mitigations of hazards.md, each a bit: for `cco_disable` and `cco_mitigations`.
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

/// Switches mitigations off, before the first context is made, so that a test can show what each one prevents. Returns
/// false, and changes nothing, once the runtime has started. Not for production.
bool cco_disable(uint32_t mitigations);

/// The mitigations that are active.
uint32_t cco_mitigations(void);

/// Interrupts a thread of this process by SIGURG, and writes the frames of the coroutine that it runs into `frames`:
/// the interrupted address, then return addresses, `most` at most. Returns their number; 0 if the thread runs no
/// coroutine or does not answer within `nanoseconds`, if another thread asks meanwhile, if the program handles the
/// signal, and in builds with a sanitizer. Blocks the caller until then. Any thread but that one (Inspect/AskThread.c).
size_t cco_ask_thread(int thread, uintptr_t *frames, size_t most, uint64_t nanoseconds);

/// Whether the thread with these frames, as cco_ask_thread gives them, waits for the initial value of a `static let` or
/// a global of Swift. Takes locks of the loader; any thread (Inspect/Once.c).
bool cco_waits_for_initial_value(const uintptr_t *frames, size_t count);

/// A few lines of English: each hazard, whether its mitigation is active, and what it fell back to and why. Static
/// storage.
const char *cco_report(void);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#include "CCoroutineInspect.h"
#include "CCoroutineProcessor.h"
#include "CCoroutineSwitch.h"

#endif
