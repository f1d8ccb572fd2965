// Hazard 5: a guard below every stack, if possible without splitting the mapping.
//
//   markers    MADV_GUARD_INSTALL (Linux 6.13) marks page-table entries. One million guards fit in a few mappings, and
//              survive MADV_DONTNEED. One process_madvise call installs several, which halves their cost.
//   mprotect   one mapping for the guard and one for the stack. vm.max_map_count (65,530) allows about 32,750 stacks;
//              the next stack fails with CCO_OUT_OF_MAPS.
//   none       only if a test asks for it.
//
// The result of the call proves nothing: an emulator returns 0 for advice that it does not know (qemu-user), and an
// overflow would then write into a neighbour without a report. So start-up tries each way on a mapping of its own
// (GuardProof.c): markers one by one, markers in batches, and both after the MADV_DONTNEED by which Trim.c frees a run
// of stacks with the guards between them. A way without a visible effect is not used.
#include "GuardProof.h"
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
// SELF: the calling process for process_madvise, from Linux 6.14. A descriptor from pidfd_open would still mean the
// parent after a fork, so a child would mark its parent's memory. BATCH: the most guards of one call. TRIED: the guards
// of the trial of batches.
enum { SELF = -10001, BATCH = 32, TRIED = 2 };

static cco_guard_kind kind;
static bool in_batches;
static atomic_uint_fast64_t split;  // the number of guards by mprotect
static const char *found = "not started";

cco_guard_kind cco_guards_kind(void) { return kind; }

// Called under the report's lock.
const char *cco_guard_description(void) {
  static char text[256];
  uint64_t count = atomic_load_explicit(&split, memory_order_relaxed);
  if (kind != CCO_GUARD_MARKERS || count == 0) return found;
  snprintf(text, sizeof text, "%s; %llu of them by mprotect, in memory that takes no markers (mlockall)", found,
           (unsigned long long)count);
  return text;
}

// ---- installation, without the pool's records

static bool mark(char *guard, size_t bytes) { return madvise(guard, bytes, MADV_GUARD_INSTALL) == 0; }

// Returns the number of guards that were marked, from the first one on.
static size_t mark_batch(char *first, size_t stride, size_t bytes, size_t count) {
  struct iovec guards[BATCH];
  for (size_t i = 0; i < count; i++) guards[i] = (struct iovec){first + i * stride, bytes};
  long done = syscall(SYS_process_madvise, SELF, guards, count, MADV_GUARD_INSTALL, 0U);
  return done > 0 ? (size_t)done / bytes : 0;
}

// ---- start-up

static const char NO_MARKERS[] = "on, by mprotect: this kernel has no MADV_GUARD_INSTALL (Linux 6.13); "
                                 "vm.max_map_count bounds the number of stacks";

// Frees memory as Trim.c does. If the kernel refuses here, it refuses there too, and no guard is lost.
static void give_memory_back(const cco_guard_trial *trial) {
  (void)madvise(trial->low, trial->count * trial->stride, MADV_DONTNEED);
}

// Returns why markers do not work; NULL if they work, one by one.
static const char *try_markers(const cco_guard_trial *trial) {
  if (!mark(cco_trial_guard(trial, 0), trial->guard)) {
    // Locked memory takes no markers. The process may have unlocked its memory (mlockall) before stacks are mapped.
    if (errno != EINVAL || munlock(trial->low, trial->count * trial->stride) != 0 ||
        !mark(cco_trial_guard(trial, 0), trial->guard))
      return NO_MARKERS;
  }
  cco_guard_verdict verdict = cco_trial_verdict(trial, 0, 1);
  if (verdict == CCO_GUARD_HOLDS) {
    give_memory_back(trial);
    verdict = cco_trial_verdict(trial, 0, 1);
    if (verdict == CCO_GUARD_FAILS)
      return "on, by mprotect: guard markers vanish when memory is given back (MADV_DONTNEED); vm.max_map_count bounds "
             "the number of stacks";
  }
  if (verdict == CCO_GUARD_FAILS)
    return "on, by mprotect: MADV_GUARD_INSTALL was answered and does nothing here; vm.max_map_count bounds the number "
           "of stacks";
  if (verdict == CCO_GUARD_UNSEEN)
    return "on, by mprotect: the effect of MADV_GUARD_INSTALL could not be looked at; vm.max_map_count bounds the "
           "number of stacks";
  return NULL;
}

