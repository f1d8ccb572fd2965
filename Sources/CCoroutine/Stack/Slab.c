// The table of slabs, and the lookup of the stack that contains an address.
//
// Number and size of slabs.
// - Few and large: the signal handler of an overflow walks the table.
// - Not one huge slab: a slab goes back to the kernel, page tables included, only if none of its slots is in use. And
//   if address space is limited, the first slab must be small.
// - Therefore slabs of a class double in size, from about a megabyte to a few gigabytes. One million stacks of 512 KiB
//   are about 150 slabs. The kernel merges the mappings of neighbouring slabs.
//
// Entries. An entry of the table is free (`base` NULL) or describes one mapping. `version` is the entry's seqlock. A
// reader that finds it odd or changed ignores the entry and does not wait, because the reader may be a signal handler
// on the writer's thread. That is correct: a stack that a thread is running on lies in a slab that does not change.
#include "Slab.h"

#include <sys/mman.h>
#include <unistd.h>

cco_slab cco_slabs[CCO_MOST_SLABS];
cco_class_sizes cco_classes[CCO_STACK_CLASSES];
static atomic_uint used;              // the number of entries that were ever in use
static atomic_uint_fast64_t mapped;   // bytes
static atomic_uintptr_t retired;      // the number of slabs that were ever given back

// The usable size of a stack, and the size of the guard below it, before rounding to pages. Swift's frames are not
// probed page by page, so a frame larger than the guard could jump over it. The guard is wide, because address space
// costs nothing, and a guard marker costs eight bytes of a page table that exists anyway. The smallest classes are for
// small frames, so their guards are smaller.
static const struct {
  size_t stack, guard;
} wanted[CCO_STACK_CLASSES] = {
    {(size_t)16 << 10, (size_t)16 << 10}, {(size_t)64 << 10, (size_t)16 << 10},
    {(size_t)256 << 10, (size_t)64 << 10}, {(size_t)512 << 10, (size_t)64 << 10},
    {(size_t)1 << 20, (size_t)64 << 10},  {(size_t)4 << 20, (size_t)64 << 10},
    {CCO_LARGEST_STACK, (size_t)64 << 10},
};

static const size_t LARGEST_SLAB = (size_t)4 << 30;

