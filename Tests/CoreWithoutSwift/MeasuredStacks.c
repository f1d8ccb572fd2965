#include "Harness.h"

#include "Stack/Slab.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

// Stacks that launch sites are measured by (Stack/Sites.c). Where the emulator does not say which pages were touched,
// nothing is measured, and the tests say so by its place: `knows`.

enum { TRUSTED = 16, ALWAYS = 64 };
static const char file[] = "Shop/Sites.swift";

static cco_site *site_at(uint32_t line) {
  cco_label label = {1, NULL, file, sizeof file - 1, line};
  return cco_site_of(&label);
}

static bool knows(void) { return cco_site_samples(site_at(1), 1); }

static cco_site_use use_of(uint32_t line) {
  cco_site_use use = {0}, result = {0};
  uint32_t count = 0;
  for (uint32_t i = 0; i < CCO_MOST_SITES; i++)
    if (cco_site_at(i, &use) && use.line == line) result = use, count++;
  expect(count <= 1);
  return result;
}

static __attribute__((noinline)) int dig(const char *low, int depth) {
  volatile char frame[256];
  frame[0] = frame[255] = (char)depth;
  return (const char *)frame > low ? dig(low, depth + 1) + frame[0] - (char)depth : frame[255];
}

static cco_saved_context *work(cco_context *context, void *argument) {
  (void)argument;
  size_t bytes = (size_t)context->value;
  if (bytes > 0) (void)dig(cco_high(context) - bytes, 0);
  cco_site_end(context);
  return NULL;
}

static void run(cco_site *site, size_t stack, size_t bytes) {
  cco_context *context = make(stack, work, NULL);
  if (site != NULL) cco_site_begin(context, site, true);
  (void)resume(context, (intptr_t)bytes);
  expect(context->argument == NULL);
  destroy(context);
}

static void sizes_follow(void) {
  if (!knows()) return;
  cco_site *site = site_at(2);
  expect(cco_site_stack(NULL, 1) == CCO_STANDARD_STACK && cco_site_stack(NULL, 1 << 20) == 1 << 20);
  for (int i = 0; i < TRUSTED; i++) {
    expect(cco_site_stack(site, 1) == CCO_STANDARD_STACK);
    run(site, 256 << 10, 20 << 10);
  }
  size_t deepest = use_of(2).deepest;
  expect(deepest > 20 << 10 && deepest <= (20 << 10) + 2 * page_size());
  expect(cco_site_stack(site, 1) == 4 * deepest && cco_site_stack(site, 1 << 20) == 1 << 20);
  expect(cco_site_stack(site, (16 << 20) + 1) == (16 << 20) + 1);
  run(site, 16 << 20, 1 << 20);
  run(site, 256 << 10, 0);
  expect(cco_site_stack(site, 1) > 4 << 20 && use_of(2).stack == 16 << 20);
  run(site, 16 << 20, 8 << 20);
  expect(cco_site_stack(site, 1) == 16 << 20);
}

static void grows_at_once(void) {
  if (!knows()) return;
  cco_site *site = site_at(3);
  run(site, 1 << 20, 300 << 10);
  expect(cco_site_stack(site, 1) > 1200 << 10);
}

static void own_pages_only(void) {
  if (!knows()) return;
  cco_site *site = site_at(4);
  run(NULL, 512 << 10, 400 << 10);
  run(site, 512 << 10, 0);
  expect(use_of(4).ended == 1 && use_of(4).deepest <= 4 * page_size());
  run(NULL, 512 << 10, 400 << 10);
  expect(use_of(4).ended == 1 && use_of(4).deepest <= 4 * page_size());
}

static cco_saved_context *give_back(cco_context *context, void *argument) {
  (void)argument;
  (void)dig(cco_high(context) - (200 << 10), 0);
  cco_site_note(context);
  expect(madvise(context->low, 448 << 10, MADV_DONTNEED) == 0);
  cco_site_end(context);
  return NULL;
}

static void notes(void) {
  if (!knows()) return;
  cco_context *context = make(512 << 10, give_back, NULL);
  cco_site_begin(context, site_at(5), true);
  (void)resume(context, 0);
  destroy(context);
  expect(use_of(5).ended == 1 && use_of(5).deepest > 200 << 10);
}

static void samples(void) {
  if (!knows()) return;
  cco_site *site = site_at(6);
  for (int i = 0; i < ALWAYS; i++) {
    expect(cco_site_samples(site, 3));
    run(site, 64 << 10, 0);
  }
  for (uint64_t step = 1; step <= 1 << 20; step *= 16) {
    int count = 0;
    for (uint64_t i = 1; i <= 256000; i++) count += cco_site_samples(site, i * step);
    expect(count > 500 && count < 2000);
  }
}

static void samples_of_the_living(void) {
  if (!knows()) return;
  cco_site *site = site_at(8);
  cco_context *living[ALWAYS];
  for (int i = 0; i < ALWAYS; i++) {
    expect(cco_site_samples(site, 3));
    living[i] = make(64 << 10, work, NULL);
    cco_site_begin(living[i], site, true);
  }
  int count = 0;
  for (uint64_t i = 1; i <= 16000; i++) count += cco_site_samples(site, i);
  expect(count > 500 && count < 2000);
  for (int i = 0; i < ALWAYS; i++) {
    (void)resume(living[i], 0);
    destroy(living[i]);
  }
}

// ---- threads

enum { THREADS = 2, LINES = 200, SAMPLES = 4000, ROUNDS = 4 };
static atomic_int arrived;
static cco_site *found[THREADS][LINES];
static uint32_t lines[THREADS][LINES];  // lines[0][i] and lines[1][i] have one place in the table

