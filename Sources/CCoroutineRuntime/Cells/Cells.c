// Cells: memory of one size, for what the Swift layer makes once for each coroutine.
//
// Why not the C library's allocator. Its heaps of threads give the end of their memory back as soon as it is free, and
// grow by 128 KiB at a time. A burst of a million coroutines then pays for tens of thousands of page faults each time,
// more than for all else that a launch does.
//
//   BARE   in a block without memory, or in the rest of the block that is being cut up
//   FREE   in a magazine: of a thread, or of the depot
//   TAKEN  the caller's
//
//   BARE --cut, 64 at a time--> FREE <--take, give--> TAKEN
//   FREE, with all of its block, in the depot, and unused since the last trim --trim--> BARE
//
// A magazine is a list of at most 64 free cells. Each thread has two, so that a thread that takes and gives by turns at
// the end of one does not go to the depot each time. A thread that ends gives both to the depot.
//
// Invariants
//  1. A cell is in one magazine, or taken, or bare. Magazines move as a whole, under the lock.
//  2. Only its thread uses a thread's magazines: no code of this file is called in a signal handler, or waits.
//  3. The trimmer takes magazines out of the depot under the lock. From then on no other thread can reach their cells.
//     A block all of whose cells are among them has no taken cell, so its memory goes back, outside of the lock. One
//     thread trims at a time; in the child of a process that was trimming, none does.
//
// A depot of which few blocks are free, because each has a taken cell, would be walked again and again. So after a walk
// that has freed less than a sixteenth of its cells, the trimmer lets one call pass, then two, four, up to 32. A depot
// that has grown by a quarter since the walk is walked at once, and a walk that brings more ends the pauses.
//
// The cells that were given last are taken first, because they are still in the cache.
#include "Blocks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

// Sanitizers know the C library's memory, and find a use after the end there.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CELLS_ARE_ALLOCATED true
#endif
#endif
#ifndef CELLS_ARE_ALLOCATED
#define CELLS_ARE_ALLOCATED false
#endif

enum { MAGAZINE = 64 };

typedef struct cell {
  struct cell *next;
  // Of the first cell of a magazine in the depot:
  struct cell *next_magazine;
  uint32_t count;
} cell;

typedef struct magazines {
  cell *loaded;   // from here cells are taken, and to here they are given
  cell *spare;    // full, or NULL
  uint32_t room;  // for so many cells in `loaded`; 0 if it is full, and on a thread that is not known
  bool is_known;  // to the key whose destructor runs when the thread ends
} magazines;

cco_lock cco_cells_lock;
// Under the lock: the depot, the number of its magazines, the least number since the last trim, the part of the current
// block that is not cut, and whether a thread trims.
static cell *depot;
static atomic_uint depot_count;  // read without the lock as well
static uint32_t least;
static char *uncut;
static uint32_t uncut_count;
static bool is_trimming;
// Under the lock: what the last walk has left (see `is_in_vain`).
static uint32_t left, skips, skipped;
static atomic_uint_fast64_t walks;

static __thread __attribute__((tls_model("initial-exec"))) magazines mine;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static uint32_t deposited(void) { return atomic_load_explicit(&depot_count, memory_order_relaxed); }
static void change_count(uint32_t difference) {
  atomic_store_explicit(&depot_count, deposited() + difference, memory_order_relaxed);
}

static void push(cell *magazine, uint32_t count) {
  magazine->count = count;
  magazine->next_magazine = depot;
  depot = magazine;
  change_count(1);
}

static cell *pop(void) {
  cell *magazine = depot;
  if (magazine == NULL) return NULL;
  depot = magazine->next_magazine;
  change_count(-1u);
  if (deposited() < least) least = deposited();
  return magazine;
}

static void deposit(cell *magazine, uint32_t count) {
  cco_lock_take(&cco_cells_lock);
  push(magazine, count);
  cco_lock_leave(&cco_cells_lock);
}

