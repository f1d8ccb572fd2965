#include "Harness.h"

#include "Stack/Lock.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

// ---- hazard 4: nothing of a thread is kept over a switch

typedef struct places {
  cco_context *context;
  const void *inside[3];
  const void *outside[3];
  int count;
} places;

// In one function, so that a compiler that may keep the thread pointer keeps it.
static cco_saved_context *look_at_words(cco_context *context, void *argument) {
  places *mine = argument;
  mine->inside[0] = cco_thread();
  (void)suspend(context, 0);
  mine->inside[1] = cco_thread();
  (void)suspend(context, 0);
  mine->inside[2] = cco_thread();
  return NULL;
}

static void resume_and_look(void *argument) {
  places *mine = argument;
  expect((uintptr_t)pthread_self() - (uintptr_t)cco_thread_pointer() < 4096 ||
         (uintptr_t)cco_thread_pointer() - (uintptr_t)pthread_self() < 4096);
  mine->outside[mine->count++] = cco_thread();
  (void)resume(mine->context, 0);
}

static void resume_on_another(void *argument) {
  resume_and_look(argument);
  // While this thread lives, so that the next one has other words.
  if (((places *)argument)->count < 3) on_thread(resume_on_another, argument);
}

static void words(void) {
  places mine = {.count = 0};
  mine.context = make(64 << 10, look_at_words, &mine);
  on_thread(resume_on_another, &mine);
  expect(mine.inside[0] != mine.inside[1] && mine.inside[1] != mine.inside[2]);
  expect(memcmp(mine.inside, mine.outside, sizeof mine.inside) == 0);
}

// ---- hazards 2, 3 and 14: the words that a switch exchanges or takes along

static __attribute__((noinline)) void **accesses(void) {
  return (void **)(cco_thread_pointer() + cco_facts.exchanged_offset[1]);
}
static __attribute__((noinline)) void **task_locals(void) {
  return (void **)(cco_thread_pointer() + cco_facts.exchanged_offset[0]);
}
static __attribute__((noinline)) void **executors(void) {
  return (void **)(cco_thread_pointer() + cco_facts.state_offset[1]);
}
static __attribute__((noinline)) void **task(void) {
  return (void **)(cco_thread_pointer() + cco_facts.state_offset[0]);
}

static cco_saved_context *keep_heads(cco_context *context, void *argument) {
  int *wrong = argument;
  void *mine = context;
  *wrong += *accesses() != NULL || *task_locals() != NULL || *executors() != NULL || *task() != NULL;
  for (int round = 0; round < 100; round++) {
    // Every third time inside of what stands for a Task, on the careful path.
    void *running = round % 3 == 0 ? mine : NULL;
    *accesses() = *task_locals() = mine;
    *executors() = running;
    *task() = running ? argument : NULL;
    (void)suspend(context, 0);
    *wrong += *accesses() != mine || *task_locals() != mine;
    *wrong += *executors() != running || *task() != (running ? argument : NULL);
  }
  *accesses() = *task_locals() = *executors() = *task() = NULL;
  return NULL;
}

static void resume_with_heads(void *argument) {
  cco_context **contexts = argument;
  int wrong = 0;
  for (int i = 0; i < 10; i++) {
    *accesses() = &wrong;
    *task_locals() = contexts;
    (void)resume(contexts[i], 0);
    wrong += *accesses() != &wrong || *task_locals() != contexts || *executors() != NULL ||
             *task() != NULL;
    *accesses() = *task_locals() = NULL;
  }
  expect(wrong == 0);
}

static void heads(void) {
  int wrong = 0;
  cco_context *contexts[10];
  // Without Swift one word stands for both.
  cco_start();
  cco_facts.state_offset[0] = cco_facts.state_offset[1] + (intptr_t)sizeof(void *);
  for (int i = 0; i < 10; i++) contexts[i] = make(64 << 10, keep_heads, &wrong);
  for (int round = 0; round <= 100; round++) {
    if (round % 2 == 0)
      resume_with_heads(contexts);
    else
      on_thread(resume_with_heads, contexts);
  }
  expect(wrong == 0);
  for (int i = 0; i < 10; i++) destroy(contexts[i]);
}

// ---- many threads

enum { THREADS = 4, TURNS = 2000 };

static cco_saved_context *echo(cco_context *context, void *argument) {
  intptr_t *wrong = argument;
  *wrong += suspend(context, (intptr_t)context->serial) != (intptr_t)context->serial + 1;
  return NULL;
}

static void *use_pool(void *argument) {
  intptr_t *wrong = argument;
  cco_guard_thread();
  for (int turn = 0; turn < TURNS; turn++) {
    cco_context *context = make(16 << 10, echo, wrong);
    intptr_t serial = (intptr_t)context->serial;
    *wrong += resume(context, 0) != serial;
    (void)resume(context, serial + 1);
    destroy(context);
    if (turn % 64 == 0) (void)cco_trim(1);
  }
  return NULL;
}

