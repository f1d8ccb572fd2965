// Trimming: returns memory to the kernel. Hot stacks become cold, and slabs without memory are unmapped.
// - In bulk: one madvise for a run of neighbours costs a tenth of one madvise for each stack.
// - Outside the lock: even one madvise takes long if it frees many stacks.
#include "Pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int by_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t) * (cco_context *const *)a, y = (uintptr_t) * (cco_context *const *)b;
  return x < y ? -1 : x > y;
}

// Frees the memory of `count` stacks, with one call for each run of neighbours. Sorts `stacks` by address. The guards
// lie between the stacks and survive: markers by definition, guards by mprotect because the mapping stays.
static void drop(cco_context **stacks, cco_place *places, size_t count) {
  qsort(stacks, count, sizeof *stacks, by_address);
  for (size_t i = 0; i < count; i++)
    places[i] = (cco_place){(uint32_t)((cco_slab *)stacks[i]->slab - cco_slabs), stacks[i]->slot_index};
  for (size_t i = 0; i < count;) {
    cco_slab *slab = &cco_slabs[places[i].slab];
    const cco_class_sizes *sizes = &cco_classes[cco_slab_class(slab)];
    size_t end = i + 1;
    while (end < count && places[end].slab == places[i].slab && places[end].slot == places[end - 1].slot + 1) end++;
    char *low = cco_slab_base(slab) + places[i].slot * sizes->stride + sizes->guard;
    (void)madvise(low, (end - i) * sizes->stride - sizes->guard, MADV_DONTNEED);
    i = end;
  }
}

// Makes the oldest hot stacks of a class cold, all but `keep`: takes them out of the pool, frees their memory, and
// returns them to the pool.
static size_t cool(cco_pool *p, size_t keep) {
  cco_lock_take(&cco_pools_lock);
  size_t count = p->hot_count > keep ? p->hot_count - keep : 0;
  cco_context **stacks = NULL;
  cco_place *places = NULL;
  // If there is not enough memory for these arrays, trim in smaller parts.
  for (; count > 0; count /= 2) {
    stacks = malloc(count * sizeof *stacks);
    places = malloc(count * sizeof *places);
    if (stacks != NULL && places != NULL) break;
    free(stacks);
    free(places);
  }
  if (count > 0) {
    memcpy(stacks, p->hot, count * sizeof *stacks);
    p->hot_count -= (uint32_t)count;
    if (p->hot_count < p->least) p->least = p->hot_count;
    memmove(p->hot, p->hot + count, p->hot_count * sizeof *p->hot);
  }
  cco_lock_leave(&cco_pools_lock);
  if (count == 0) return 0;
  // No other thread can reach these stacks now. Their slabs stay mapped, because the stacks still count as warm.
  drop(stacks, places, count);
  cco_lock_take(&cco_pools_lock);
  // In descending order, so that the lowest address is reused first, and the stacks in use are in few slabs.
  for (size_t i = count; i-- > 0;) {
    p->cold[p->cold_count++] = places[i];
    cco_slabs[places[i].slab].warm--;
  }
  cco_lock_leave(&cco_pools_lock);
  free(stacks);
  free(places);
  return count;
}

// The number of walks that read stacks (Walk.c), and whether one of them has kept slabs mapped; under
// `cco_pools_lock`.
static uint32_t pins;
static bool is_overdue;

// Unmaps the slabs of a class that hold nothing, except the last slab of the class.
static void unmap_idle(cco_pool *p) {
  enum { AT_ONCE = 64 };
  struct {
    char *base;
    size_t bytes;
  } gone[AT_ONCE];
  size_t count;
  do {
    count = 0;
    cco_lock_take(&cco_pools_lock);
    if (pins > 0) {
      is_overdue = true;
      cco_lock_leave(&cco_pools_lock);
      return;
    }
    uint32_t *link = &p->slabs;
    while (*link != CCO_NO_SLAB && count < AT_ONCE) {
      cco_slab *slab = &cco_slabs[*link];
      bool last_one = slab->next == CCO_NO_SLAB && link == &p->slabs;
      if (slab->warm != 0 || last_one) {
        link = &slab->next;
        continue;
      }
      uint32_t kept = 0, index = *link;
      for (uint32_t i = 0; i < p->cold_count; i++)
        if (p->cold[i].slab != index) p->cold[kept++] = p->cold[i];
      p->cold_count = kept;
      p->total -= slab->slots;
      gone[count].base = cco_slab_base(slab);
      gone[count++].bytes = atomic_load_explicit(&slab->bytes, memory_order_relaxed);
      *link = slab->next;
      cco_slab_retire(slab);
    }
    if (p->capacity > 4 * (p->total + 16)) (void)cco_pool_resize(p, p->total + 16);
    cco_lock_leave(&cco_pools_lock);
    for (size_t i = 0; i < count; i++) munmap(gone[i].base, gone[i].bytes);
  } while (count == AT_ONCE);
}

void cco_pin_slabs(void) {
  cco_lock_take(&cco_pools_lock);
  pins++;
  cco_lock_leave(&cco_pools_lock);
}

// The last walk does what it has kept others from doing.
void cco_unpin_slabs(void) {
  cco_lock_take(&cco_pools_lock);
  bool must_unmap = --pins == 0 && is_overdue;
  if (must_unmap) is_overdue = false;
  cco_lock_leave(&cco_pools_lock);
  if (must_unmap)
    for (int i = 0; i < CCO_STACK_CLASSES; i++) unmap_idle(&cco_pools[i]);
}

void cco_forget_pins(void) {
  pins = 0;
  is_overdue = false;
}

// The most bytes of address space that the hot stacks which stay hot have, in each class. A stack may hold its whole
// size of memory: how deep it was used is not known.
static const size_t KEPT_BYTES = (size_t)64 << 20;

// `keep`, or fewer if the stacks of the class are large.
static size_t kept(int size_class, size_t keep) {
  size_t most = KEPT_BYTES / cco_classes[size_class].stack;
  return keep < most ? keep : most;
}

bool cco_has_surplus(size_t keep) {
  // Before the runtime has started there are no classes, and no stacks.
  bool has_surplus = false;
  cco_lock_take(&cco_pools_lock);
  for (int i = 0; i < CCO_STACK_CLASSES; i++)
    if (cco_pools[i].hot_count > 0 && cco_pools[i].hot_count > 2 * kept(i, keep)) has_surplus = true;
  cco_lock_leave(&cco_pools_lock);
  return has_surplus;
}

size_t cco_trim(size_t keep) {
  cco_start();
  size_t trimmed = 0;
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    trimmed += cool(&cco_pools[i], keep);
    unmap_idle(&cco_pools[i]);
  }
  return trimmed;
}

size_t cco_trim_surplus(size_t keep) {
  cco_start();
  size_t trimmed = 0;
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    cco_pool *p = &cco_pools[i];
    cco_lock_take(&cco_pools_lock);
    // `least` of the hot stacks were unused since the last call (Pool.h). The others were used, and stay hot.
    size_t needed = p->hot_count - p->least;
    p->least = p->hot_count;
    cco_lock_leave(&cco_pools_lock);
    trimmed += cool(p, needed > kept(i, keep) ? needed : kept(i, keep));
    unmap_idle(p);
  }
  return trimmed;
}
