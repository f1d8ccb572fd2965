// The pool of stacks, which Stack.c (hands stacks out, takes them back) and Trim.c (returns memory) share.
//
// Invariants, under `cco_pools_lock`:
// - live + hot + cold + being trimmed == the sum of `fresh` over the slabs of the class;
// - slab.warm == the number of its slots that are in use, hot, or being trimmed;
// - both lists have room for every slot of the class, so releasing a stack cannot fail.
#ifndef CCOROUTINE_POOL_H
#define CCOROUTINE_POOL_H

#include "Lock.h"
#include "Slab.h"

// The index of a slot. The pool keeps it for a slot without memory, which has no control block.
typedef struct cco_place {
  uint32_t slab;
  uint32_t slot;
} cco_place;

typedef struct cco_pool {
  cco_context **hot;  // one entry for each stack; the last is the most recently used
  cco_place *cold;    // one entry for each stack
  uint32_t hot_count, cold_count, capacity;
  uint32_t total;  // number of slots in all slabs of this class
  uint32_t least;  // smallest `hot_count` since the last cco_trim_surplus: that many stacks were unused all that time
  uint32_t taken;  // number of hot stacks that were acquired since the last release
  uint32_t slabs;  // index of the newest slab, CCO_NO_SLAB if there is none
  uint64_t live;
} cco_pool;

extern cco_lock cco_pools_lock;
extern cco_pool cco_pools[CCO_STACK_CLASSES];

// Changes the capacity of both lists to `capacity` entries, up or down. Returns false if there is not enough memory.
bool cco_pool_resize(cco_pool *pool, uint32_t capacity);

#endif
