// The tests of the C core without Swift. scripts/aarch64 compiles them with the core, for aarch64 or for this machine.
//
// Each test runs in a process of its own, because most of them ask what a process does that begins with nothing, and
// because a test that dies must not end the others. The program prints its results in the lines of Swift Testing, by
// which .ci/run counts tests.
#ifndef CORE_WITHOUT_SWIFT_HARNESS_H
#define CORE_WITHOUT_SWIFT_HARNESS_H

#include "CCoroutineRuntime.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test {
  const char *name;
  void (*body)(void);
  const char *skipped;  // why the test does not run here; NULL if it runs
} test;

typedef struct suite {
  const char *name;
  const test *tests;
  size_t count;
} suite;
#define SUITE(name, tests) {name, tests, sizeof(tests) / sizeof *(tests)}

extern const suite switch_suite, register_suite, stack_suite, guard_suite, overflow_suite, exception_suite,
    thread_suite, fork_suite;

// Notes an issue, and goes on, unless the condition holds.
#define expect(condition) note((condition), __FILE_NAME__, __LINE__, #condition)
void note(bool holds, const char *file, int line, const char *condition);

// How a forked child ends that calls `body`, and what it writes to standard error.
typedef struct ending {
  int signal;  // 0 if it exits
  int code;
  char words[4096];
} ending;
ending end_of(void (*body)(void *), void *argument);
bool says(const ending *end, const char *words);

// Calls `body` on another thread, which is guarded as the threads of the library are, and waits for its end.
void on_thread(void (*body)(void *), void *argument);

// Whether the kernel can read a byte there.
bool is_readable(const void *address);
size_t page_size(void);

// A new context; the test ends if there is none.
cco_context *make(size_t stack, cco_entry body, void *argument);
void destroy(cco_context *context);

// Recurses until the stack is used up, in frames of about 1,000 bytes.
int exhaust_stack(int depth);

static inline intptr_t resume(cco_context *context, intptr_t value) {
  void *answer = NULL;
  cco_status status = cco_resume(context, (void *)value, &answer);
  expect(status == CCO_OK);
  return (intptr_t)answer;
}

static inline intptr_t suspend(cco_context *context, intptr_t value) {
  void *answer = NULL;
  cco_status status = cco_suspend(context, (void *)value, &answer);
  expect(status == CCO_OK);
  return (intptr_t)answer;
}

#ifdef __cplusplus
}
#endif

#endif
