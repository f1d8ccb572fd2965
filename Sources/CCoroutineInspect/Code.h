// The executable memory of the program and its libraries, so that a word that is no code address is no frame.
#ifndef CCOROUTINE_CODE_H
#define CCOROUTINE_CODE_H

#include "CCoroutineInspect.h"

struct cco_code_range {
  uintptr_t low, high;
};

// Fills in `walk`. Returns false if there is no memory. Takes the loader's lock.
bool cco_find_code(cco_walk *walk);
void cco_forget_code(cco_walk *walk);

bool cco_search_code(cco_walk *walk, uintptr_t address);

// Whether the instruction before `address` lies in executable memory. A walk without ranges accepts every address.
static inline bool cco_is_code(cco_walk *walk, uintptr_t address) {
  if (walk->code == NULL) return address > 4096;
  const struct cco_code_range *last = &walk->code[walk->last];
  return (address > last->low && address <= last->high) || cco_search_code(walk, address);
}

#endif
