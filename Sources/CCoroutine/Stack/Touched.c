// The pages of a stack that were touched, by the page tables: mincore says which pages of private memory are there.
#include "Sites.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

size_t cco_touched(char *low, char *high, size_t page) {
  unsigned char in_memory[128] = {0};
  while (low < high) {
    size_t count = (size_t)(high - low) / page;
    if (count > sizeof in_memory) count = sizeof in_memory;
    if (mincore(low, count * page, in_memory) != 0) return 0;
    for (size_t i = 0; i < count; i++)
      if (in_memory[i] & 1) return (size_t)(high - low) - i * page;
    low += count * page;
  }
  return 0;
}

// Whether the kernel tells touched pages from others, also after memory was given back. Some do not, and say that all
// are in memory.
static bool prove(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 4 * page;
  char *low = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (low == MAP_FAILED) return false;
  // A huge page would be in memory as a whole.
  (void)madvise(low, bytes, MADV_NOHUGEPAGE);
  char *high = low + bytes;
  bool holds = cco_touched(low, high, page) == 0;
  *(volatile char *)(low + 2 * page) = 1;
  holds = holds && cco_touched(low, high, page) == 2 * page;
  holds = holds && madvise(low, bytes, MADV_DONTNEED) == 0 && cco_touched(low, high, page) == 0;
  munmap(low, bytes);
  return holds;
}

bool cco_knows_touched(void) {
  enum { UNKNOWN, HOLDS, FAILS };
  static atomic_uint verdict;
  unsigned known = atomic_load_explicit(&verdict, memory_order_relaxed);
  if (known == UNKNOWN) {
    // Several threads may prove it at a time.
    known = prove() ? HOLDS : FAILS;
    atomic_store_explicit(&verdict, known, memory_order_relaxed);
  }
  return known == HOLDS;
}
