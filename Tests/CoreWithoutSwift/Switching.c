#include "Harness.h"

#include <signal.h>
#include <string.h>
#include <unwind.h>

// ---- states and values

typedef struct life {
  cco_state seen[5];
  int count;
} life;

static cco_saved_context *live(cco_context *context, void *argument) {
  life *mine = argument;
  mine->seen[mine->count++] = cco_state_of(context);
  (void)suspend(context, 0);
  mine->seen[mine->count++] = cco_state_of(context);
  void *answer;
  expect(cco_resume(context, NULL, &answer) == CCO_NOT_RESUMABLE);
  expect(cco_destroy(context) == CCO_HAS_LIVE_FRAMES);
  return NULL;
}

static void states(void) {
  static const cco_state expected[] = {CCO_READY, CCO_RUNNING, CCO_SUSPENDED, CCO_RUNNING, CCO_FINISHED};
  life mine = {.count = 0};
  void *answer;
  cco_context *context = make(1, live, &mine);
  for (int i = 0; i < 2; i++) {
    mine.seen[mine.count++] = cco_state_of(context);
    (void)resume(context, 0);
  }
  mine.seen[mine.count++] = cco_state_of(context);
  expect(memcmp(mine.seen, expected, sizeof expected) == 0);
  expect(cco_resume(context, NULL, &answer) == CCO_NOT_RESUMABLE);
  expect(cco_suspend(context, NULL, &answer) == CCO_NOT_RUNNING);
  destroy(context);
}

enum { STEPS = 100000 };

static cco_saved_context *exchange(cco_context *context, void *argument) {
  intptr_t *wrong = argument;
  for (intptr_t step = 1; step <= STEPS; step++) *wrong += suspend(context, step) != step * 3;
  return NULL;
}

static void values(void) {
  intptr_t wrong = 0;
  cco_context *context = make(64 << 10, exchange, &wrong);
  // The first value is lost.
  wrong += resume(context, -7) != 1;
  for (intptr_t step = 2; step <= STEPS; step++) wrong += resume(context, (step - 1) * 3) != step;
  wrong += resume(context, (intptr_t)STEPS * 3) != 0;
  expect(wrong == 0);
  expect(cco_state_of(context) == CCO_FINISHED);
  destroy(context);
}

// ---- contexts that resume contexts

static cco_saved_context *nest(cco_context *context, void *argument) {
  intptr_t depth = (intptr_t)argument;
  intptr_t sum = depth;
  if (depth > 0) {
    cco_context *inner = make(16 << 10, nest, (void *)(depth - 1));
    for (int i = 0; i < 3; i++) sum += resume(inner, 0);
    (void)resume(inner, 0);
    expect(cco_state_of(inner) == CCO_FINISHED);
    destroy(inner);
  }
  for (int i = 0; i < 3; i++) (void)suspend(context, sum);
  return NULL;
}

static void nested(void) {
  cco_context *context = make(16 << 10, nest, (void *)8);
  // f(0) = 0 and f(n) = n + 3 f(n - 1).
  intptr_t expected = 0;
  for (intptr_t i = 1; i <= 8; i++) expected = i + 3 * expected;
  for (int i = 0; i < 3; i++) expect(resume(context, 0) == expected);
  (void)resume(context, 0);
  destroy(context);
}

// ---- bodies

static cco_saved_context *count_bodies(cco_context *context, void *argument) {
  int *bodies = argument;
  return ++*bodies < 1000 ? &context->parked : NULL;
}

static void next_body(void) {
  int bodies = 0;
  cco_context *context = make(16 << 10, count_bodies, &bodies);
  (void)resume(context, 0);
  expect(bodies == 1000);
  destroy(context);
}

static cco_saved_context *end_into(cco_context *context, void *argument) {
  (void)context;
  return argument;
}

static cco_saved_context *wait_and_tell(cco_context *context, void *argument) {
  *(intptr_t *)argument = suspend(context, 0);
  return NULL;
}

static void end_to_another(void) {
  intptr_t told = -1;
  cco_context *waiting = make(16 << 10, wait_and_tell, &told);
  (void)resume(waiting, 0);
  // The flow that is continued goes back to the one below, as if that had resumed it.
  cco_context *ending = make(16 << 10, end_into, &waiting->parked);
  cco_saved_context here;
  waiting->caller = &here;
  waiting->value = (void *)5;
  cco_switch(&here, &ending->parked);
  expect(told == 5);
  expect(cco_state_of(ending) == CCO_FINISHED && cco_state_of(waiting) == CCO_FINISHED);
  destroy(waiting);
  destroy(ending);
}

static cco_saved_context *look_at_stack(cco_context *context, void *argument) {
  uintptr_t pointer;
#if defined(__aarch64__)
  __asm__ volatile("mov %0, sp" : "=r"(pointer));
#else
  __asm__ volatile("movq %%rsp, %0" : "=r"(pointer));
#endif
  _Alignas(16) volatile char aligned[16];
  aligned[0] = 0;
  expect(pointer % 16 == 0 && (uintptr_t)aligned % 16 == 0);
  expect(pointer >= (uintptr_t)context->low && pointer < (uintptr_t)cco_high(context));
  expect(cco_context_here() == context && cco_context_at(cco_thread()->running, NULL) == context);
  *(bool *)argument = true;
  return NULL;
}

