// Hazard 5: a guard below every stack, without splitting the mapping where the kernel can.
//
//   markers    MADV_GUARD_INSTALL (Linux 6.13) marks page-table entries. One million guards fit in a few mappings,
//              survive MADV_DONTNEED, and several are installed by one process_madvise call, which halves their cost.
//   mprotect   a mapping for the guard and one for the stack: about 32,750 stacks until vm.max_map_count (65,530) is
//              reached, which is answered as CCO_OUT_OF_MAPS.
//   none       only when a test asks for it.
#include "Slab.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
// "The calling process" for process_madvise, from Linux 6.14. A descriptor from pidfd_open would go on meaning the
// parent after a fork, whose memory it would then mark.
enum { SELF = -10001, BATCH = 32 };

static cco_guard_kind kind;
static bool in_batches;
static atomic_uint_fast64_t split;  // guards that stand by mprotect
static const char *description = "not started";

const char *cco_guard_description(void) { return description; }
cco_guard_kind cco_guards_kind(void) { return kind; }

static void probe(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return;
  if (madvise(pages, page, MADV_GUARD_INSTALL) == 0) {
    kind = CCO_GUARD_MARKERS;
    struct iovec second = {pages + page, page};
    in_batches = syscall(SYS_process_madvise, SELF, &second, 1UL, MADV_GUARD_INSTALL, 0U) == (long)page;
  }
  munmap(pages, 2 * page);
}

void cco_guards_start(void) {
  if (cco_is_disabled(CCO_MITIGATION_GUARDS)) {
    description = "off: disabled by a test; an overflow writes into a neighbour";
    return;
  }
  cco_mark_active(CCO_MITIGATION_GUARDS, true);
  kind = CCO_GUARD_MPROTECT;
  if (!cco_is_disabled(CCO_MITIGATION_GUARD_MARKERS)) probe();
  if (kind == CCO_GUARD_MARKERS) {
    cco_mark_active(CCO_MITIGATION_GUARD_MARKERS, true);
    description = in_batches ? "on: markers in page tables (MADV_GUARD_INSTALL), installed in batches"
                             : "on: markers in page tables (MADV_GUARD_INSTALL), installed singly";
  } else {
    description = cco_is_disabled(CCO_MITIGATION_GUARD_MARKERS)
                      ? "on, by mprotect: markers disabled by a test; vm.max_map_count bounds the number of stacks"
                      : "on, by mprotect: this kernel has no MADV_GUARD_INSTALL (Linux 6.13); vm.max_map_count bounds "
                        "the number of stacks";
  }
}

static cco_status guard_by_mprotect(char *guard, size_t bytes) {
  if (mprotect(guard, bytes, PROT_NONE) != 0) return CCO_OUT_OF_MAPS;
  atomic_fetch_add_explicit(&split, 1, memory_order_relaxed);
  return CCO_OK;
}

static cco_status guard_one(char *guard, size_t bytes) {
  if (kind == CCO_GUARD_MPROTECT) return guard_by_mprotect(guard, bytes);
  if (madvise(guard, bytes, MADV_GUARD_INSTALL) == 0) return CCO_OK;
  // Locked memory (mlockall after start) takes no markers.
  return errno == EINVAL ? guard_by_mprotect(guard, bytes) : CCO_OUT_OF_MEMORY;
}

cco_status cco_guards_install(cco_slab *slab, uint32_t wish) {
  const cco_class_sizes *sizes = &cco_classes[cco_slab_class(slab)];
  uint32_t rest = slab->slots - slab->guarded;
  if (wish > BATCH) wish = BATCH;
  if (wish > rest) wish = rest;
  if (kind == 0) {
    slab->guarded += wish < 1 ? 1 : wish;
    return CCO_OK;
  }
  char *first = cco_slab_base(slab) + slab->guarded * sizes->stride;
  if (in_batches && wish > 1) {
    struct iovec guards[BATCH];
    for (uint32_t i = 0; i < wish; i++) guards[i] = (struct iovec){first + i * sizes->stride, sizes->guard};
    long done = syscall(SYS_process_madvise, SELF, guards, (unsigned long)wish, MADV_GUARD_INSTALL, 0U);
    if (done >= (long)sizes->guard) {
      slab->guarded += (uint32_t)((size_t)done / sizes->guard);
      return CCO_OK;
    }
    // Refused as a batch: the single call below knows why.
  }
  cco_status status = guard_one(first, sizes->guard);
  if (status == CCO_OK) slab->guarded++;
  return status;
}

void cco_guards_forget(uint32_t count) {
  uint64_t standing = atomic_load_explicit(&split, memory_order_relaxed);
  uint64_t gone = count < standing ? count : standing;
  if (kind == CCO_GUARD_MPROTECT) atomic_fetch_sub_explicit(&split, gone, memory_order_relaxed);
}

bool cco_guards_near_map_limit(void) {
  unsigned long limit = 65530;
  FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
  if (file != NULL) {
    if (fscanf(file, "%lu", &limit) != 1) limit = 65530;
    fclose(file);
  }
  // Two mappings a guard; the program has some hundreds of its own.
  return 2 * atomic_load_explicit(&split, memory_order_relaxed) + limit / 16 >= limit;
}
