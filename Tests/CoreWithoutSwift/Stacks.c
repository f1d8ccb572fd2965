#include "Harness.h"

#include "Stack/Slab.h"

#include <string.h>
#include <sys/mman.h>

static const size_t sizes[CCO_STACK_CLASSES] = {16u << 10, 64u << 10, 256u << 10, 512u << 10,
                                                1u << 20,  4u << 20,  CCO_LARGEST_STACK};

static cco_saved_context *do_nothing(cco_context *context, void *argument) {
  (void)context, (void)argument;
  return NULL;
}

static cco_saved_context *suspend_once(cco_context *context, void *argument) {
  (void)suspend(context, (intptr_t)argument);
  return NULL;
}

// Uses the stack down to some KiB above its end, in frames of a few hundred bytes.
static __attribute__((noinline)) int fill(const cco_context *context, int depth) {
  volatile char frame[256];
  memset((char *)frame, depth, sizeof frame);
  if ((char *)frame - context->low < (3 << 10)) return depth;
  return fill(context, depth + 1) + frame[0] - (char)depth;
}

static cco_saved_context *fill_stack(cco_context *context, void *argument) {
  *(int *)argument = fill(context, 0);
  return NULL;
}

static void classes(void) {
  for (uint32_t i = 0; i < CCO_STACK_CLASSES; i++) {
    expect(cco_stack_class(sizes[i] - 1) == i && cco_stack_class(sizes[i]) == i);
    expect(cco_stack_class(sizes[i] + 1) == i + 1);
    int depth = 0;
    cco_context *context = make(sizes[i], fill_stack, &depth);
    expect(context->size_class == i);
    size_t usable = (size_t)(cco_high(context) - context->low), whole = cco_classes[i].stack;
    expect(whole % page_size() == 0 && whole >= sizes[i]);
    expect(usable <= whole && usable > whole - 4096);
    expect((uintptr_t)cco_high(context) % 16 == 0 && (uintptr_t)context->low % page_size() == 0);
    (void)resume(context, 0);
    expect(cco_state_of(context) == CCO_FINISHED);
    // The frames were there, all but the last few KiB.
    expect((size_t)depth > (usable - (4 << 10)) / 400);
    destroy(context);
  }
  cco_context *context = NULL;
  expect(cco_create(CCO_LARGEST_STACK + 1, do_nothing, NULL, &context) == CCO_STACK_TOO_LARGE && context == NULL);
}

static void reuse(void) {
  enum { COUNT = 5 };
  cco_context *contexts[COUNT];
  uint64_t last = 0;
  cco_stack_counters before = cco_stacks();
  for (int i = 0; i < COUNT; i++) contexts[i] = make(256 << 10, suspend_once, (void *)(intptr_t)i);
  expect(cco_stacks().live == before.live + COUNT);
  for (int i = 0; i < COUNT; i++) {
    expect(resume(contexts[i], 0) == i);
    (void)resume(contexts[i], 0);
    last = contexts[i]->serial;
    destroy(contexts[i]);
  }
  expect(cco_stacks().live == before.live && cco_stacks().pooled_dirty == before.pooled_dirty + COUNT);
  // The last one that was given back comes first, under a new number.
  for (int i = COUNT - 1; i >= 0; i--) {
    cco_context *again = make(256 << 10, suspend_once, (void *)(intptr_t)(i + 10));
    expect(again == contexts[i] && again->serial > last);
    expect(resume(again, 0) == i + 10);
    (void)resume(again, 0);
    expect(cco_state_of(again) == CCO_FINISHED);
  }
}

// A stack whose context never ran is reused as well, and many bodies run on one stack.
static void warm(void) {
  cco_context *first = make(64 << 10, do_nothing, NULL);
  destroy(first);
  for (intptr_t i = 0; i < 10000; i++) {
    cco_context *context = make(64 << 10, suspend_once, (void *)i);
    if (context != first || resume(context, 0) != i) expect(false);
    (void)resume(context, 0);
    destroy(context);
  }
}

static void lookup(void) {
  cco_context *contexts[3];
  bool in_guard = true;
  for (int i = 0; i < 3; i++) {
    contexts[i] = make(64 << 10, suspend_once, NULL);
    (void)resume(contexts[i], 0);
  }
  for (int i = 0; i < 3; i++) {
    expect(cco_context_at(contexts[i]->low, &in_guard) == contexts[i] && !in_guard);
    expect(cco_context_at(cco_high(contexts[i]) - 1, &in_guard) == contexts[i] && !in_guard);
    expect(cco_context_at(contexts[i]->low - 1, &in_guard) == contexts[i] && in_guard);
  }
  expect(cco_context_at(&in_guard, NULL) == NULL && cco_context_at((void *)8, NULL) == NULL);
  char *low = contexts[1]->low;
  (void)resume(contexts[1], 0);
  destroy(contexts[1]);
  expect(cco_context_at(low, NULL) == NULL);
}

// ---- trimming

enum { MANY = 300 };