// Finds such lines, by the hash of Sites.c.
static void find_lines(void) {
  uint32_t owner[CCO_MOST_SITES] = {0};
  int count = 0;
  for (uint32_t line = 1000; count < LINES && line < 60000; line++) {
    uint64_t key = (uint64_t)(uintptr_t)file << 16 | line;
    uint32_t place = (uint32_t)(key * 0x9E3779B97F4A7C15 >> 32) % CCO_MOST_SITES;
    if (owner[place] == 0) {
      owner[place] = line;
    } else {
      lines[0][count] = owner[place];
      lines[1][count++] = line;
      owner[place] = 0;
    }
  }
  expect(count == LINES);
}

// Waits until each thread has called it as often as this one, with `step` one larger at each call.
static void align(int step) {
  arrived++;
  for (int spins = 0; arrived < THREADS * (step + 1); spins++)
    if (spins % 1000 == 999) sched_yield();
}

static cco_saved_context *end_together(cco_context *context, void *argument) {
  (void)argument;
  intptr_t word = (intptr_t)context->value;
  (void)dig(cco_high(context) - (word & 0xFFFFFF), 0);
  align((int)(word >> 24));
  cco_site_end(context);
  return NULL;
}

static void *ask(void *argument) {
  int me = (int)(intptr_t)argument, step = 0;
  // Different sites at one time, which are about to take the same entry.
  for (int i = 0; i < LINES; i++) {
    align(step++);
    found[me][i] = site_at(lines[me][i]);
  }
  // Samples of one site that end at one time, the deeper one now of this thread and now of that one.
  for (uint32_t line = 100; line < 100 + LINES; line++, step++) {
    cco_context *context = make(256 << 10, end_together, NULL);
    cco_site_begin(context, site_at(line), true);
    (void)resume(context, (intptr_t)step << 24 | ((int)line % THREADS == me ? 150 << 10 : 70 << 10));
    destroy(context);
  }
  for (int i = 0; i < SAMPLES; i++) run(site_at(7), 64 << 10, 0);
  return NULL;
}

static void run_threads(void *argument) {
  (void)argument;
  pthread_t all[THREADS];
  for (intptr_t i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, ask, (void *)i);
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  for (int i = 0; i < LINES; i++) {
    for (int j = 0; j < THREADS; j++) expect(found[j][i] != NULL && found[j][i] == site_at(lines[j][i]));
    expect(found[0][i] != found[1][i]);
    cco_site_use use = use_of(100 + (uint32_t)i);
    if (knows()) expect(use.ended == THREADS && use.deepest > 150 << 10);
  }
  if (knows()) expect(use_of(7).ended == THREADS * SAMPLES);
}

// In processes of their own, which begin with an empty table.
static void threads(void) {
  find_lines();
  for (int round = 0; round < ROUNDS; round++) {
    ending end = end_of(run_threads, NULL);
    expect(end.signal == 0 && end.code == 0);
  }
}

static void full(void) {
  uint32_t missing = 0;
  for (uint32_t line = 1; line <= 2 * CCO_MOST_SITES; line++) missing += site_at(line) == NULL;
  expect(missing >= CCO_MOST_SITES && missing < 2 * CCO_MOST_SITES - CCO_MOST_SITES / 2);
  expect(site_at(1) != NULL && site_at(1) == site_at(1));
}

// ---- the report

static cco_saved_context *overflow(cco_context *context, void *argument) {
  (void)context, (void)argument;
  (void)exhaust_stack(1 << 28);
  return NULL;
}

static void overflow_measured(void *argument) {
  cco_site *site = site_at(12);
  for (int i = 0; i < TRUSTED; i++) run(site, 256 << 10, 20 << 10);
  cco_label label = {42, "deep", file, sizeof file - 1, 12};
  cco_context *context = make(512 << 10, overflow, NULL);
  if (argument == NULL) cco_site_begin(context, site, false);
  context->label = &label;
  (void)resume(context, 0);
}

static void on_a_thread(void *argument) { on_thread(overflow_measured, argument); }

static void report(void) {
  ending end = end_of(on_a_thread, NULL);
  expect(end.signal == SIGSEGV && says(&end, "overflowed its stack of 512 KiB; launched at Shop/Sites.swift:12. "));
  expect(says(&end, "Ask for more: co_launch(stack: .measured(atLeast: 1 << 20))."));
  if (knows()) expect(says(&end, "Of the coroutines from there, 16 were measured, and used "));
  end = end_of(on_a_thread, (void *)1);
  expect(says(&end, "launched at Shop/Sites.swift:12. Give it a larger one: co_launch(stack: .bytes(1 << 20))."));
}

static const test tests[] = {
    {"A site's stacks are four times as large as its deepest sample", sizes_follow, NULL},
    {"A site that needs more than the standard size gets it after one sample", grows_at_once, NULL},
    {"A sample does not count what others have used of its stack", own_pages_only, NULL},
    {"What a sample has used is noted before its memory is given back", notes, NULL},
    {"A site is measured 64 times, and then one time in 256", samples, NULL},
    {"Of coroutines that do not end, one in 16 is measured after the 64", samples_of_the_living, NULL},
    {"Threads share one entry for each site, and lose no sample", threads, NULL},
    {"A full table has no entry for further sites", full, NULL},
    {"An overflow of a measured stack says what helps", report, NULL},
};
const suite site_suite = SUITE("Launch sites", tests);
