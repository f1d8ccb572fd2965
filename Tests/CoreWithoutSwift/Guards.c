#include "Harness.h"

#include "Stack/GuardProof.h"
#include "Stack/Slab.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

static cco_saved_context *do_nothing(cco_context *context, void *argument) {
  (void)context, (void)argument;
  return NULL;
}

// Whether no end of the guard below the stack can be read, and the bytes beside it can.
static bool is_guarded(const char *low, uint32_t size_class) {
  const char *guard = low - cco_classes[size_class].guard;
  return is_readable(low) && !is_readable(low - 1) && !is_readable(guard);
}

static void every_class(void) {
  for (uint32_t i = 0; i < CCO_STACK_CLASSES; i++) {
    size_t size = (size_t)16 << 10;
    while (cco_stack_class(size) < i) size *= 2;
    cco_context *first = make(size, do_nothing, NULL), *second = make(size, do_nothing, NULL);
    expect(is_guarded(first->low, i) && is_guarded(second->low, i));
    expect(cco_classes[i].guard >= 16 << 10 && cco_classes[i].guard % page_size() == 0);
    // The guard of the upper stack ends the lower one.
    expect((size_t)(second->low - first->low) == cco_classes[i].stride);
  }
}

static void after_trim(void) {
  enum { COUNT = 200 };
  cco_context *contexts[COUNT];
  const char *lows[COUNT];
  int held = 0;
  for (int i = 0; i < COUNT; i++) {
    contexts[i] = make(16 << 10, do_nothing, NULL);
    lows[i] = contexts[i]->low;
    held += is_guarded(lows[i], 0);
  }
  expect(held == COUNT);
  // Some stay in use, so that their slab stays mapped. With large pages the smallest slab has eight stacks.
  for (int i = 0; i < COUNT; i++)
    if (i % 4 != 0) destroy(contexts[i]);
  expect(cco_trim(0) >= COUNT - COUNT / 4);
  held = 0;
  for (int i = 0; i < COUNT; i++) held += is_guarded(lows[i], 0);
  expect(held == COUNT);
}

static void by_mprotect(void) {
  expect(cco_disable(CCO_MITIGATION_GUARD_MARKERS));
  every_class();
  expect(cco_stacks().guard == CCO_GUARD_MPROTECT);
  expect(strstr(cco_report(), "by mprotect: markers disabled by a test") != NULL);
}

// What the core says of guards is what the machine does.
static void proof(void) {
  cco_guard_trial trial;
  expect(cco_trial_begin(&trial, 2, page_size()));
  expect(cco_trial_verdict(&trial, 0, 2) == CCO_GUARD_FAILS);
  expect(mprotect(cco_trial_guard(&trial, 0), page_size(), PROT_NONE) == 0);
  expect(cco_trial_verdict(&trial, 0, 1) == CCO_GUARD_HOLDS);
  expect(cco_trial_verdict(&trial, 0, 2) == CCO_GUARD_FAILS);
  cco_trial_end(&trial);
}

static void touch(void *place) { *(volatile char *)place = 1; }

static void other_thread(void) {
  cco_context *context = make(64 << 10, do_nothing, NULL);
  char *low = context->low;
  expect(end_of(touch, low).signal == 0);
  ending end = end_of(touch, low - 1);
  expect(end.signal == SIGSEGV);
  // The thread is on no coroutine's stack, so there is no overflow to report.
  expect(strstr(end.words, "overflowed") == NULL);
}

static const test tests[] = {
    {"Stacks of each size class have a guard below them, from end to end", every_class, NULL},
    {"Guards hold after the memory of their stacks was given back", after_trim, NULL},
    {"Guards made by mprotect hold as well", by_mprotect, NULL},
    {"The proof of guards sees which of two guards holds", proof, NULL},
    {"A write into a guard faults, and one beside it does not", other_thread, NULL},
};
const suite guard_suite = SUITE("Guards", tests);
