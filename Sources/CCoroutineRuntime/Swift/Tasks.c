// Hazard 14: the current Task and its list of executors are words of the thread.
//
// `Task.immediate` runs its first part on the caller's stack. A coroutine that waits in there leaves two words set in
// libswift_Concurrency's thread-local block: the current Task, and the head of the list of executors, whose nodes are
// on the stack. Another coroutine on the thread would see a foreign Task and allocate from it; ThreadState.c has the
// mitigation. Two fresh threads find both words: the first by trying which word swift_task_getCurrent returns, the
// second by running a job.
//
// A wait may end on another thread. The library's functions that run a job take the addresses of these words when they
// begin, and write to these addresses when they end (hazard 4, in code that is not ours). They would write to the old
// thread's words, which another Task may use by then, and not to the new thread's. So when a flow inside a Task
// continues on another thread, move_frames scans the words between its stack pointer and the top of its stack, and
// those of the stacks on which the flow has begun (cco_call_on_stack). Each address inside the old thread's block of
// that library (32 bytes) becomes the same address in the new thread's block. cco_switch_carefully saves all registers
// on the stack, so the scan covers them too. The scan is conservative: only the library knows addresses in that block,
// so any other word with such a value is a dead copy of one.
//
// This needs a block that belongs to the library alone. If the library is linked statically, these words are in the
// program's block, and the code keeps the thread pointer instead of their addresses; but a thread pointer on the stack
// may also be a pthread_t. There, and if a word is not found or the proof at start-up fails, a coroutine must not wait
// inside a Task (`refuses_tasks`; CoroutineError.insideTask). The current Task, if it was found, is hidden from
// coroutines nevertheless.
#include "SwiftWords.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

// Weak: a program may not link the library, and a future one may rename them. A serial executor is two words.
extern void *_Nullable swift_task_getCurrent(void) __attribute__((weak));
extern void swift_job_run(void *job, void *_Nullable identity, uintptr_t implementation)
    __attribute__((weak, swiftcall));

static const char *description = "not started";
const char *cco_tasks_description(void) { return description; }

// The library's block: its distance from the thread pointer, and its size. Written once by cco_start.
static intptr_t block_offset;
static size_t block_size;

// ---- the two words

// A job that is not a Task: Swift's runtime only calls its `run`.
typedef struct cco_job {
  void *header[2];
  void *scheduler[2];
  uint32_t flags;
  uint32_t id;
  void *reserved[2];
  __attribute__((swiftasynccall)) void (*run)(struct cco_job *job);
  void *more[4];
  void *state;  // ours
} __attribute__((aligned(16))) cco_job;
// The layout is in swift/ABI/Task.h, and part of the stable interface between compiler and runtime.
_Static_assert(offsetof(cco_job, flags) == 0x20 && offsetof(cco_job, run) == 0x38, "a job's layout has changed");
enum { NULLARY_CONTINUATION = 195 };

static __attribute__((swiftasynccall)) void note_job(cco_job *job) { cco_note_inside(job->state); }

static void run_job(cco_piece *search) {
  cco_job job = {.flags = NULLARY_CONTINUATION, .run = note_job, .state = search};
  swift_job_run(&job, NULL, 0);
}

// Finds the word that swift_task_getCurrent returns: stores a mark in one word after the other, on a thread that runs
// nothing else.
static intptr_t find_task_word(void) {
  cco_thread_block block = {.symbol = (const void *)swift_task_getCurrent};
  (void)swift_task_getCurrent();
  if (!cco_find_thread_block(&block)) return 0;
  for (size_t i = 0; i < block.count; i++) {
    void *old = block.words[i];
    block.words[i] = &block;
    bool is_it = swift_task_getCurrent() == (void *)&block;
    block.words[i] = old;
    if (is_it) return (char *)&block.words[i] - cco_thread_pointer();
  }
  return 0;
}

cco_task_words cco_find_task_words(void) {
  cco_task_words words = {0, 0};
  if (swift_task_getCurrent) words.task = find_task_word();
  if (words.task && swift_job_run) words.running = cco_find_head((const void *)swift_job_run, run_job);
  return words;
}

bool cco_is_inside_task(void) { return cco_current_task() != NULL || cco_layer()->tasks_left != 0; }

void *cco_current_task(void) { return swift_task_getCurrent ? swift_task_getCurrent() : NULL; }

void *cco_exchange_task(void *task) {
  if (cco_runtime.refuses_tasks || cco_facts.state_offset[CCO_TASK] == 0) return NULL;
  void **word = (void **)(cco_thread_pointer() + cco_facts.state_offset[CCO_TASK]);
  void *old = *word;
  *word = task;
  return old;
}

static void refuse(const char *why) {
  cco_runtime.refuses_tasks = 1;
  description = why;
}

