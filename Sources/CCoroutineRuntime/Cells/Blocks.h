// The memory of cells: slabs of 2 MiB, each of 32 blocks. A block is the unit that goes back to the kernel.
//
// A slab is aligned to its size, so the address of a cell leads to its slab and its block. Slabs are never unmapped: a
// block without memory costs address space alone, and its cells are handed out again before a new slab is made.
#ifndef CCOROUTINE_CELLS_BLOCKS_H
#define CCOROUTINE_CELLS_BLOCKS_H

#include "CCoroutineRuntime.h"
#include "Stack/Lock.h"

enum {
  CELL_BLOCK_BYTES = 1 << 16,
  CELL_BLOCKS = 32,
  // The first cell's place is the slab's header in the first block, and free in the others. The rest of a block shifts
  // its cells by up to three cache lines, or the lines that a switch uses would share a quarter of the cache's sets.
  CELLS_IN_BLOCK = 254,
};
#define CELL_SLAB_BYTES ((size_t)CELL_BLOCKS * CELL_BLOCK_BYTES)

typedef struct cell_slab {
  struct cell_slab *next;
  uint32_t bare;               // bits: the blocks without memory; under the lock
  uint16_t free[CELL_BLOCKS];  // the numbers of free cells that the trimmer has counted; zero at other times
} cell_slab;

static inline cell_slab *slab_of(const void *cell) {
  return (cell_slab *)((uintptr_t)cell & ~(uintptr_t)(CELL_SLAB_BYTES - 1));
}
static inline uint32_t block_of(const void *cell) {
  return (uint32_t)(((uintptr_t)cell & (CELL_SLAB_BYTES - 1)) / CELL_BLOCK_BYTES);
}
static inline char *first_cell(cell_slab *slab, uint32_t block) {
  return (char *)slab + (size_t)block * CELL_BLOCK_BYTES + CCO_CELL_BYTES + block % 4 * 64;
}

// The lock of all that follows (Cells.c).
extern cco_lock cco_cells_lock;

// Under the lock: a block that no cell is taken from yet; NULL if there is no memory.
char *cco_cell_block(void);
// The slabs, the newest first. Read under the lock; the list behind a slab does not change.
extern cell_slab *cco_cell_slabs;
// Under the lock: makes the blocks whose bits are set available again, without memory.
void cco_cell_blocks_bare(cell_slab *slab, uint32_t blocks);

#endif
