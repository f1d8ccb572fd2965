#include "Harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cco_saved_context *count_to_three(cco_context *context, void *argument) {
  (void)argument;
  for (int i = 1; i <= 3; i++) (void)suspend(context, i);
  return NULL;
}

// Creates contexts, steps them and destroys them.
static void use_contexts(void *argument) {
  (void)argument;
  for (int i = 0; i < 3; i++) {
    cco_context *context = make(64 << 10, count_to_three, NULL);
    intptr_t sum = 0;
    while (cco_state_of(context) != CCO_FINISHED) sum += resume(context, 0);
    expect(sum == 6);
    destroy(context);
  }
}

static bool is_fine(ending end) { return end.signal == 0 && end.code == 0; }

// ---- the pool

static _Atomic bool may_rest;
static _Atomic int busy;

static void *keep_pool_busy(void *argument) {
  busy++;
  while (!may_rest) {
    for (int i = 0; i < 20; i++) destroy(make(64 << 10, count_to_three, NULL));
    (void)cco_trim(0);
  }
  return argument;
}

static void busy_pool(void) {
  pthread_t threads[2];
  use_contexts(NULL);
  for (int i = 0; i < 2; i++) expect(pthread_create(&threads[i], NULL, keep_pool_busy, NULL) == 0);
  while (busy < 2) sched_yield();
  for (int round = 0; round < 30; round++) expect(is_fine(end_of(use_contexts, NULL)));
  may_rest = true;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

// ---- a fork inside of a context

typedef struct branch {
  pid_t child;
  int resumed;
} branch;

static cco_saved_context *fork_here(cco_context *context, void *argument) {
  branch *mine = argument;
  volatile int local = 17;
  (void)suspend(context, 0);
  mine->child = fork();
  // Both processes go on here, each on its own copy of this stack.
  local += mine->child == 0 ? 1 : 2;
  (void)suspend(context, 0);
  mine->resumed = local;
  return NULL;
}

static void inside(void) {
  branch mine = {.child = -1};
  cco_context *context = make(64 << 10, fork_here, &mine);
  for (int i = 0; i < 3; i++) (void)resume(context, 0);
  expect(cco_state_of(context) == CCO_FINISHED);
  destroy(context);
  if (mine.child == 0) {
    use_contexts(NULL);
    _exit(mine.resumed == 18 ? 0 : 1);
  }
  expect(mine.resumed == 19);
  int status = -1;
  expect(waitpid(mine.child, &status, 0) == mine.child && status == 0);
}

// ---- what a child may use

static void child_of_unused(void *argument) {
  expect(cco_forked() == CCO_FORKED_UNUSED && !cco_uses(CCO_USES_THREADS));
  if (argument != NULL) expect(is_fine(end_of(child_of_unused, NULL)));
  expect(cco_begin_use(CCO_USES_THREADS));
  expect(cco_forked() == CCO_NOT_FORKED && cco_uses(CCO_USES_THREADS));
  use_contexts(NULL);
}

static void child_of_used(void *argument) {
  expect(cco_forked() == CCO_FORKED_USED && cco_layer()->carrier == NULL);
  expect(!cco_begin_use(CCO_USES_THREADS) && !cco_uses(CCO_USES_THREADS));
  if (argument != NULL) expect(is_fine(end_of(child_of_used, NULL)));
  // Contexts need no thread.
  use_contexts(NULL);
  expect(strstr(cco_report(), "stack guards") != NULL);
}

static void uses(void) {
  // The test itself is the child of a process that has not used the runtime.
  int mark = 0;
  expect(is_fine(end_of(child_of_unused, &mark)));
  child_of_unused(&mark);
  cco_layer()->carrier = &mark;
  expect(is_fine(end_of(child_of_used, &mark)));
  expect(cco_layer()->carrier == &mark && cco_uses(CCO_USES_THREADS));
}

// ---- inherited guards

static cco_saved_context *recurse(cco_context *context, void *argument) {
  (void)argument;
  (void)suspend(context, 0);
  (void)exhaust_stack(1 << 28);
  return NULL;
}

static void resume_inherited(void *argument) {
  cco_context *context = argument;
  expect(!is_readable(context->low - 1) && is_readable(context->low));
  (void)resume(context, 0);
}

static void guards(void) {
  cco_guard_thread();
  cco_context *context = make(64 << 10, recurse, NULL);
  cco_label label = {.id = 12, .name = "heir"};
  context->label = &label;
  (void)resume(context, 0);
  ending end = end_of(resume_inherited, context);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"heir\" (id 12) overflowed its stack of 64 KiB"));
}

static const test tests[] = {
    {"A forked child uses the pool, whatever the parent's other threads did with it", busy_pool, NULL},
    {"A context that forks goes on in both processes", inside, NULL},
    {"A child of a process that has used the runtime may not use it, and any other may", uses, NULL},
    {"Guards and reports of inherited stacks work in a forked child", guards, NULL},
};
const suite fork_suite = SUITE("Forks", tests);
