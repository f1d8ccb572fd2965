#include "Harness.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static cco_saved_context *recurse(cco_context *context, void *argument) {
  (void)context, (void)argument;
  (void)exhaust_stack(1 << 28);
  return NULL;
}

static cco_label label(uint64_t id, const char *name, const char *file, uint32_t line) {
  return (cco_label){id, name, file, file ? (uint32_t)strlen(file) : 0, line};
}

typedef struct plan {
  size_t stack;
  cco_entry body;
  cco_label label;
  uint32_t disabled;
  void *argument;
} plan;

static void run_labelled(void *argument) {
  plan *mine = argument;
  cco_context *context = make(mine->stack, mine->body, mine->argument);
  context->label = &mine->label;
  (void)resume(context, 0);
}

static void run_plan(void *argument) {
  plan *mine = argument;
  if (mine->disabled != 0) expect(cco_disable(mine->disabled));
  on_thread(run_labelled, mine);
}

static void launch_site(void) {
  plan mine = {512 << 10, recurse, label(42, "checkout", "Shop/Checkout.swift", 12), 0, NULL};
  ending end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV);
  expect(says(&end, "coroutine \"checkout\" (id 42) overflowed its stack of 512 KiB; launched at "
                    "Shop/Checkout.swift:12. Give it a larger one: co_launch(stack: .bytes(1 << 20)). The fault is in "
                    "its guard.\n"));
}

// With pages of 64 KiB the smallest stack has 64 KiB, and so has the second. What the report advises is larger.
static void smallest_and_largest(void) {
  plan small = {16 << 10, recurse, label(7, NULL, NULL, 0), 0, NULL};
  ending end = end_of(run_plan, &small);
  char expected[200];
  size_t size = page_size() > 16 << 10 ? page_size() : 16 << 10;
  snprintf(expected, sizeof expected, "coroutine (id 7) overflowed its stack of %zu KiB. Give it a larger one: "
                                      "co_launch(stack: .bytes(1 << %d)).", size >> 10, size < 64 << 10 ? 16 : 18);
  expect(end.signal == SIGSEGV && says(&end, expected));
  plan large = {16 << 20, recurse, label(1, "deep", "a.swift", 3), 0, NULL};
  end = end_of(run_plan, &large);
  expect(end.signal == SIGSEGV && says(&end, "overflowed its stack of 16 MiB; launched at a.swift:3. No larger"));
}

static void by_mprotect(void) {
  plan mine = {64 << 10, recurse, label(9, "old kernel", "b.swift", 4), CCO_MITIGATION_GUARD_MARKERS, NULL};
  ending end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"old kernel\" (id 9) overflowed its stack of 64 KiB"));
}

static void hostile(void) {
  plan mine = {64 << 10, recurse, label(42, "a\n\x1B[2J\u202Eb\xFF", "Shop/\xC2\x9B.swift", 12), 0, NULL};
  ending end = end_of(run_plan, &mine);
  expect(says(&end, "coroutine \"a\\n\\u{1B}[2J\\u{202E}b\\xFF\" (id 42) overflowed"));
  expect(says(&end, "launched at Shop/\\u{9B}.swift:12. "));
}

static void silent(void) {
  plan mine = {64 << 10, recurse, label(9, "mute", "b.swift", 4), CCO_MITIGATION_OVERFLOW_REPORT, NULL};
  ending end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV && strstr(end.words, "mute") == NULL);
}

// ---- writes below a stack without a recursion

static cco_saved_context *write_below(cco_context *context, void *argument) {
  *(volatile char *)(context->low - (intptr_t)argument) = 1;
  return NULL;
}

static void write_into_guard(void) {
  plan mine = {64 << 10, write_below, label(3, "probe", NULL, 0), 0, (void *)1};
  ending end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"probe\" (id 3) overflowed its stack of 64 KiB"));
}

// A frame that is larger than the guard, whose lowest byte is in the guard of the stack below.
static __attribute__((noinline)) void make_frame(size_t size) {
  volatile char *frame = __builtin_alloca(size);
  frame[0] = 1;
}

static cco_saved_context *jump(cco_context *context, void *below) {
  (void)context;
  make_frame((size_t)((char *)__builtin_frame_address(0) - ((cco_context *)below)->low) + 4096);
  return NULL;
}

static cco_saved_context *do_nothing(cco_context *context, void *argument) {
  (void)context, (void)argument;
  return NULL;
}

static void jump_over(void *argument) {
  plan *mine = argument;
  mine->argument = make(mine->stack, do_nothing, NULL);
  run_plan(mine);
}

