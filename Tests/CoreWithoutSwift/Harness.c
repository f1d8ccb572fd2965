#include "Harness.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const suite *const suites[] = {&switch_suite,   &register_suite,  &stack_suite,  &guard_suite,
                                      &overflow_suite, &exception_suite, &thread_suite, &fork_suite};

// What a test may take, in seconds.
enum { LIMIT = 300 };

static const char *running = "";
static _Atomic int issues;

void note(bool holds, const char *file, int line, const char *condition) {
  if (holds) return;
  issues++;
  // In one write, because a forked child shares the descriptor.
  dprintf(STDOUT_FILENO, "✘ Test \"%s\" recorded an issue at %s:%d: Expectation failed: %s\n", running, file, line,
          condition);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// ---- what tests use

ending end_of(void (*body)(void *), void *argument) {
  ending end = {.signal = -1};
  int ends[2];
  if (pipe(ends) != 0) return end;
  pid_t child = fork();
  if (child == 0) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(LIMIT / 2);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    issues = 0;
    body(argument);
    _exit(issues != 0);
  }
  close(ends[1]);
  size_t length = 0;
  for (ssize_t count; (count = read(ends[0], end.words + length, sizeof end.words - 1 - length)) > 0;)
    length += (size_t)count;
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return end;
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return end;
}

bool says(const ending *end, const char *words) {
  if (strstr(end->words, words) != NULL) return true;
  dprintf(STDOUT_FILENO, "expected: %s\nwritten:  %s\n", words, end->words);
  return false;
}

typedef struct errand {
  void (*body)(void *);
  void *argument;
} errand;

static void *run_errand(void *argument) {
  errand *mine = argument;
  cco_guard_thread();
  mine->body(mine->argument);
  return NULL;
}

void on_thread(void (*body)(void *), void *argument) {
  errand mine = {body, argument};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_errand, &mine) != 0) abort();
  pthread_join(thread, NULL);
}

bool is_readable(const void *address) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  bool is = write(ends[1], address, 1) == 1;
  if (!is && errno != EFAULT) abort();
  close(ends[0]);
  close(ends[1]);
  return is;
}

size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

cco_context *make(size_t stack, cco_entry body, void *argument) {
  cco_context *context = NULL;
  cco_status status = cco_create(stack, body, argument, &context);
  expect(status == CCO_OK);
  if (status != CCO_OK) _exit(1);
  return context;
}

void destroy(cco_context *context) { expect(cco_destroy(context) == CCO_OK); }

__attribute__((noinline)) int exhaust_stack(int depth) {
  volatile char frame[1000];
  frame[depth % 1000] = 1;
  return depth == 0 ? 0 : exhaust_stack(depth - 1) + frame[depth % 1000];
}

// ---- running

// Runs a test in a child. Returns whether it has passed.
static bool run(const test *one) {
  double start = now();
  running = one->name;
  pid_t child = fork();
  if (child == 0) {
    alarm(LIMIT);
    one->body();
    _exit(issues != 0);
  }
  int status = 0;
  bool ended = child > 0 && waitpid(child, &status, 0) == child;
  if (ended && WIFSIGNALED(status))
    printf("✘ Test \"%s\" recorded an issue: it was ended by signal %d\n", one->name, WTERMSIG(status));
  bool passed = ended && status == 0;
  printf("%s Test \"%s\" %s after %.3f seconds.\n", passed ? "✔" : "✘", one->name, passed ? "passed" : "failed",
         now() - start);
  return passed;
}

// Without an argument all tests run; otherwise those whose names contain it. `--pages` prints the size of a page.
int main(int count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count > 1 && strcmp(arguments[1], "--pages") == 0) return printf("%zu\n", page_size()) < 0;
  // In a child, because a test must find a process that has not used the runtime.
  pid_t child = fork();
  if (child == 0) {
    printf("pages of %zu bytes\n%s", page_size(), cco_report());
    fflush(stdout);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  double start = now();
  int ran = 0, failed = 0, some = 0;
  for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
    int before = ran;
    for (size_t j = 0; j < suites[i]->count; j++) {
      const test *one = &suites[i]->tests[j];
      if (count > 1 && strstr(one->name, arguments[1]) == NULL) continue;
      ran++;
      if (one->skipped != NULL)
        printf("➜ Test \"%s\" skipped: \"%s\"\n", one->name, one->skipped);
      else
        failed += !run(one);
    }
    some += ran > before;
  }
  printf("%s Test run with %d test%s in %d suite%s %s after %.3f seconds.\n", failed ? "✘" : "✔", ran,
         ran == 1 ? "" : "s", some, some == 1 ? "" : "s", failed ? "failed" : "passed", now() - start);
  return failed != 0;
}
