// The proof that guards hold: a mapping on which start-up tries each way to install guards, and checks their effect.
//
//   trial:   | page | guard 0 | page | guard 1 | ... | page | guard n-1 | page |      stride = page + guard
#ifndef CCOROUTINE_GUARD_PROOF_H
#define CCOROUTINE_GUARD_PROOF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cco_guard_trial {
  char *low;
  size_t page, guard, stride, count;
} cco_guard_trial;

typedef enum cco_guard_verdict {
  CCO_GUARD_HOLDS,   // the ends of the guards cannot be read, and the bytes beside them can
  CCO_GUARD_FAILS,   // a byte of a guard can be read, or one beside it cannot
  CCO_GUARD_UNSEEN,  // the kernel does not say whether a byte can be read
} cco_guard_verdict;

// Maps memory for `count` guards of `guard` bytes. Returns false if the kernel refuses.
bool cco_trial_begin(cco_guard_trial *trial, size_t count, size_t guard);
void cco_trial_end(const cco_guard_trial *trial);

// Checks both ends of `count` guards, from `first` on, and the pages beside them. Takes 1 to 2 µs a guard.
cco_guard_verdict cco_trial_verdict(const cco_guard_trial *trial, size_t first, size_t count);

static inline char *cco_trial_guard(const cco_guard_trial *trial, size_t index) {
  return trial->low + index * trial->stride + trial->page;
}

#endif