static void large_frame(void) {
  plan mine = {64 << 10, jump, label(4, "wide", NULL, 0), 0, NULL};
  ending end = end_of(jump_over, &mine);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"wide\" (id 4) overflowed its stack of 64 KiB"));
  expect(says(&end, "in the guard of another coroutine's stack: one frame is larger than the guard.\n"));
}

// ---- who is named

typedef struct pair {
  bool inner_overflows;
  cco_label inner, outer;
} pair;

static cco_saved_context *suspend_then_recurse(cco_context *context, void *argument) {
  (void)suspend(context, 0);
  return recurse(context, argument);
}

static cco_saved_context *resume_inner(cco_context *context, void *argument) {
  pair *mine = argument;
  context->label = &mine->outer;
  cco_context *inner = make(64 << 10, suspend_then_recurse, NULL);
  inner->label = &mine->inner;
  (void)resume(inner, 0);
  if (mine->inner_overflows) (void)resume(inner, 0);
  return recurse(context, NULL);
}

static void run_pair(void *argument) { (void)resume(make(64 << 10, resume_inner, argument), 0); }
static void run_pair_on_thread(void *argument) { on_thread(run_pair, argument); }

static void nested(void) {
  pair mine = {true, label(2, "inner", NULL, 0), label(1, "outer", NULL, 0)};
  ending end = end_of(run_pair_on_thread, &mine);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"inner\" (id 2) overflowed its stack of 64 KiB"));
  mine.inner_overflows = false;
  end = end_of(run_pair_on_thread, &mine);
  expect(end.signal == SIGSEGV && says(&end, "coroutine \"outer\" (id 1) overflowed its stack of 64 KiB"));
}

// ---- other faults

static cco_saved_context *touch(cco_context *context, void *place) {
  (void)context;
  *(volatile char *)place = 1;
  return NULL;
}

static cco_saved_context *send(cco_context *context, void *argument) {
  (void)context, (void)argument;
  raise(SIGSEGV);
  return NULL;
}

static char *wild;
static void check_fault(int signal, siginfo_t *info, void *interrupted) {
  _exit(signal == SIGSEGV && info->si_addr == wild && interrupted != NULL ? 77 : 78);
}

static void run_under_handler(void *argument) {
  struct sigaction action = {.sa_sigaction = check_fault, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, NULL);
  run_plan(argument);
}

static void other_faults(void) {
  wild = mmap(NULL, page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  plan mine = {64 << 10, touch, label(1, "wild", NULL, 0), 0, wild};
  ending end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV && strstr(end.words, "overflowed") == NULL);
  expect(end_of(run_under_handler, &mine).code == 77);
  mine.body = send;
  end = end_of(run_plan, &mine);
  expect(end.signal == SIGSEGV && strstr(end.words, "overflowed") == NULL);
}

static void leave(int signal) {
  stack_t now;
  char here;
  bool is_on_it = sigaltstack(NULL, &now) == 0 && &here >= (char *)now.ss_sp && &here < (char *)now.ss_sp + now.ss_size;
  _exit(signal == SIGSEGV && is_on_it ? 79 : 80);
}

static void run_before(void *argument) {
  signal(SIGSEGV, leave);
  run_plan(argument);
}

static void chained(void) {
  plan mine = {64 << 10, recurse, label(5, "chained", NULL, 0), 0, NULL};
  ending end = end_of(run_before, &mine);
  expect(end.code == 79 && says(&end, "coroutine \"chained\" (id 5) overflowed"));
}

static void read_signal_stack(void *argument) { sigaltstack(NULL, argument); }

static void signal_stacks(void) {
  stack_t mine, other;
  expect(sigaltstack(NULL, &mine) == 0 && (mine.ss_flags & SS_DISABLE));
  on_thread(read_signal_stack, &other);
  expect(!(other.ss_flags & SS_DISABLE) && other.ss_size >= 32 << 10);
  // It is gone with its thread.
  expect(!is_readable(other.ss_sp));
}

static const test tests[] = {
    {"The report of a recursion names the coroutine, its number, its stack and its launch site", launch_site, NULL},
    {"A report knows the smallest and the largest stack", smallest_and_largest, NULL},
    {"Guards made by mprotect lead to a report", by_mprotect, NULL},
    {"A report shows control characters as escapes", hostile, NULL},
    {"Without the mitigation there is no report", silent, NULL},
    {"A write below the stack is reported", write_into_guard, NULL},
    {"A frame that jumps over its guard into another one is reported as that", large_frame, NULL},
    {"If one context has resumed another, the running one is named", nested, NULL},
    {"Other faults are not reported, and go to the previous handler with all its arguments", other_faults, NULL},
    {"After the report the previous handler runs, on the alternate stack", chained, NULL},
    {"Each thread has an alternate signal stack, which is freed with it", signal_stacks, NULL},
};
const suite overflow_suite = SUITE("Overflow reports", tests);