static void pool(void) {
  pthread_t threads[THREADS];
  intptr_t wrong[THREADS] = {0};
  for (int i = 0; i < THREADS; i++) expect(pthread_create(&threads[i], NULL, use_pool, &wrong[i]) == 0);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    expect(wrong[i] == 0);
  }
  expect(cco_stacks().live == 0);
}

// Two threads hand one context to each other: each resumes it as soon as it is parked.
typedef struct handover {
  cco_context *context;
  _Atomic int turn;
  long plain;  // only ever changed inside the context
} handover;

static cco_saved_context *count_up(cco_context *context, void *argument) {
  handover *mine = argument;
  for (int i = 0; i < TURNS; i++) {
    mine->plain++;
    // From here on the other thread waits for nothing but the end of the switch. Now and then it gets the time to be
    // early.
    mine->turn = 1 - mine->turn;
    if (i % 50 == 0) sched_yield();
    (void)suspend(context, 0);
  }
  return NULL;
}

static void *take_turns(void *argument) {
  handover *mine = argument;
  static _Atomic int next;
  int number = next++;
  cco_guard_thread();
  for (int i = 0; i < TURNS / 2; i++) {
    while (mine->turn != number || !cco_is_parked(&mine->context->parked)) sched_yield();
    (void)resume(mine->context, 0);
  }
  return NULL;
}

static void handed_over(void) {
  handover mine = {.turn = 0};
  mine.context = make(64 << 10, count_up, &mine);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) expect(pthread_create(&threads[i], NULL, take_turns, &mine) == 0);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  (void)resume(mine.context, 0);
  expect(mine.plain == TURNS && cco_state_of(mine.context) == CCO_FINISHED);
}

// ---- threads that end themselves

static cco_saved_context *leave_thread(cco_context *context, void *argument) {
  static const cco_label label = {.id = 7, .name = "leaves", .file = "File.c", .file_length = 6, .line = 3};
  if (argument != NULL) context->label = &label;
  pthread_exit(NULL);
}

static void end_in_context(void *argument) {
  cco_context *context = make(64 << 10, leave_thread, argument);
  (void)resume(context, 0);
}

static void end_thread(void *argument) {
  (void)argument;
  pthread_exit(NULL);
}
static void end_in_whole(void *argument) { cco_call_to_its_end(end_thread, argument); }

static void on_a_thread(void *body) { on_thread((void (*)(void *))body, body); }

// Whether a process was ended by the abort behind such a sentence. qemu-user with pages of 64 KiB turns the abort of a
// thread that is being unwound into a SIGSEGV, after the sentence.
static bool aborted(const ending *end) {
  return end->signal == SIGABRT || (sysconf(_SC_PAGESIZE) > 4096 && end->signal == SIGSEGV);
}

static void ends_of_threads(void) {
  ending end = end_of(on_a_thread, (void *)end_in_context);
  expect(aborted(&end) && says(&end, "coroutine \"leaves\" (id 7) has ended its thread "));
  expect(says(&end, "; launched at File.c:3"));
  end = end_of(end_in_context, NULL);
  expect(aborted(&end) && says(&end, "the body of a coroutine has ended its thread "));
  end = end_of(on_a_thread, (void *)end_in_whole);
  expect(aborted(&end) && says(&end, "code has ended its thread "));
  // Outside of both a thread may end.
  end = end_of(on_a_thread, (void *)end_thread);
  expect(end.signal == 0 && end.code == 0);
}

static cco_lock lock;
static long under_lock;

static void *count_under_lock(void *argument) {
  for (int i = 0; i < 20 * TURNS; i++) {
    cco_lock_take(&lock);
    // Other threads get the time to come in between, and to sleep.
    long before = under_lock;
    if (i % 500 == 0) sched_yield();
    under_lock = before + 1;
    cco_lock_leave(&lock);
  }
  return argument;
}

static void locks(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) expect(pthread_create(&threads[i], NULL, count_under_lock, NULL) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  expect(under_lock == (long)THREADS * 20 * TURNS);
}

static void wait_under_lock(void *argument) {
  (void)argument;
  cco_layer()->spin_locks = 1;
  cco_refuse_locked("spin lock", "a test waits");
}

static void refused(void) {
  ending end = end_of(wait_under_lock, NULL);
  expect(end.signal == SIGABRT);
  expect(says(&end, "Coroutine: a test waits while the thread holds a spin lock; do it outside of the lock\n"));
}

static const test tests[] = {
    {"A context that moves sees the words of the thread it runs on", words, NULL},
    {"Each flow has its own list heads, on both paths of the switch and on other threads", heads, NULL},
    {"Threads that create, trim and destroy at the same time never share a stack", pool, NULL},
    {"Two threads hand a context to each other as soon as it is parked", handed_over, NULL},
    {"A context, or a thread of the library, that ends its thread ends the process with a sentence", ends_of_threads,
     NULL},
    {"The core's lock excludes threads from each other", locks, NULL},
    {"A thread that waits under a lock ends with a sentence", refused, NULL},
};
const suite thread_suite = SUITE("Threads", tests);
