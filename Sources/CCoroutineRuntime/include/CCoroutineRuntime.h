// What only the Swift layer calls: the words that it keeps for each thread, the memory of jobs, reference counts,
// forks, Swift's own words (task-locals, the current Task), and texts. Stacks and switches are in CCoroutine.h.
//
// Linking this module makes switches take care of Swift's words: a constructor tells the core of them (SwiftRuntime.c).
#ifndef CCOROUTINE_RUNTIME_H
#define CCOROUTINE_RUNTIME_H

// By its place: a compiler that is given the maps of the modules alone need not know the folder.
#include "../../CCoroutine/include/CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

// ----------------------------------------------------------------------------------------------------- thread words

/// The Swift layer's words of each thread, in the place that the core has for a layer. They are reached through
/// `cco_layer()`, never by an address that is kept over a switch (hazard 4).
typedef struct cco_layer_words {
  void *_Nullable carrier;          ///< the Carrier that is mounted on this thread, NULL outside of any
  // The next two have the layout of a job's (Flow). They serve a thread outside of any coroutine.
  uintptr_t owner;               ///< the number under which it owns locks, never reused; 0 before it has one
  void *_Nullable locals;        ///< head of the CoroutineLocal bindings
  void *_Nullable settling;      ///< the promises that the outermost settle on this thread has not settled yet
  uintptr_t tasks_left;            ///< if waits inside of a Task are refused: the number of Tasks below a switch
  uint32_t spin_locks;             ///< debug builds: the number of the Swift layer's spin locks that this thread holds
  uint32_t thread_locks;           ///< debug builds: the number of its locks that may sleep
  uint32_t lock_exemptions;        ///< debug builds: above zero while the thread may allocate under a lock
  uint32_t thread_mutexes;         ///< the number of ThreadMutexes that the flow on this thread holds; not counted in
                                   ///< optimised builds without worlds
  uint32_t thread_mutexes_below;   ///< debug builds: of these, the mutexes of the consumers below a generator's body
  uint32_t releases;               ///< how many releases of handlers that will not run are below each other here
} cco_layer_words;
#if !defined(__cplusplus)
_Static_assert(sizeof(cco_layer_words) <= sizeof((cco_thread_words *)0)->layer, "the core has less room for a layer");
#endif

static inline __attribute__((always_inline)) cco_layer_words *cco_layer(void) {
  return (cco_layer_words *)cco_thread()->layer;
}

/// Which of the core's two pairs of words are which of Swift's.
enum { CCO_TASK_LOCALS = 0, CCO_ACCESSES = 1 };  // of `cco_facts.exchanged_offset` (hazards 3 and 2)
enum { CCO_TASK = 0, CCO_EXECUTORS = 1 };        // of `cco_facts.state_offset` (hazard 14)

/// Mitigations as those of `cco_mitigation`, for the same functions.
typedef enum cco_swift_mitigation CCO_IS(uint32_t) {
  CCO_MITIGATION_ACCESSES = 2,
  CCO_MITIGATION_TASK_LOCALS = 4,
  CCO_MITIGATION_ACCESS_OFFSET = 64,  ///< finding the list head: without it the library's own functions are called
  CCO_MITIGATION_TASKS = 128,
  CCO_MITIGATION_TASK_MOVES = 512,  ///< taking a Task to another thread: without it a wait inside of one is refused
} cco_swift_mitigation;

/// Debug builds: ends the process with a sentence, because this thread holds a `lock` over `operation`. Allocates
/// nothing. Resets the counts, so that code that runs before the end (abort's handlers) is not refused too.
__attribute__((noreturn)) void cco_refuse_locked(const char *lock, const char *operation);

// ------------------------------------------------------------------------------------------------------------ forks

/// What a forked child may use.
typedef enum cco_fork CCO_IS(uint32_t) {
  CCO_NOT_FORKED = 0,     ///< not a child; or a child that has begun to use the runtime, and is like any process since
  CCO_FORKED_UNUSED = 1,  ///< a child of a process that had not used the runtime: it may use the runtime
  CCO_FORKED_USED = 2,    ///< a child of a process that had used the runtime: it may not
} cco_fork;

/// What start-up and forks have found out about this process.
typedef struct cco_runtime_facts {
  uint32_t refuses_tasks;  ///< non-zero: a coroutine must not wait while it runs inside of a Task (hazard 14)
  uint32_t forked;         ///< a cco_fork (Fork.c), read by cco_forked
  uint32_t used;           ///< bits of cco_use: what this process has begun to use (Fork.c)
} cco_runtime_facts;
// Sound because `refuses_tasks` is written by cco_start alone, once, before the first context exists; the others are
// atomic.
extern cco_runtime_facts cco_runtime CCO_SWIFT("nonisolated(unsafe)");

/// The word of the lock of the promise graph (PromiseGraph.swift). It is here because Fork.c frees it in a child.
extern uint32_t cco_promise_lock_word CCO_SWIFT("nonisolated(unsafe)");
static inline uint32_t *_Nonnull cco_promise_lock(void) { return &cco_promise_lock_word; }