static void alignment(void) {
  bool ran = false;
  cco_context *context = make(16 << 10, look_at_stack, &ran);
  (void)resume(context, 0);
  expect(ran && cco_context_here() == NULL);
  destroy(context);
}

// ---- calls on another stack

typedef struct call_facts {
  cco_context *outer;
  cco_label label;
  int depth, ended;
} call_facts;

static bool is_on(const cco_context *context) {
  return cco_context_here() == context && cco_context_at(cco_thread()->running, NULL) == context;
}

// Parks the flow as a job does: in the control block of its first stack.
static void in_call(void *argument) {
  call_facts *mine = argument;
  const cco_context *here = cco_context_here();
  expect(here != mine->outer && here->argument == mine && here->label == &mine->label && is_on(here));
  expect(cco_state_of(here) == CCO_RUNNING && cco_state_of(mine->outer) == CCO_RUNNING);
  char frame[3000];
  memset(frame, mine->depth, sizeof frame);
  cco_switch(&mine->outer->parked, mine->outer->caller);
  expect(cco_context_here() == here && is_on(here));
  if (mine->depth-- > 0) expect(cco_call_on_stack(16 << 10, in_call, mine, &mine->label, mine) == CCO_OK);
  expect(is_on(here));
  cco_switch(&mine->outer->parked, mine->outer->caller);
  bool is_whole = true;
  for (size_t i = 1; i < sizeof frame; i++) is_whole = is_whole && frame[i] == frame[0];
  expect(is_whole && is_on(here));
  mine->ended++;
}

static cco_saved_context *call(cco_context *context, void *argument) {
  call_facts *mine = argument;
  mine->outer = context;
  expect(cco_call_on_stack(CCO_LARGEST_STACK + 1, in_call, mine, NULL, mine) == CCO_STACK_TOO_LARGE);
  expect(cco_call_on_stack(1 << 20, in_call, mine, &mine->label, mine) == CCO_OK);
  expect(is_on(context));
  return NULL;
}

static void note_call(void *argument) { *(const cco_context **)argument = cco_context_here(); }

static void calls(void) {
  uint64_t before = cco_stacks_in_use();
  call_facts mine = {.depth = 2};
  cco_context *context = make(16 << 10, call, &mine);
  for (int parks = 1; parks <= 6; parks++) {
    (void)resume(context, 0);
    expect(cco_state_of(context) == CCO_SUSPENDED);
    // The stacks below the last one are parked as well.
    expect(cco_drop_dead_pages((const cco_context *const[]){context}, 1) >= 1);
  }
  (void)resume(context, 0);
  expect(mine.ended == 3 && cco_state_of(context) == CCO_FINISHED);
  destroy(context);
  const cco_context *seen = NULL;
  expect(cco_call_on_stack(64 << 10, note_call, &seen, NULL, NULL) == CCO_OK && seen != NULL);
  expect(cco_context_here() == NULL && cco_stacks_in_use() == before);
}

// ---- unwinding

static _Unwind_Reason_Code count_frame(struct _Unwind_Context *frame, void *count) {
  (void)frame;
  return ++*(int *)count > 100 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static cco_saved_context *look_back(cco_context *context, void *argument) {
  (void)context;
  _Unwind_Backtrace(count_frame, argument);
  return NULL;
}

static void backtrace(void) {
  int frames = 0;
  cco_context *context = make(64 << 10, look_back, &frames);
  (void)resume(context, 0);
  expect(frames >= 2 && frames < 20);
  destroy(context);
}

// ---- signals

static const void *_Atomic handled_at;
static void note_place(int signal) {
  (void)signal;
  handled_at = __builtin_frame_address(0);
}

static cco_saved_context *signal_itself(cco_context *context, void *argument) {
  (void)argument;
  raise(SIGUSR1);
  const void *first = handled_at;
  expect(cco_context_at(first, NULL) == context);
  (void)suspend(context, 0);
  raise(SIGUSR1);
  expect(handled_at == first);
  return NULL;
}

static void handler(void) {
  signal(SIGUSR1, note_place);
  cco_context *context = make(16 << 10, signal_itself, NULL);
  (void)resume(context, 0);
  raise(SIGUSR1);
  expect(handled_at != NULL && cco_context_at(handled_at, NULL) == NULL);
  (void)resume(context, 0);
  destroy(context);
}

static const test tests[] = {
    {"A context is ready, running, suspended and finished, and refuses what its state forbids", states, NULL},
    {"A hundred thousand values cross in each direction", values, NULL},
    {"Contexts resume contexts, nine deep", nested, NULL},
    {"A body that returns its own context begins again without a switch", next_body, NULL},
    {"A body that ends continues the flow that it returns", end_to_another, NULL},
    {"A call on another stack is part of the flow that calls, which parks and goes on there", calls, NULL},
    {"The stack pointer of a body is aligned, and on the context's stack", alignment, NULL},
    {"A backtrace from a body ends", backtrace, NULL},
    {"A signal's handler runs on the smallest stack", handler, NULL},
};
const suite switch_suite = SUITE("Switches", tests);
