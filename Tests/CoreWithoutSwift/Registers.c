#include "Registers.h"

#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

int wrong_registers(uint64_t seed, void (*piece)(void *), void *argument) {
  uint64_t patterns[MOST_REGISTERS], seen[MOST_REGISTERS];
  for (int i = 0; i < MOST_REGISTERS; i++) patterns[i] = (seed + 1) * 0x9E3779B97F4A7C15 + (uint64_t)i * 0x0101010101;
  int count = hold_registers(patterns, seen, piece, argument), wrong = 0;
  for (int i = 0; i < count; i++) wrong += seen[i] != patterns[i];
  return wrong;
}

enum { CONTEXTS = 20, ROUNDS = 500 };

typedef struct holder {
  uint64_t seed;
  cco_context *context;
  int wrong;
} holder;

static void suspend_once(void *argument) { (void)suspend(argument, 0); }
static void resume_once(void *argument) { (void)resume(argument, 0); }

static cco_saved_context *hold(cco_context *context, void *argument) {
  holder *mine = argument;
  for (uint64_t round = 0; round < ROUNDS; round++)
    mine->wrong += wrong_registers(mine->seed * ROUNDS + round, suspend_once, context);
  return NULL;
}

static void switch_between(holder *all) {
  int wrong = 0;
  for (uint64_t i = 0; i < CONTEXTS; i++) {
    all[i] = (holder){.seed = i};
    all[i].context = make(16 << 10, hold, &all[i]);
  }
  for (uint64_t round = 0; round <= ROUNDS; round++)
    for (uint64_t i = 0; i < CONTEXTS; i++)
      wrong += wrong_registers(1000000 + round * CONTEXTS + i, resume_once, all[i].context);
  expect(wrong == 0);
  wrong = 0;
  for (int i = 0; i < CONTEXTS; i++) {
    expect(cco_state_of(all[i].context) == CCO_FINISHED);
    wrong += all[i].wrong;
    destroy(all[i].context);
  }
  expect(wrong == 0);
}

static void kept(void) {
  holder all[CONTEXTS];
  switch_between(all);
}

static volatile sig_atomic_t signals;
static void count_signal(int signal) {
  (void)signal;
  signals = signals + 1;
  volatile double work = signals;
  work = work / 3;
}

static void kept_by_signals(void) {
  signal(SIGALRM, count_signal);
  struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  holder all[CONTEXTS];
  for (int turn = 0; turn < 10000 && (turn < 3 || signals < 20); turn++) switch_between(all);
  setitimer(ITIMER_REAL, &never, NULL);
  expect(signals >= 20);
}

// Loads the pattern, and switches to the next context, in a circle.
typedef struct circle_of_three {
  cco_context *contexts[3];
  int wrong, turns;
} circle_of_three;
typedef struct member {
  circle_of_three *all;
  int index;
} member;

static void switch_on(void *argument) {
  member *mine = argument;
  cco_context *next = mine->all->contexts[(mine->index + 1) % 3];
  cco_switch(&mine->all->contexts[mine->index]->parked, &next->parked);
}

static cco_saved_context *go_round(cco_context *context, void *argument) {
  member *mine = argument;
  for (int i = 0; i < 1000; i++, mine->all->turns++)
    mine->all->wrong += wrong_registers((uint64_t)(mine->index * 1000 + i), switch_on, mine);
  // The first that ends continues the flow that has resumed it; the others are left as they are.
  return context->caller;
}

static void circle(void) {
  circle_of_three all = {.wrong = 0};
  member members[3];
  for (int i = 0; i < 3; i++) {
    members[i] = (member){&all, i};
    all.contexts[i] = make(64 << 10, go_round, &members[i]);
  }
  (void)resume(all.contexts[0], 0);
  expect(all.wrong == 0);
  // The first one has ended its last turn when the others are at theirs.
  expect(all.turns == 2998);
  expect(cco_state_of(all.contexts[0]) == CCO_FINISHED && cco_state_of(all.contexts[1]) == CCO_SUSPENDED);
}

// ---- floating point

static cco_saved_context *set_mode(cco_context *context, void *argument) {
  int *seen = argument;
  fesetround(FE_UPWARD);
  (void)suspend(context, 0);
  *seen = fegetround();
  fesetround(FE_DOWNWARD);
  return NULL;
}

// x86-64 has the mode in the frame of a switch; aarch64 does not, so there it belongs to the thread.
static void rounding(void) {
#if defined(__aarch64__)
  const int after_suspend = FE_UPWARD, inside = FE_TOWARDZERO, after_end = FE_DOWNWARD;
#else
  const int after_suspend = FE_TONEAREST, inside = FE_UPWARD, after_end = FE_TOWARDZERO;
#endif
  int seen = -1;
  cco_context *context = make(64 << 10, set_mode, &seen);
  expect(fegetround() == FE_TONEAREST);
  (void)resume(context, 0);
  expect(fegetround() == after_suspend);
  fesetround(FE_TOWARDZERO);
  (void)resume(context, 0);
  expect(seen == inside);
  expect(fegetround() == after_end);
  fesetround(FE_TONEAREST);
  destroy(context);
}

static cco_saved_context *divide(cco_context *context, void *argument) {
  volatile double one = 1;
  *(double *)argument = one / 3;
  (void)suspend(context, 0);
  *(double *)argument += one / 7;
  return NULL;
}

static void results(void) {
  double sum = 0;
  cco_context *context = make(64 << 10, divide, &sum);
  volatile double one = 1, before = one / 11;
  (void)resume(context, 0);
  volatile double between = before + sum;
  (void)resume(context, 0);
  expect(sum == one / 3 + one / 7);
  expect(between == one / 11 + one / 3);
  destroy(context);
}

// ---- errno

static cco_saved_context *set_error(cco_context *context, void *argument) {
  int *seen = argument;
  errno = ENOENT;
  (void)suspend(context, 0);
  *seen = errno;
  return NULL;
}

static void error_number(void) {
  int seen = 0;
  cco_context *context = make(64 << 10, set_error, &seen);
  errno = EPERM;
  (void)resume(context, 0);
  expect(errno == ENOENT);
  errno = ESRCH;
  (void)resume(context, 0);
  expect(seen == ESRCH && errno == ESRCH);
  destroy(context);
}

static const test tests[] = {
    {"Registers that a call preserves keep their values over switches, on both sides", kept, NULL},
    {"Signals that interrupt switches leave these registers alone", kept_by_signals, NULL},
    {"A switch from one context straight to another keeps them as well", circle, NULL},
    {"The rounding mode belongs to the context on x86-64, and to the thread on aarch64", rounding, NULL},
    {"Floating-point values live over switches", results, NULL},
    {"A switch leaves errno alone, which belongs to the thread", error_number, NULL},
};
const suite register_suite = SUITE("Registers", tests);