static size_t whole_pages(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

void cco_slabs_start(void) {
  bool guarded = !cco_is_disabled(CCO_MITIGATION_GUARDS);
  for (int i = 0; i < CCO_STACK_CLASSES; i++) {
    size_t stack = whole_pages(wanted[i].stack), guard = guarded ? whole_pages(wanted[i].guard) : 0;
    cco_classes[i] = (cco_class_sizes){stack, guard, stack + guard};
  }
}

uint32_t cco_stack_class(size_t stack_size) {
  uint32_t found = 0;
  while (found < CCO_STACK_CLASSES && wanted[found].stack < stack_size) found++;
  return found;
}

uint64_t cco_slab_mapped_bytes(void) { return atomic_load_explicit(&mapped, memory_order_relaxed); }

static cco_slab *free_entry(void) {
  unsigned count = atomic_load_explicit(&used, memory_order_relaxed);
  for (unsigned i = 0; i < count; i++)
    if (cco_slab_base(&cco_slabs[i]) == NULL) return &cco_slabs[i];
  if (count == CCO_MOST_SLABS) return NULL;
  atomic_store_explicit(&used, count + 1, memory_order_release);
  return &cco_slabs[count];
}

static void publish(cco_slab *slab, char *base, size_t bytes, uint32_t size_class) {
  unsigned version = atomic_load_explicit(&slab->version, memory_order_relaxed);
  atomic_store_explicit(&slab->version, version + 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  atomic_store_explicit(&slab->base, base, memory_order_relaxed);
  atomic_store_explicit(&slab->bytes, bytes, memory_order_relaxed);
  atomic_store_explicit(&slab->size_class, size_class, memory_order_relaxed);
  atomic_store_explicit(&slab->version, version + 2, memory_order_release);
}

// Whether new memory is locked, and so resident at once (mlockall with MCL_FUTURE): an untouched page is.
static bool is_new_memory_locked(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  // One byte is the answer. An emulator of larger pages writes one for each page of its machine.
  unsigned char is_there[64] = {0};
  void *probe = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) return false;
  bool is_locked = mincore(probe, page, is_there) == 0 && (is_there[0] & 1) != 0;
  munmap(probe, page);
  return is_locked;
}

// Reserves address space. Locked memory is mapped without access, so that nothing of it gets resident; then its pages
// are locked as they are touched, and the access comes last.
static char *reserve(size_t bytes, bool is_locked) {
  int access = PROT_READ | PROT_WRITE;
  char *base = mmap(NULL, bytes, is_locked ? PROT_NONE : access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED || !is_locked) return base;
  // If it is refused, the memory is resident as any other of this process.
  (void)mlock2(base, bytes, MLOCK_ONFAULT);
  if (mprotect(base, bytes, access) == 0) return base;
  munmap(base, bytes);
  return MAP_FAILED;
}

cco_slab *cco_slab_map(uint32_t size_class, uint32_t wish) {
  size_t stride = cco_classes[size_class].stride;
  cco_slab *slab = free_entry();
  if (slab == NULL) return NULL;
  size_t slots = wish < 1 ? 1 : wish;
  if (slots * stride > LARGEST_SLAB) slots = LARGEST_SLAB / stride;
  char *base = MAP_FAILED;
  bool is_locked = is_new_memory_locked();
  while (slots >= 1) {
    base = reserve(slots * stride, is_locked);
    if (base != MAP_FAILED) break;
    slots /= 2;
  }
  if (base == MAP_FAILED) return NULL;
  // With a huge page, the first touch of one stack would take 2 MiB. Only kernels without huge pages refuse this call.
  (void)madvise(base, slots * stride, MADV_NOHUGEPAGE);
  (void)madvise(base, slots * stride, MADV_DONTDUMP);
  slab->slots = (uint32_t)slots;
  slab->fresh = slab->guarded = slab->split = slab->warm = slab->dumped = 0;
  slab->next = CCO_NO_SLAB;
  publish(slab, base, slots * stride, size_class);
  atomic_fetch_add_explicit(&mapped, slots * stride, memory_order_relaxed);
  return slab;
}

void cco_slab_dump_more(cco_slab *slab) {
  // One call for 32 slots at least, and for a quarter more of a large slab. It splits no mapping but the first time.
  uint32_t more = 32 + slab->dumped / 4, rest = slab->slots - slab->dumped;
  if (more > rest) more = rest;
  size_t stride = cco_classes[cco_slab_class(slab)].stride;
  (void)madvise(cco_slab_base(slab) + slab->dumped * stride, more * stride, MADV_DODUMP);
  slab->dumped += more;
}

void cco_slab_retire(cco_slab *slab) {
  atomic_fetch_sub_explicit(&mapped, atomic_load_explicit(&slab->bytes, memory_order_relaxed), memory_order_relaxed);
  cco_guards_forget(slab);
  publish(slab, NULL, 0, 0);
  // The caller unmaps the slab after this, so no other mapping can be there before the count has changed.
  atomic_fetch_add_explicit(&retired, 1, memory_order_release);
}

// Whether `slab` contains `address`. If so, sets the slab's base and size class.
static bool contains(cco_slab *slab, const char *address, char **base, uint32_t *size_class) {
  unsigned version = atomic_load_explicit(&slab->version, memory_order_acquire);
  *base = cco_slab_base(slab);
  size_t bytes = atomic_load_explicit(&slab->bytes, memory_order_relaxed);
  *size_class = cco_slab_class(slab);
  atomic_thread_fence(memory_order_acquire);
  bool settled = version % 2 == 0 && atomic_load_explicit(&slab->version, memory_order_relaxed) == version;
  return settled && (uintptr_t)address - (uintptr_t)*base < bytes;
}

const cco_context *cco_context_at(const void *address, bool *in_guard) {
  unsigned count = atomic_load_explicit(&used, memory_order_acquire);
  for (unsigned i = 0; i < count; i++) {
    char *base;
    uint32_t size_class;
    if (!contains(&cco_slabs[i], address, &base, &size_class)) continue;
    const cco_class_sizes *sizes = &cco_classes[size_class];
    size_t offset = (size_t)((const char *)address - base), slot = offset / sizes->stride;
    const cco_context *context = cco_slot_context(base, sizes->stride, slot);
    // An unused slot reads as zero or as its last context left it: FREE, see Stack.c.
    if (context->phase < CCO_READY || context->phase > CCO_FINISHED) return NULL;
    if (in_guard) *in_guard = offset - slot * sizes->stride < sizes->guard;
    return context;
  }
  return NULL;
}

// Caches the last result in the thread's words. The result is valid until a slab is retired, because slots and their
// control blocks do not move. An address between the two bounds belongs to that slot, and the stack on which the caller
// runs is in use.
__attribute__((noinline)) const cco_context *cco_context_here(void) {
  cco_thread_words *words = cco_thread();
  const char *here = __builtin_frame_address(0);
  uintptr_t maps = atomic_load_explicit(&retired, memory_order_acquire);
  if (words->found_maps == maps && here < (const char *)words->found && here >= (const char *)words->found_low)
    return words->found;
  const cco_context *context = cco_context_at(here, NULL);
  if (context != NULL) {
    words->found = context;
    words->found_low = context->low;
    words->found_maps = maps;
  }
  return context;
}