static bool try_batches(const cco_guard_trial *trial) {
  size_t count = trial->count - 1;
  if (mark_batch(cco_trial_guard(trial, 1), trial->stride, trial->guard, count) != count ||
      cco_trial_verdict(trial, 1, count) != CCO_GUARD_HOLDS)
    return false;
  give_memory_back(trial);
  return cco_trial_verdict(trial, 1, count) == CCO_GUARD_HOLDS;
}

// Tries mprotect on the last guard, because the others may have markers.
static cco_guard_verdict try_mprotect(const cco_guard_trial *trial) {
  char *guard = cco_trial_guard(trial, trial->count - 1);
  if (mprotect(guard, trial->guard, PROT_NONE) != 0) return CCO_GUARD_FAILS;
  return cco_trial_verdict(trial, trial->count - 1, 1);
}

void cco_guards_start(void) {
  if (cco_is_disabled(CCO_MITIGATION_GUARDS)) {
    found = "off: disabled by a test; an overflow writes into a neighbour";
    return;
  }
  cco_mark_active(CCO_MITIGATION_GUARDS, true);
  kind = CCO_GUARD_MPROTECT;
  cco_guard_trial trial;
  if (!cco_trial_begin(&trial, 1 + TRIED, cco_classes[0].guard)) {
    found = "on, by mprotect: there was no memory to try guard markers on";
    return;
  }
  const char *refusal = "on, by mprotect: markers disabled by a test; vm.max_map_count bounds the number of stacks";
  if (!cco_is_disabled(CCO_MITIGATION_GUARD_MARKERS)) refusal = try_markers(&trial);
  if (refusal == NULL) {
    kind = CCO_GUARD_MARKERS;
    in_batches = try_batches(&trial);
    cco_mark_active(CCO_MITIGATION_GUARD_MARKERS, true);
    found = in_batches ? "on: markers in page tables (MADV_GUARD_INSTALL), installed in batches"
                       : "on: markers in page tables (MADV_GUARD_INSTALL), installed singly";
  } else {
    found = refusal;
    if (try_mprotect(&trial) == CCO_GUARD_FAILS) {
      found = "off: neither MADV_GUARD_INSTALL nor mprotect keeps a byte from being read here; an overflow writes into "
              "a neighbour";
      cco_mark_active(CCO_MITIGATION_GUARDS, false);
    }
  }
  cco_trial_end(&trial);
}

// ---- the guards of stacks

static cco_status guard_by_mprotect(cco_slab *slab, char *guard, size_t bytes) {
  if (mprotect(guard, bytes, PROT_NONE) != 0) return CCO_OUT_OF_MAPS;
  slab->split++;
  atomic_fetch_add_explicit(&split, 1, memory_order_relaxed);
  return CCO_OK;
}

static cco_status guard_one(cco_slab *slab, char *guard, size_t bytes) {
  if (kind == CCO_GUARD_MARKERS) {
    if (mark(guard, bytes)) return CCO_OK;
    if (errno == ENOMEM) return CCO_OUT_OF_MEMORY;
    // Locked memory (mlockall) takes no markers.
  }
  return guard_by_mprotect(slab, guard, bytes);
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
    uint32_t done = (uint32_t)mark_batch(first, sizes->stride, sizes->guard, wish);
    if (done > 0) {
      slab->guarded += done;
      return CCO_OK;
    }
    // The batch was refused. The single call below finds the reason.
  }
  cco_status status = guard_one(slab, first, sizes->guard);
  if (status == CCO_OK) slab->guarded++;
  return status;
}

void cco_guards_forget(cco_slab *slab) {
  atomic_fetch_sub_explicit(&split, slab->split, memory_order_relaxed);
  slab->split = 0;
}

bool cco_guards_near_map_limit(void) {
  unsigned long limit = 65530;
  FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
  if (file != NULL) {
    if (fscanf(file, "%lu", &limit) != 1) limit = 65530;
    fclose(file);
  }
  // Each guard takes two mappings. A sixteenth of the limit is left to the program, which has some hundreds itself.
  return 2 * atomic_load_explicit(&split, memory_order_relaxed) + limit / 16 >= limit;
}
