// Stacks: size classes, the pool, and giving memory back. Hazard 8: a stack costs far more than a switch, so stacks are
// used again, the last one first, because its pages and cache lines are still hot.
//
// A slot's life; the pool's lists are out of band because a cold stack's memory is gone:
//
//     FRESH --acquire--> IN USE <--acquire/release--> HOT --trim--> COLD --acquire--> IN USE
//     (guard installed)                            (memory kept)  (memory dropped, guard stays)
//     a slab with only FRESH and COLD slots --trim--> unmapped
//
// Invariants, under `lock`: live + hot + cold + being trimmed == sum of `fresh` over the class's slabs;
// slab.warm == its slots in use, hot, or being trimmed; both lists have room for every slot of the class, so that
// releasing a stack cannot fail.
#include "Lock.h"
#include "Slab.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// A slot of which nothing is in memory.
typedef struct place {
  uint32_t slab;
  uint32_t slot;
} place;

typedef struct pool {
  cco_context **hot;  // a stack: the last is the most recently used
  place *cold;        // a stack
  uint32_t hot_count, cold_count, capacity;
  uint32_t total;     // slots of all slabs of this class
  uint32_t slabs;     // the newest slab, CCO_NO_SLAB when there is none
  uint64_t live;
} pool;

static cco_lock lock;
static pool pools[CCO_STACK_CLASSES];
static uint64_t live, peak;

// A first slab of about this much address space, at least two stacks.
enum { FIRST_SLAB = 1 << 20 };

void cco_stacks_start(void) {
  for (int i = 0; i < CCO_STACK_CLASSES; i++) pools[i].slabs = CCO_NO_SLAB;
  cco_slabs_start();
  cco_guards_start();
}

// ---- acquire

static bool resize_lists(pool *p, uint32_t capacity) {
  if (capacity < p->capacity) p->capacity = capacity;
  cco_context **hot = realloc(p->hot, capacity * sizeof *hot);
  if (hot == NULL) return false;
  p->hot = hot;
  place *cold = realloc(p->cold, capacity * sizeof *cold);
  if (cold == NULL) return false;
  p->cold = cold;
  p->capacity = capacity;
  return true;
}

static cco_slab *grow(pool *p, uint32_t size_class) {
  size_t first = FIRST_SLAB / cco_classes[size_class].stride;
  uint32_t wish = p->total > first ? p->total : (uint32_t)first;
  cco_slab *slab = cco_slab_map(size_class, wish < 2 ? 2 : wish);
  if (slab == NULL) return NULL;
  if (p->total + slab->slots > p->capacity && !resize_lists(p, p->total + slab->slots)) {
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

static cco_status take_fresh(pool *p, uint32_t size_class, place *result) {
  cco_slab *slab = p->slabs == CCO_NO_SLAB ? NULL : &cco_slabs[p->slabs];
  if (slab == NULL || slab->fresh == slab->slots) {
    slab = grow(p, size_class);
    if (slab == NULL)
      return cco_guards_kind() == CCO_GUARD_MPROTECT && cco_guards_near_map_limit() ? CCO_OUT_OF_MAPS : CCO_OUT_OF_MEMORY;
  }
  if (slab->fresh == slab->guarded) {
    // A batch in proportion to what is in use: a program of three coroutines does not pay for thirty.
    cco_status status = cco_guards_install(slab, (uint32_t)(p->live / 4));
    if (status != CCO_OK) return status;
  }
  *result = (place){(uint32_t)(slab - cco_slabs), slab->fresh++};
  return CCO_OK;
}

static cco_context *furnish(place at, uint32_t size_class) {
  char *base = cco_slab_base(&cco_slabs[at.slab]);
  const cco_class_sizes *sizes = &cco_classes[size_class];
  cco_context *context = cco_slot_context(base, sizes->stride, at.slot);
  memset(context, 0, sizeof *context);
  context->size_class = size_class;
  context->low = base + at.slot * sizes->stride + sizes->guard;
  context->high = (char *)context;
  context->slot_index = at.slot;
  context->slab = &cco_slabs[at.slab];
  return context;
}

cco_status cco_stack_acquire(size_t stack_size, cco_context **result) {
  uint32_t size_class = cco_stack_class(stack_size);
  if (size_class == CCO_STACK_CLASSES) return CCO_STACK_TOO_LARGE;
  pool *p = &pools[size_class];
  cco_context *context = NULL;
  place at = {0, 0};
  cco_lock_take(&lock);
  if (p->hot_count > 0) {
    context = p->hot[--p->hot_count];
  } else {
    if (p->cold_count > 0) {
      at = p->cold[--p->cold_count];
    } else {
      cco_status status = take_fresh(p, size_class, &at);
      if (status != CCO_OK) {
        cco_lock_leave(&lock);
        return status;
      }
    }
    cco_slabs[at.slab].warm++;
  }
  p->live++;
  if (++live > peak) peak = live;
  cco_lock_leave(&lock);
  if (context == NULL) context = furnish(at, size_class);
  cco_sanitizer_stack_in_use(context);
  *result = context;
  return CCO_OK;
}

void cco_stack_release(cco_context *context) {
  cco_sanitizer_stack_idle(context);
  context->state = (cco_state)0;
  pool *p = &pools[context->size_class];
  cco_lock_take(&lock);
  p->hot[p->hot_count++] = context;
  p->live--;
  live--;
  cco_lock_leave(&lock);
}

cco_stack_counters cco_stacks(void) {
  cco_start();
  cco_stack_counters counters = {.mapped_bytes = cco_slab_mapped_bytes(), .guard = cco_guards_kind()};
  cco_lock_take(&lock);
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    counters.pooled += pools[i].hot_count + pools[i].cold_count;
    counters.pooled_dirty += pools[i].hot_count;
  }
  counters.live = live;
  counters.peak = peak;
  cco_lock_leave(&lock);
  return counters;
}

// ---- trim

static int by_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t) * (cco_context *const *)a, y = (uintptr_t) * (cco_context *const *)b;
  return x < y ? -1 : x > y;
}

