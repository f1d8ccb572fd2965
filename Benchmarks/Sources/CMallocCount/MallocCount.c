// The program's definitions of malloc and its kin take the place of the C library's, also for the libraries it loads,
// by the rules of dynamic linking; glibc keeps its own reachable as `__libc_*`. One relaxed atomic add a call: the
// counts are exact whatever thread allocates. Memory that comes from mmap directly (stacks, slabs) is not counted.
#include "CMallocCount.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

#if !defined(__GLIBC__)
#error "Allocations are counted through glibc's __libc_malloc; run this check on a system with glibc."
#endif

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static atomic_uint_fast64_t allocations;

static void count(void) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); }

uint64_t cmalloc_count(void) { return atomic_load_explicit(&allocations, memory_order_relaxed); }

void *malloc(size_t size) {
  count();
  return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
  count();
  return __libc_calloc(number, size);
}

void *realloc(void *block, size_t size) {
  count();
  return __libc_realloc(block, size);
}

void *memalign(size_t alignment, size_t size) {
  count();
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  count();
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size) {
  if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  count();
  void *block = __libc_memalign(alignment, size);
  if (block == NULL) return ENOMEM;
  *result = block;
  return 0;
}
