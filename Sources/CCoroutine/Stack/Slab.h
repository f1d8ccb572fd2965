// Slabs: the address space of stacks. Slab.c owns the table, Guard.c the guards, Stack.c the pool.
//
//   slab:   | guard | stack 0 | guard | stack 1 | ... | guard | stack n-1 |      stride = guard + stack
//
// - Slots are handed out in ascending order; `fresh` is the next slot that was never used.
// - Guards are installed a batch ahead; `guarded` is the number of slots that have one.
// - The pool's lock covers everything except `version`, `base`, `bytes` and `size_class`.
#ifndef CCOROUTINE_SLAB_H
#define CCOROUTINE_SLAB_H

#include "Internal.h"

#include <stdatomic.h>

typedef struct cco_slab {
  // cco_context_at reads these fields without a lock, also in signal handlers. `version` is odd while the others
  // change.
  atomic_uint version;
  atomic_uint size_class;
  _Atomic(char *) base;  // NULL if this entry of the table is free
  atomic_size_t bytes;
  uint32_t slots;
  uint32_t fresh;    // number of slots that were ever handed out
  uint32_t guarded;  // number of slots whose guard is installed
  uint32_t split;    // number of these guards that are by mprotect
  uint32_t warm;     // number of `fresh` slots that are in use or hold memory in the pool
  uint32_t next;     // index of the next slab of this class, CCO_NO_SLAB at the end
  uint32_t dumped;   // number of slots that a core of this process contains
} cco_slab;

enum { CCO_MOST_SLABS = 8192, CCO_NO_SLAB = UINT32_MAX };
extern cco_slab cco_slabs[CCO_MOST_SLABS];

// The sizes of a class on this machine, in whole pages. Filled in by cco_slabs_start.
typedef struct cco_class_sizes {
  size_t stack;
  size_t guard;
  size_t stride;
} cco_class_sizes;
extern cco_class_sizes cco_classes[CCO_STACK_CLASSES];

void cco_slabs_start(void);

// Maps a slab of `wish` slots, or of fewer slots if the kernel refuses. Returns NULL if the kernel refuses one slot.
cco_slab *cco_slab_map(uint32_t size_class, uint32_t wish);
// Lets cores contain some more slots, before the first of them is handed out. For cores the kernel visits each page of
// reserved memory, so what was never used is left out.
void cco_slab_dump_more(cco_slab *slab);
// Removes the slab from the table: from now on no lookup finds it. The caller unmaps its address space.
void cco_slab_retire(cco_slab *slab);
uint64_t cco_slab_mapped_bytes(void);

static inline char *cco_slab_base(const cco_slab *slab) {
  return atomic_load_explicit(&slab->base, memory_order_relaxed);
}
static inline uint32_t cco_slab_class(const cco_slab *slab) {
  return atomic_load_explicit(&slab->size_class, memory_order_relaxed);
}

// The control block of a slot. It lies at the top of the slot's stack, less an offset of 0 to 15 cache lines that
// depends on the slot (cache colouring). So the hot cache lines of different coroutines do not all fall into the same
// cache sets. Each place more takes 64 bytes from the first page of some stacks, and a deeper wait has a second page:
// docs/evolution/0057 has the measurements.
enum { CCO_BLOCK_SIZE = (sizeof(cco_context) + 63) & ~63, CCO_COLOURS = 16 };
static inline cco_context *cco_slot_context(char *base, size_t stride, size_t slot) {
  return (cco_context *)(base + (slot + 1) * stride - CCO_BLOCK_SIZE - (slot % CCO_COLOURS) * 64);
}

// ---- Guard.c

void cco_guards_start(void);
cco_guard_kind cco_guards_kind(void);
// Installs the guards of `wish` slots, and of at least one, from `guarded` on. Advances `guarded`.
cco_status cco_guards_install(cco_slab *slab, uint32_t wish);
// Whether there are so many guards by mprotect that vm.max_map_count explains a refused mapping.
bool cco_guards_near_map_limit(void);
// Subtracts the guards of a slab that is being unmapped.
void cco_guards_forget(cco_slab *slab);

#endif
