// Coroutines in C, by the C core of this package alone: no Swift, no scheduler, no thread but main's.
//
// `numbers` is written as a loop, and is taken apart at its values: each resume runs it to its next one. The program
// merges two of them, which park on stacks of their own, one of them in a recursion; leaves one before its end; and
// makes as many again, on the stacks of the first.
//
// scripts/embedder compiles and runs it: the folder Sources/CCoroutine, and Boost.Context. By hand:
//     cc -O2 -D_GNU_SOURCE -ISources/CCoroutine -ISources/CCoroutine/include -c Examples/CCore/numbers.c
#include "CCoroutine.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// What a body is told when it is resumed: to go on, or to return, so that its frames release what they own.
enum { GO_ON = 1, RETURN = 2 };

// Ends the program if the core refuses something: each refusal is a status with a sentence.
static void must(cco_status status) {
  if (status == CCO_OK) return;
  fprintf(stderr, "numbers: %s\n", cco_status_message(status));
  exit(1);
}

// Gives one value to the resumer. Returns whether the body goes on.
static bool give(cco_context *context, intptr_t value) {
  void *told = NULL;
  must(cco_suspend(context, (void *)value, &told));
  return (intptr_t)told == GO_ON;
}

// The next value, or 0 if the body has returned.
static intptr_t next(cco_context *context) {
  void *value = NULL;
  must(cco_resume(context, (void *)(intptr_t)GO_ON, &value));
  return cco_state_of(context) == CCO_SUSPENDED ? (intptr_t)value : 0;
}

// A stack with live frames is not freed: the body is resumed, and told to return.
static void end(cco_context *context) {
  void *value = NULL;
  if (cco_state_of(context) == CCO_SUSPENDED) {
    if (cco_destroy(context) != CCO_HAS_LIVE_FRAMES) abort();
    must(cco_resume(context, (void *)(intptr_t)RETURN, &value));
  }
  must(cco_destroy(context));
}

static cco_saved_context *multiples(cco_context *context, void *step) {
  intptr_t *owned = malloc(sizeof *owned);
  if (owned == NULL) abort();
  for (*owned = (intptr_t)step; give(context, *owned); *owned += (intptr_t)step) {
  }
  free(owned);
  return NULL;
}

// The numbers of a tree in their order: it suspends at any depth.
static bool walk(cco_context *context, intptr_t low, intptr_t high) {
  if (low > high) return true;
  intptr_t middle = (low + high) / 2;
  return walk(context, low, middle - 1) && give(context, middle) && walk(context, middle + 1, high);
}
static cco_saved_context *tree(cco_context *context, void *most) {
  (void)walk(context, 1, (intptr_t)most);
  return NULL;
}

// Prints the numbers that both have, up to the end of the second.
static void merge(void) {
  cco_context *sevens = NULL, *all = NULL;
  must(cco_create(16 << 10, multiples, (void *)(intptr_t)7, &sevens));
  must(cco_create(64 << 10, tree, (void *)(intptr_t)40, &all));
  intptr_t seven = next(sevens), number = next(all);
  while (number != 0) {
    if (number == seven) printf("%d ", (int)number);
    if (seven <= number) seven = next(sevens);
    number = next(all);
  }
  printf("\n");
  // `all` has returned, so it is refused.
  void *value = NULL;
  if (cco_resume(all, NULL, &value) != CCO_NOT_RESUMABLE) abort();
  end(all);
  end(sevens);
}

int main(void) {
  // Optional: an overflow of a stack is reported on this thread.
  cco_guard_thread();
  merge();
  merge();
  cco_stack_counters stacks = cco_stacks();
  printf("stacks in use %d, pooled %d\n", (int)stacks.live, (int)stacks.pooled);
  return stacks.live == 0 ? 0 : 1;
}
