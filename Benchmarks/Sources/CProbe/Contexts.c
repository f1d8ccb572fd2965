// The C core without Swift around it: what a resume and a suspend cost, and what a whole coroutine costs.
#include "CProbe.h"
#include "FloatingPointFlags.h"

#include <CCoroutine.h>
#include <malloc.h>
#include <stddef.h>

// A value that asks the body to return.
static char stop;

// What a coroutine counts its resumes into.
typedef struct resumed {
  cco_context *context;
  uint64_t resumes;
} resumed;

static uint64_t suspend_until_stopped(void *argument) {
  resumed *self = argument;
  cco_context *context = self->context;
  void *value = NULL;
  while (value != &stop) {
    ++self->resumes;
    if (cco_suspend(context, NULL, &value) != CCO_OK) break;
  }
  return self->resumes;
}

static cco_saved_context *count_resumes(cco_context *context, void *argument) {
  ((resumed *)argument)->context = context;
  suspend_until_stopped(argument);
  return NULL;
}

static cco_saved_context *count_resumes_handling(cco_context *context, void *argument) {
  ((resumed *)argument)->context = context;
  cprobe_while_handling(suspend_until_stopped, argument);
  return NULL;
}

// What the resuming side does.
typedef struct resumer {
  cco_saved_context *(*body)(cco_context *context, void *argument);
  uint64_t count;
  cprobe_flags flags;
} resumer;

static uint64_t resume_and_suspend(void *argument) {
  const resumer *self = argument;
  uint64_t count = self->count;
  resumed resumed = {NULL, 0};
  void *answer = NULL;
  cco_context *context = NULL;
  if (count == 0 || cco_create(CCO_STANDARD_STACK, self->body, &resumed, &context) != CCO_OK) return 0;
  cprobe_clear_flags();
  cco_status status = cco_resume(context, NULL, &answer);
  // Now the coroutine is parked with clean flags.
  if (self->flags == CPROBE_STICKY) cprobe_raise_inexact();
  for (uint64_t i = 1; i < count && status == CCO_OK; i++) status = cco_resume(context, NULL, &answer);
  cprobe_clear_flags();
  if (status == CCO_OK) status = cco_resume(context, &stop, &answer);
  if (status != CCO_OK || cco_destroy(context) != CCO_OK) return 0;
  return resumed.resumes;
}

uint64_t cprobe_resume_suspend(uint64_t count, cprobe_flags flags) {
  resumer resumer = {count_resumes, count, flags};
  return resume_and_suspend(&resumer);
}

uint64_t cprobe_resume_suspend_handling(uint64_t count) {
  resumer resumer = {count_resumes_handling, count, CPROBE_CLEAN};
  return cprobe_while_handling(resume_and_suspend, &resumer);
}

static cco_saved_context *count_once(cco_context *context, void *argument) {
  (void)context;
  ++*(uint64_t *)argument;
  return NULL;
}

uint64_t cprobe_create_run_finish(uint64_t count) {
  uint64_t runs = 0;
  for (uint64_t i = 0; i < count; i++) {
    cco_context *context = NULL;
    void *answer = NULL;
    if (cco_create(CCO_STANDARD_STACK, count_once, &runs, &context) != CCO_OK) return 0;
    if (cco_resume(context, NULL, &answer) != CCO_OK) return 0;
    if (cco_destroy(context) != CCO_OK) return 0;
  }
  return runs;
}

bool cprobe_has_sticky_flags(void) {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

bool cprobe_reconciles(void) {
  cco_start();
  return cco_facts.reconciles != 0;
}

const char *cprobe_report(void) { return cco_report(); }

cprobe_stacks cprobe_count_stacks(void) {
  cco_stack_counters counters = cco_stacks();
  return (cprobe_stacks){counters.live, counters.pooled_dirty, counters.guard == CCO_GUARD_MARKERS};
}

uint64_t cprobe_trim_stacks(void) { return cco_trim(0); }

void cprobe_return_freed(void) { malloc_trim(0); }
