// Maps slabs, and hands out their blocks: those without memory first.
#include "Blocks.h"

#include <sys/mman.h>

cell_slab *cco_cell_slabs;
static uint32_t slabs;  // their number
static uint32_t bare;   // the number of blocks that are bare, in all slabs

static const uint32_t ALL = UINT32_MAX;

static bool map_slab(void) {
  // Twice the size, because a mapping begins at any page.
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *low = mmap(NULL, 2 * CELL_SLAB_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (low == MAP_FAILED) return false;
  char *base = (char *)(((uintptr_t)low + CELL_SLAB_BYTES - 1) & ~(uintptr_t)(CELL_SLAB_BYTES - 1));
  if (base > low) (void)munmap(low, (size_t)(base - low));
  (void)munmap(base + CELL_SLAB_BYTES, (size_t)(low + CELL_SLAB_BYTES - base));
  // With a huge page the first cell of a small program would take 2 MiB.
  (void)madvise(base, CELL_SLAB_BYTES, slabs < 4 ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  cell_slab *slab = (cell_slab *)base;
  slab->next = cco_cell_slabs;
  slab->bare = ALL;
  cco_cell_slabs = slab;
  bare += CELL_BLOCKS;
  slabs++;
  return true;
}

char *cco_cell_block(void) {
  if (bare == 0 && !map_slab()) return NULL;
  cell_slab *slab = cco_cell_slabs;
  while (slab->bare == 0) slab = slab->next;
  uint32_t block = (uint32_t)__builtin_ctz(slab->bare);
  slab->bare &= ~(1u << block);
  bare--;
  return first_cell(slab, block);
}

void cco_cell_blocks_bare(cell_slab *slab, uint32_t blocks) {
  slab->bare |= blocks;
  bare += (uint32_t)__builtin_popcount(blocks);
}