void cco_tasks_start(cco_task_words a, cco_task_words b) {
  cco_thread_block block = {.symbol = (const void *)swift_task_getCurrent};
  if (!swift_task_getCurrent) {
    description = "not needed: this program does not link Swift's concurrency library";
    cco_mark_active(CCO_MITIGATION_TASKS, true);
    cco_mark_active(CCO_MITIGATION_TASK_MOVES, true);
    return;
  }
  if (cco_is_disabled(CCO_MITIGATION_TASKS))
    return refuse("off: disabled by a test; a wait inside of a Task is refused");
  if (a.task == 0 || a.task != b.task)
    return refuse("off: the word of the current Task was not found; a wait inside of a Task is refused");
  // This word suffices to hide the Task. To move the Task to another thread, the other word is needed too.
  cco_facts.state_offset[CCO_TASK] = cco_facts.state_offset[CCO_EXECUTORS] = a.task;
  if (a.running == 0 || a.running != b.running)
    return refuse("hidden, not taken along: the list of executors was not found; a wait inside of a Task is refused");
  cco_facts.state_offset[CCO_EXECUTORS] = a.running;
  if (cco_is_disabled(CCO_MITIGATION_TASK_MOVES))
    return refuse("hidden, not taken along: disabled by a test; a wait inside of a Task is refused");
  if (!cco_find_thread_block(&block) || !block.is_library)
    return refuse(
        "hidden, not taken along: Swift's libraries are linked statically; a wait inside of a Task is refused");
  block_offset = (char *)block.words - cco_thread_pointer();
  block_size = block.count * sizeof(void *);
}

// ---- a Task that continues on another thread

// Changes the frames between `stack` and the top of its coroutine's stack: addresses of the words of thread `from`
// become addresses of those of thread `to`.
static __attribute__((noinline, no_sanitize("address", "thread", "undefined"))) void move_frames(
    char *stack, const char *from, const char *to) {
  if (block_size == 0) return;
  uintptr_t old = (uintptr_t)(from + block_offset), distance = (uintptr_t)(to - from);
  // A thread's own stack stays with its thread.
  for (const cco_context *context; (context = cco_context_at(stack, NULL)) != NULL;) {
    for (volatile uintptr_t *word = (uintptr_t *)stack; (char *)word < cco_high(context); word++)
      if (*word - old < block_size) *word += distance;
    // The flow has more frames on the stack that has called. A generator's consumer is another flow, with a Task of its
    // own, and moves its frames itself.
    if (!cco_is_call(context)) return;
    stack = cco_sanitizer_saved_stack(context->caller->stack);
  }
}

// This is a generator's body, or a coroutine that was started at once by its launcher.
bool cco_task_leaves(void) {
  if (!cco_runtime.refuses_tasks || cco_context_at(__builtin_frame_address(0), NULL) == NULL) return false;
  cco_layer()->tasks_left++;
  return true;
}

void cco_task_returns(bool is_counted, char *stack, const char *from) {
  const char *here = cco_thread_pointer();
  // A counted flow is on the same thread still, because nothing below the Task has waited.
  if (is_counted) cco_layer()->tasks_left--;
  if (here != from) move_frames(stack, from, here);
}

// The proof: a job begins on this thread and ends on another one. The library must then have written to the other
// thread's list, which is nil again, and not to this thread's.
typedef struct proof {
  cco_context *context;
  bool holds;
} proof;

static void **running_word(void) { return (void **)(cco_thread_pointer() + cco_facts.state_offset[CCO_EXECUTORS]); }

static __attribute__((swiftasynccall)) void suspend_job(cco_job *job) {
  void *ignored = NULL;
  (void)cco_suspend(((proof *)job->state)->context, NULL, &ignored);
}

static __attribute__((noinline)) bool is_running(void) { return *running_word() != NULL; }
static __attribute__((noinline)) void forget_running(void) { *running_word() = NULL; }

static cco_saved_context *run_proof(cco_context *context, void *argument) {
  proof *mine = argument;
  mine->context = context;
  cco_job job = {.flags = NULLARY_CONTINUATION, .run = suspend_job, .state = mine};
  swift_job_run(&job, NULL, 0);
  mine->holds = !is_running();
  forget_running();
  return NULL;
}

static void *finish_proof(void *argument) {
  void *ignored = NULL;
  (void)cco_resume(((proof *)argument)->context, NULL, &ignored);
  return NULL;
}

void cco_tasks_prove(void) {
  if (block_size == 0) return;
  proof mine = {NULL, false};
  cco_context *context = NULL;
  void *ignored = NULL, *mark = &mine;
  if (cco_create(1, run_proof, &mine, &context) == CCO_OK) {
    (void)cco_resume(context, NULL, &ignored);
    // The thread that starts the runtime may run in a Task, whose words must not change.
    void *old = *running_word();
    *running_word() = mark;
    pthread_t thread;
    // The search has had its two threads just now, so one is to be had soon.
    int code = EAGAIN;
    for (int tries = 0; tries < 100 && code != 0; tries++) {
      if (tries > 0) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
      code = pthread_create(&thread, NULL, finish_proof, &mine);
    }
    if (code == 0)
      pthread_join(thread, NULL);
    else
      finish_proof(&mine), mine.holds = false;
    if (*running_word() != mark) mine.holds = false;
    *running_word() = old;
    (void)cco_destroy(context);
  }
  if (!mine.holds) {
    block_size = 0;
    return refuse(
        "hidden, not taken along: a job did not survive a change of threads; a wait inside of a Task is refused");
  }
  description = "on: the current Task and its executors were found, a switch inside of a Task keeps them";
  cco_mark_active(CCO_MITIGATION_TASKS, true);
  cco_mark_active(CCO_MITIGATION_TASK_MOVES, true);
}
