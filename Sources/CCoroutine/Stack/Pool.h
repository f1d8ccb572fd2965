// The pool of stacks: what Stack.c (hands out, takes back) and Trim.c (gives memory back) share.
//
// Invariants, under `cco_pools_lock`: live + hot + cold + being trimmed == sum of `fresh` over the class's slabs;
// slab.warm == its slots in use, hot, or being trimmed; both lists have room for every slot of the class, so that
// releasing a stack cannot fail.
#ifndef CCOROUTINE_POOL_H
#define CCOROUTINE_POOL_H

#include "Lock.h"
#include "Slab.h"

// A slot of which nothing is in memory.
typedef struct cco_place {
  uint32_t slab;
  uint32_t slot;
} cco_place;

typedef struct cco_pool {
  cco_context **hot;  // a stack: the last is the most recently used
  cco_place *cold;    // a stack
  uint32_t hot_count, cold_count, capacity;
  uint32_t total;  // slots of all slabs of this class
  uint32_t least;  // least `hot_count` since the last cco_trim_surplus: so many were not needed all that time
  uint32_t taken;  // hot ones taken since one came back
  uint32_t slabs;  // the newest slab, CCO_NO_SLAB when there is none
  uint64_t live;
} cco_pool;

extern cco_lock cco_pools_lock;
extern cco_pool cco_pools[CCO_STACK_CLASSES];

// Makes room for `capacity` entries in both lists, more or less than there is now; false where memory is short.
bool cco_pool_resize(cco_pool *pool, uint32_t capacity);

#endif