/// What a forked child loses if its parent has used it: threads, timers, and the work that waits for them. Stacks,
/// generators and locks survive.
typedef enum cco_use CCO_IS(uint32_t) {
  CCO_USES_THREADS = 1,  ///< threads of the library: the worker pool, blocking calls, signals
  CCO_USES_QUEUES = 2,   ///< Dispatch
} cco_use;

/// Whether this process already uses `what`: one load.
static inline __attribute__((always_inline)) bool cco_uses(cco_use what) {
  return __builtin_expect((__atomic_load_n(&cco_runtime.used, __ATOMIC_RELAXED) & (uint32_t)what) != 0, 1);
}

/// What this process may use if it is a forked child: one load. It changes in fork, and at a child's first use.
static inline __attribute__((always_inline)) cco_fork cco_forked(void) {
  return (cco_fork)__atomic_load_n(&cco_runtime.forked, __ATOMIC_RELAXED);
}

/// Called before the first use, and before any lock is taken or object made that a child could inherit in the middle of
/// a change. Returns false in a forked child that may not use `what`. Any thread.
bool cco_begin_use(cco_use what);

// ------------------------------------------------------------------------------------------------ task-locals, Tasks

/// An item of a task-local list: these words, and behind them the value, with the alignment of its type.
typedef struct cco_task_local {
  uintptr_t next;             ///< the next item, with bits for this item's kind; a value has none set
  const void *key;
  const void *_Nullable type; ///< Swift's metadata of the value
} cco_task_local;

/// False only if the calling flow has no task-local bindings. Called after cco_start.
static inline __attribute__((always_inline)) bool cco_may_have_task_locals(void) {
  const char *thread = cco_thread_pointer();
  return (*(const uintptr_t *)(thread + cco_facts.exchanged_offset[CCO_TASK_LOCALS]) |
          *(const uintptr_t *)(thread + cco_facts.state_offset[CCO_TASK])) != 0;
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

/// The current Task of the calling code in Swift's view; NULL for none.
void *_Nullable cco_current_task(void);

/// Makes `task` the current Task of the calling code, and returns the old one. Changes nothing if that word was not
/// found. The calling code must block `task`, or `task` is suspended until the calling code has ended. The caller
/// restores the old one in the same frame. A Task that is made in between inherits the task-locals of `task`.
void *_Nullable cco_exchange_task(void *_Nullable task);

/// Whether a wait here would park a Task's synchronous part together with the coroutine. Called if `refuses_tasks`.
bool cco_is_inside_task(void);

// -------------------------------------------------------------------------------------------- dead pages and cells

/// Returns the memory below the saved stack pointers of `count` coroutines, which are parked, and which the caller
/// keeps from being resumed, to the kernel, in whole pages. Returns the number of stacks that have such pages, with
/// memory or without. Takes 0.2 µs a stack, and about as much for each page with memory.
size_t cco_drop_dead_pages(const cco_context *const _Nonnull *_Nonnull held, size_t count);

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
extern uint32_t cco_worlds CCO_SWIFT("nonisolated(unsafe)");

static inline __attribute__((always_inline)) bool cco_has_worlds(void) {
  return __builtin_expect(__atomic_load_n(&cco_worlds, __ATOMIC_RELAXED) != 0, 0);
}

static inline void cco_worlds_changed(int32_t difference) {
  (void)__atomic_add_fetch(&cco_worlds, (uint32_t)difference, __ATOMIC_RELAXED);
}

// ----------------------------------------------------------------------------------------- hints for the processor

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

// --------------------------------------------------------------------------------------------------- texts, others

/// Escapes `count` bytes of UTF-8 for a line of a report (Escape.c), and returns the number of bytes written. That is
/// at most `room`, and no character and no escape is cut. A text that does not fit ends with `…`, and `is_whole`
/// becomes false. If `is_quoted`, quotation marks and backslashes are escaped too. Async-signal-safe.
size_t cco_escape(char *out, size_t room, const char *text, size_t count, bool is_quoted, bool *is_whole);

/// Happens-before edges for TSan where it sees none (a continuation resumed from a dispatch thread). No code elsewhere.
void cco_publish(const void *address);
void cco_observe(const void *address);

/// Between the two, TSan ignores the reads and writes of this thread: for calls into libraries whose synchronisation it
/// does not see. No code elsewhere.
void cco_unrecorded_begin(void);
void cco_unrecorded_end(void);

/// What cco_hook_tasks found: the hook is ours; it is free again; another library has it; this Swift has none.
typedef enum { CCO_HOOK_SET, CCO_HOOK_FREE, CCO_HOOK_TAKEN, CCO_HOOK_MISSING } cco_hook;

/// Makes `function` what Swift calls for each job that is ready, of a Task without an executor of its own; null undoes
/// that (TaskHook.c). The function is the same at each call. Any thread.
cco_hook cco_hook_tasks(void (*_Nullable function)(void *job));

/// Applies the environment variables about dumps, once. The Swift layer has it, in a folder that its kernel does not
/// name.
void cco_apply_environment(void);

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