static void trim(void) {
  cco_context *contexts[MANY];
  for (int i = 0; i < MANY; i++) {
    contexts[i] = make(64 << 10, suspend_once, (void *)(intptr_t)i);
    (void)resume(contexts[i], 0);
    memset(contexts[i]->low, 0xA5, 16);
  }
  // Every other stack stays in use, with its frames.
  for (int i = 0; i < MANY; i += 2) {
    (void)resume(contexts[i], 0);
    destroy(contexts[i]);
  }
  uint64_t dirty = cco_stacks().pooled_dirty, mapped = cco_stacks().mapped_bytes;
  expect(dirty >= MANY / 2 && cco_trim(0) == dirty && cco_trim(0) == 0);
  expect(cco_stacks().pooled_dirty == 0);
  int kept = 0, zero = 0;
  for (int i = 1; i < MANY; i += 2) kept += contexts[i]->low[0] == (char)0xA5;
  expect(kept == MANY / 2);
  // A trimmed stack has lost its contents, and is as good as a new one.
  for (int i = 0; i < MANY; i += 2) {
    contexts[i] = make(64 << 10, suspend_once, (void *)(intptr_t)(i + 1000));
    zero += contexts[i]->low[0] == 0;
    expect(resume(contexts[i], 0) == i + 1000);
  }
  expect(zero == MANY / 2);
  for (int i = 0; i < MANY; i++) {
    (void)resume(contexts[i], 0);
    destroy(contexts[i]);
  }
  expect(cco_trim(10) == MANY - 10 && cco_stacks().pooled_dirty >= 10);
  (void)cco_trim(0);
  // One slab of each class is left.
  expect(cco_stacks().mapped_bytes < mapped);
}

// Frames at a depth that a number gives, each with a content of its own, and at the end a wait or nothing. Returns
// whether all of them are as they were.
static __attribute__((noinline)) bool descend(cco_context *waiting, unsigned depth, unsigned number) {
  volatile unsigned char frame[200];
  for (unsigned i = 0; i < sizeof frame; i++) frame[i] = (unsigned char)(number + depth + i);
  bool is_whole = true;
  if (depth > 0)
    is_whole = descend(waiting, depth - 1, number);
  else if (waiting != NULL)
    (void)suspend(waiting, 0);
  for (unsigned i = 0; i < sizeof frame; i++) is_whole = is_whole && frame[i] == (unsigned char)(number + depth + i);
  return is_whole;
}

enum { WAITS = 20 };

static cco_saved_context *wander(cco_context *context, void *argument) {
  unsigned number = (unsigned)(uintptr_t)argument;
  for (int i = 0; i < WAITS; i++) {
    number = number * 1103515245u + 12345u;
    expect(descend(NULL, 10 + (number >> 16) % 100, number));
    expect(descend(context, (number >> 20) % 40, number));
  }
  return NULL;
}

static size_t resident(uintptr_t low, uintptr_t end) {
  size_t count = 0;
  // An emulator that pretends to have pages of 64 KiB answers for each of its own.
  for (unsigned char there[16]; low < end; low += page_size())
    if (mincore((void *)low, page_size(), there) == 0) count += there[0] & 1;
  return count;
}

static uintptr_t page_of(const cco_context *context) {
  return (uintptr_t)cco_sanitizer_saved_stack(context->parked.stack) / page_size() * page_size();
}

// A third of them are not held each time, and keep what they have.
static void dead_pages(void) {
  enum { COUNT = 60 };
  cco_context *contexts[COUNT];
  for (int i = 0; i < COUNT; i++) contexts[i] = make(i % 2 ? 64 << 10 : 512 << 10, wander, (void *)(intptr_t)(i + 1));
  for (int wait = 0; wait < WAITS; wait++) {
    const cco_context *held[COUNT];
    size_t count = 0, live[COUNT], dead[COUNT];
    for (int i = 0; i < COUNT; i++) {
      (void)resume(contexts[i], 0);
      live[i] = resident(page_of(contexts[i]), (uintptr_t)contexts[i]);
      dead[i] = resident((uintptr_t)contexts[i]->low, page_of(contexts[i]));
      if ((i + wait) % 3 > 0) held[count++] = contexts[i];
    }
    expect(cco_drop_dead_pages(held, count) > 0);
    for (int i = 0; i < COUNT; i++) {
      bool is_held = (i + wait) % 3 > 0;
      expect(resident(page_of(contexts[i]), (uintptr_t)contexts[i]) == live[i]);
      expect(resident((uintptr_t)contexts[i]->low, page_of(contexts[i])) == (is_held ? 0 : dead[i]));
    }
  }
  for (int i = 0; i < COUNT; i++) {
    (void)resume(contexts[i], 0);
    destroy(contexts[i]);
  }
}

static const test tests[] = {
    {"Each size class gives a stack of its size, aligned, that can be used nearly to its end", classes, NULL},
    {"The stack given back last is handed out first, under a new number", reuse, NULL},
    {"Ten thousand bodies run on one stack", warm, NULL},
    {"An address finds the context whose stack or guard it lies in", lookup, NULL},
    {"Trimming drops the memory of unused stacks alone, and they can be used again", trim, NULL},
    {"Dead pages of parked coroutines go back, and every frame stays", dead_pages, NULL},
};
const suite stack_suite = SUITE("Stacks", tests);