static void thread_ends(void *known) {
  magazines *m = known;
  if (m->spare != NULL) deposit(m->spare, MAGAZINE);
  if (m->loaded != NULL) deposit(m->loaded, MAGAZINE - m->room);
  // A destructor that runs later may use cells again, and makes the thread known again.
  *m = (magazines){0};
}

static void make_key(void) {
  if (pthread_key_create(&key, thread_ends) != 0) abort();
}

static void become_known(void) {
  (void)pthread_once(&once, make_key);
  if (pthread_setspecific(key, &mine) != 0) abort();
  mine.is_known = true;
  mine.room = MAGAZINE;
}

// Cuts a magazine from the current block, in the order of addresses. Under the lock.
static cell *cut(uint32_t *count) {
  if (uncut_count == 0) {
    uncut = cco_cell_block();
    if (uncut == NULL) return NULL;
    uncut_count = CELLS_IN_BLOCK;
  }
  *count = uncut_count < MAGAZINE ? uncut_count : MAGAZINE;
  cell *following = NULL;
  for (uint32_t i = *count; i-- > 0;) {
    cell *one = (cell *)(uncut + i * CCO_CELL_BYTES);
    one->next = following;
    following = one;
  }
  uncut += *count * CCO_CELL_BYTES;
  uncut_count -= *count;
  return following;
}

static __attribute__((noinline)) void load_magazine(void) {
  if (!mine.is_known) become_known();
  mine.loaded = mine.spare;
  mine.spare = NULL;
  uint32_t count = MAGAZINE;
  if (mine.loaded == NULL) {
    cco_lock_take(&cco_cells_lock);
    mine.loaded = pop();
    if (mine.loaded != NULL) count = mine.loaded->count;
    else mine.loaded = cut(&count);
    cco_lock_leave(&cco_cells_lock);
  }
  mine.room = MAGAZINE - count;
  if (mine.loaded != NULL) return;
  (void)fputs("Coroutine: no memory is left for the record of a coroutine\n", stderr);
  abort();
}

static __attribute__((noinline)) void unload_magazine(void) {
  if (!mine.is_known) return become_known();
  if (mine.spare != NULL) deposit(mine.spare, MAGAZINE);
  mine.spare = mine.loaded;
  mine.loaded = NULL;
  mine.room = MAGAZINE;
}

void *cco_cell_take(void) {
  if (CELLS_ARE_ALLOCATED) return malloc(CCO_CELL_BYTES);
  if (__builtin_expect(mine.loaded == NULL, 0)) load_magazine();
  cell *first = mine.loaded;
  mine.loaded = first->next;
  mine.room++;
  // A cell that was given back by a burst has left the caches. The next launch writes all of it.
  if (first->next != NULL) {
    for (int line = 0; line < CCO_CELL_BYTES / 64; line++) __builtin_prefetch((char *)first->next + 64 * line, 1);
  }
  return first;
}

void cco_cell_give(void *memory) {
  if (CELLS_ARE_ALLOCATED) return free(memory);
  if (__builtin_expect(mine.room == 0, 0)) unload_magazine();
  cell *given = memory;
  given->next = mine.loaded;
  mine.loaded = given;
  mine.room--;
}

uint64_t cco_cells_pooled(void) { return (uint64_t)deposited() * MAGAZINE; }

// ---- trim

enum { MOST_SKIPS = 32 };

// Whether a walk would bring little, because the last one did, and the depot has not grown. Under the lock.
static bool is_in_vain(void) {
  if (skips == 0 || deposited() > left + left / 4) return false;
  return skipped++ < skips;
}

// Remembers what a walk of `walked` cells has brought. Under the lock, when the rest is back in the depot.
static void note_walk(size_t walked, size_t trimmed) {
  left = deposited();
  skipped = 0;
  if (trimmed >= walked / 16) skips = 0;
  else if (skips == 0) skips = 1;
  else if (skips < MOST_SKIPS) skips *= 2;
  atomic_fetch_add_explicit(&walks, 1, memory_order_relaxed);
}

uint64_t cco_cells_walks(void) { return atomic_load_explicit(&walks, memory_order_relaxed); }