// Takes the memory of `count` stacks, sorted by address, away: one call for each run of neighbours. Guards lie between
// them and survive: markers by definition, mprotect because the mapping stays.
static void drop(cco_context **stacks, place *places, size_t count) {
  qsort(stacks, count, sizeof *stacks, by_address);
  for (size_t i = 0; i < count; i++)
    places[i] = (place){(uint32_t)((cco_slab *)stacks[i]->slab - cco_slabs), stacks[i]->slot_index};
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

// Takes the oldest hot stacks but `keep` of a class out of the pool, drops their memory, puts them back as cold ones.
static size_t cool(pool *p, size_t keep) {
  cco_lock_take(&lock);
  size_t count = p->hot_count > keep ? p->hot_count - keep : 0;
  cco_context **stacks = NULL;
  place *places = NULL;
  // Where memory is short for the work itself, do it in smaller parts.
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
    memmove(p->hot, p->hot + count, p->hot_count * sizeof *p->hot);
  }
  cco_lock_leave(&lock);
  if (count == 0) return 0;
  // Nobody else knows these stacks now; their slabs stay because they still count as warm.
  drop(stacks, places, count);
  cco_lock_take(&lock);
  // Descending, so that the lowest address is used again first: what is in use gathers in few slabs.
  for (size_t i = count; i-- > 0;) {
    p->cold[p->cold_count++] = places[i];
    cco_slabs[places[i].slab].warm--;
  }
  cco_lock_leave(&lock);
  free(stacks);
  free(places);
  return count;
}

// Unmaps the slabs of a class that hold nothing, all but the last one standing.
static void unmap_idle(pool *p) {
  enum { AT_ONCE = 64 };
  struct {
    char *base;
    size_t bytes;
  } gone[AT_ONCE];
  size_t count;
  do {
    count = 0;
    cco_lock_take(&lock);
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
    if (p->capacity > 4 * (p->total + 16)) (void)resize_lists(p, p->total + 16);
    cco_lock_leave(&lock);
    for (size_t i = 0; i < count; i++) munmap(gone[i].base, gone[i].bytes);
  } while (count == AT_ONCE);
}

size_t cco_trim(size_t keep) {
  cco_start();
  size_t trimmed = 0;
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    trimmed += cool(&pools[i], keep);
    unmap_idle(&pools[i]);
  }
  return trimmed;
}
