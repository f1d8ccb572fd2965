// The pool of stacks. Hazard 8: a new stack costs far more than a switch, so stacks are reused, the most recent one
// first, because its pages and cache lines are still hot.
//
// The states of a slot. The pool's lists are not stored in the stacks, because a cold stack has no memory:
//
//     FRESH --acquire--> IN USE <--acquire/release--> HOT --trim--> COLD --acquire--> IN USE
//     (guard installed)                            (memory kept)  (memory dropped, guard stays)
//     a slab with only FRESH and COLD slots --trim--> unmapped
#include "Pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

cco_lock cco_pools_lock;
cco_pool cco_pools[CCO_STACK_CLASSES];
// Under the lock; `live` is read without it as well.
static atomic_uint_fast64_t live;
static uint64_t peak, acquired;

// FIRST_SLAB: the address space of a class's first slab, which has at least two stacks. AHEAD: the number of hot stacks
// whose control blocks are prefetched at once.
enum { FIRST_SLAB = 1 << 20, AHEAD = 8 };

void cco_stacks_start(void) {
  for (int i = 0; i < CCO_STACK_CLASSES; i++) cco_pools[i].slabs = CCO_NO_SLAB;
  cco_slabs_start();
  cco_guards_start();
}

uint64_t cco_stacks_in_use(void) { return atomic_load_explicit(&live, memory_order_relaxed); }

static uint64_t change_live(uint64_t difference) {
  uint64_t now = cco_stacks_in_use() + difference;
  atomic_store_explicit(&live, now, memory_order_relaxed);
  return now;
}

// ---- acquire

bool cco_pool_resize(cco_pool *p, uint32_t capacity) {
  if (capacity < p->capacity) p->capacity = capacity;
  cco_context **hot = realloc(p->hot, capacity * sizeof *hot);
  if (hot == NULL) return false;
  p->hot = hot;
  cco_place *cold = realloc(p->cold, capacity * sizeof *cold);
  if (cold == NULL) return false;
  p->cold = cold;
  p->capacity = capacity;
  return true;
}

static cco_slab *grow(cco_pool *p, uint32_t size_class) {
  size_t first = FIRST_SLAB / cco_classes[size_class].stride;
  uint32_t wish = p->total > first ? p->total : (uint32_t)first;
  cco_slab *slab = cco_slab_map(size_class, wish < 2 ? 2 : wish);
  if (slab == NULL) return NULL;
  if (p->total + slab->slots > p->capacity && !cco_pool_resize(p, p->total + slab->slots)) {
    char *base = cco_slab_base(slab);
    size_t bytes = slab->slots * cco_classes[size_class].stride;
    cco_slab_retire(slab);
    munmap(base, bytes);
    return NULL;
  }
  p->total += slab->slots;
  slab->next = p->slabs;
  p->slabs = (uint32_t)(slab - cco_slabs);
  return slab;
}

static cco_status take_fresh(cco_pool *p, uint32_t size_class, cco_place *result) {
  cco_slab *slab = p->slabs == CCO_NO_SLAB ? NULL : &cco_slabs[p->slabs];
  if (slab == NULL || slab->fresh == slab->slots) {
    slab = grow(p, size_class);
    if (slab == NULL) {
      return cco_guards_near_map_limit() ? CCO_OUT_OF_MAPS : CCO_OUT_OF_MEMORY;
    }
  }
  if (slab->fresh == slab->guarded) {
    // The batch grows with the number of stacks in use, so a program of three coroutines does not install thirty
    // guards.
    cco_status status = cco_guards_install(slab, (uint32_t)(p->live / 4));
    if (status != CCO_OK) return status;
  }
  if (slab->fresh == slab->dumped) cco_slab_dump_more(slab);
  *result = (cco_place){(uint32_t)(slab - cco_slabs), slab->fresh++};
  return CCO_OK;
}

static cco_context *furnish(cco_place at, uint32_t size_class) {
  char *base = cco_slab_base(&cco_slabs[at.slab]);
  const cco_class_sizes *sizes = &cco_classes[size_class];
  cco_context *context = cco_slot_context(base, sizes->stride, at.slot);
  memset(context, 0, sizeof *context);
  context->size_class = size_class;
  context->low = base + at.slot * sizes->stride + sizes->guard;
  context->slot_index = at.slot;
  context->slab = &cco_slabs[at.slab];
  return context;
}

cco_status cco_stack_acquire(size_t stack_size, cco_context **result) {
  uint32_t size_class = cco_stack_class(stack_size);
  if (size_class == CCO_STACK_CLASSES) return CCO_STACK_TOO_LARGE;
  cco_pool *p = &cco_pools[size_class];
  cco_context *context = NULL;
  cco_place at = {0, 0};
  cco_lock_take(&cco_pools_lock);
  if (p->hot_count > 0) {
    context = p->hot[--p->hot_count];
    if (p->hot_count < p->least) p->least = p->hot_count;
    // The first access to a stack that was not used for long is slow, because the processor walks cold page tables. So
    // the accesses are prefetched some launches ahead, and several together, because a processor does such walks in
    // parallel.
    if (p->hot_count % AHEAD == 0)
      for (uint32_t i = 1; i <= AHEAD && i <= p->hot_count; i++) cco_prefetch_line(p->hot[p->hot_count - i]);
    // A stack that is reused at once stays in the cache, and needs no prefetch.
    if (++p->taken > 1 && p->hot_count > 0) cco_prefetch(p->hot[p->hot_count - 1]);
  } else {
    if (p->cold_count > 0) {
      at = p->cold[--p->cold_count];
    } else {
      cco_status status = take_fresh(p, size_class, &at);
      if (status != CCO_OK) {
        cco_lock_leave(&cco_pools_lock);
        return status;
      }
    }
    cco_slabs[at.slab].warm++;
  }
  p->live++;
  uint64_t in_use = change_live(1);
  if (in_use > peak) peak = in_use;
  uint64_t serial = ++acquired;
  cco_lock_leave(&cco_pools_lock);
  if (context == NULL) context = furnish(at, size_class);
  context->serial = serial;
  cco_sanitizer_stack_in_use(context);
  *result = context;
  return CCO_OK;
}

void cco_stack_release(cco_context *context) {
  cco_sanitizer_stack_idle(context);
  context->phase = (cco_state)0;
  context->serial = 0;
  context->label = NULL;
  cco_pool *p = &cco_pools[context->size_class];
  cco_lock_take(&cco_pools_lock);
  p->hot[p->hot_count++] = context;
  p->taken = 0;
  p->live--;
  (void)change_live(-UINT64_C(1));
  cco_lock_leave(&cco_pools_lock);
}

cco_stack_counters cco_stacks(void) {
  cco_start();
  cco_stack_counters counters = {.mapped_bytes = cco_slab_mapped_bytes(), .guard = cco_guards_kind()};
  cco_lock_take(&cco_pools_lock);
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    counters.pooled += cco_pools[i].hot_count + cco_pools[i].cold_count;
    counters.pooled_dirty += cco_pools[i].hot_count;
  }
  counters.live = cco_stacks_in_use();
  counters.peak = peak;
  cco_lock_leave(&cco_pools_lock);
  return counters;
}