// Takes the magazines out of the depot that were unused since the last trim, except for `keep` of them. Under the lock.
static cell *take_unused(uint32_t keep) {
  uint32_t used = deposited() - least;
  if (used > keep) keep = used;
  least = deposited();
  if (deposited() <= keep || is_in_vain()) return NULL;
  cell **end = &depot;
  for (uint32_t i = 0; i < keep; i++) end = &(*end)->next_magazine;
  cell *unused = *end;
  *end = NULL;
  atomic_store_explicit(&depot_count, keep, memory_order_relaxed);
  least = keep;
  return unused;
}

// Makes magazines anew of the cells whose block has a cell that is not among them; returns a list as the depot's.
static cell *magazines_of_rest(cell *magazine) {
  cell *kept = NULL, *open = NULL;
  uint32_t count = 0;
  while (magazine != NULL) {
    cell *next_magazine = magazine->next_magazine, *next;
    for (cell *one = magazine; one != NULL; one = next) {
      next = one->next;
      if (slab_of(one)->free[block_of(one)] == CELLS_IN_BLOCK) continue;
      one->next = open;
      open = one;
      open->count = ++count;
      if (count < MAGAZINE) continue;
      open->next_magazine = kept;
      kept = open;
      open = NULL;
      count = 0;
    }
    magazine = next_magazine;
  }
  if (open == NULL) return kept;
  open->next_magazine = kept;
  return open;
}

// Gives the memory of the full blocks of a slab back, neighbours in one call; returns their bits.
static uint32_t drop_blocks(cell_slab *slab) {
  uint32_t blocks = 0;
  for (uint32_t i = 0; i < CELL_BLOCKS; i++) {
    if (slab->free[i] == CELLS_IN_BLOCK) blocks |= 1u << i;
    slab->free[i] = 0;
  }
  for (uint32_t i = 0; i < CELL_BLOCKS; i++) {
    if ((blocks >> i & 1) == 0) continue;
    uint32_t end = i + 1;
    while (end < CELL_BLOCKS && (blocks >> end & 1) != 0) end++;
    // Not the page of the header.
    size_t bytes = (end - i) * (size_t)CELL_BLOCK_BYTES, kept = i == 0 ? (size_t)sysconf(_SC_PAGESIZE) : 0;
    if (kept < bytes) (void)madvise((char *)slab + i * (size_t)CELL_BLOCK_BYTES + kept, bytes - kept, MADV_DONTNEED);
    i = end;
  }
  return blocks;
}

size_t cco_cells_trim(size_t keep) {
  cco_lock_take(&cco_cells_lock);
  cell *unused = is_trimming ? NULL : take_unused((uint32_t)(keep / MAGAZINE));
  if (unused != NULL) is_trimming = true;
  cell_slab *slabs = cco_cell_slabs;
  cco_lock_leave(&cco_cells_lock);
  if (unused == NULL) return 0;

  size_t walked = 0, trimmed = 0;
  for (cell *magazine = unused; magazine != NULL; magazine = magazine->next_magazine)
    for (cell *one = magazine; one != NULL; one = one->next, walked++) slab_of(one)->free[block_of(one)]++;
  cell *rest = magazines_of_rest(unused);
  for (cell_slab *slab = slabs; slab != NULL; slab = slab->next) {
    uint32_t blocks = drop_blocks(slab);
    trimmed += (size_t)__builtin_popcount(blocks) * CELLS_IN_BLOCK;
    if (blocks == 0) continue;
    cco_lock_take(&cco_cells_lock);
    cco_cell_blocks_bare(slab, blocks);
    cco_lock_leave(&cco_cells_lock);
  }
  cco_lock_take(&cco_cells_lock);
  while (rest != NULL) {
    cell *next = rest->next_magazine;
    push(rest, rest->count);
    rest = next;
  }
  note_walk(walked, trimmed);
  is_trimming = false;
  cco_lock_leave(&cco_cells_lock);
  return trimmed;
}
