// Stack sizes by launch site. A sample is a body that begins on a stack whose memory below its frames was given back.
// At its end the lowest page that is in memory says how deep it has been: a fact of the page tables, which costs the
// body nothing. A sample costs two system calls, and the page faults of the memory that was given back: 3 µs in all. So
// the first ALWAYS coroutines of a site are measured, and then one in 256 by a hash of its number, which no pattern of
// launches follows. They are counted when they begin, so a site whose coroutines do not end measures few of them, too:
// one in 16, as long as fewer than TRUSTED have ended.
//
// The size is the smallest class of FACTOR times the deepest sample. As long as fewer than TRUSTED samples have ended,
// it is at least the standard size: one short run says little about the next one. A size never shrinks below that.
//
// States of an entry of the table, by its `key`
//
//   FREE (0) --the first cco_site_of that finds it free, by one compare-and-swap--> TAKEN (the key) for ever
//
// Invariants
//  1. A key is in one entry at most. Its search visits the entries from its hash on, at most REACH of them, until it
//     finds the key or a free entry, and takes the free one. An entry that is taken does not change, so two searches
//     for one key visit the same entries, and meet at the same first free one. One of the two compare-and-swaps wins;
//     the other sees the winner's key, and returns that entry if it is its own, or goes on. So all threads share one
//     entry, and no sample is lost to a second one.
//  2. `deepest` never decreases: it changes by compare-and-swaps to larger numbers. Of two samples at a time, the
//     deeper one stays, whichever comes first.
//  3. `ended` is counted after `deepest`, with release, and read before it, with acquire. So a size that is chosen with
//     TRUSTED samples is at least that of the deepest of these.
//  4. The table has a fixed size, and gives nothing back: sites are places in code. What finds no entry gets the
//     standard size, and is not measured.
//
// A key is the address of the file's name and 16 bits of the line. Two sites of one file that are 65,536 lines apart
// share an entry, and get the size of the deeper one.
#include "Sites.h"
#include "Slab.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

struct cco_site {
  alignas(64) atomic_uint_fast64_t key;
  // The next two are stored by each search that finds the entry, always the same numbers.
  atomic_uint file_length, line;
  atomic_size_t deepest;
  atomic_uint begun, ended;  // samples; threads that begin some at the same time may make `begun` more than ALWAYS
};

enum { FACTOR = 4, TRUSTED = 16, ALWAYS = 64, REACH = 64, IS_SAMPLE = 1, ADDRESS_BITS = 48 };

static cco_site sites[CCO_MOST_SITES];
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15;

// ---- sites

cco_site *cco_site_of(const cco_label *label) {
  uintptr_t file = (uintptr_t)label->file;
  if (file == 0 || (uint64_t)file >> ADDRESS_BITS != 0) return NULL;
  uint64_t key = (uint64_t)file << 16 | (label->line & 0xFFFF);
  uint32_t first = (uint32_t)(key * GOLDEN >> 32);
  for (uint32_t i = 0; i < REACH; i++) {
    cco_site *site = &sites[(first + i) % CCO_MOST_SITES];
    uint64_t found = atomic_load_explicit(&site->key, memory_order_relaxed);
    if (found == 0 && atomic_compare_exchange_strong_explicit(&site->key, &found, key, memory_order_relaxed,
                                                              memory_order_relaxed))
      found = key;
    if (found != key) continue;
    if (atomic_load_explicit(&site->file_length, memory_order_relaxed) == 0) {
      atomic_store_explicit(&site->line, label->line, memory_order_relaxed);
      atomic_store_explicit(&site->file_length, label->file_length, memory_order_relaxed);
    }
    return site;
  }
  return NULL;
}

size_t cco_site_stack(const cco_site *site, size_t least) {
  uint32_t ended = site == NULL ? 0 : atomic_load_explicit(&site->ended, memory_order_acquire);
  size_t wanted = site == NULL ? 0 : FACTOR * atomic_load_explicit(&site->deepest, memory_order_relaxed);
  if (ended < TRUSTED && wanted < CCO_STANDARD_STACK) wanted = CCO_STANDARD_STACK;
  if (wanted > CCO_LARGEST_STACK) wanted = CCO_LARGEST_STACK;
  return wanted > least ? wanted : least;
}

bool cco_site_samples(const cco_site *site, uint64_t id) {
  if (!cco_knows_touched()) return false;
  if (atomic_load_explicit(&site->begun, memory_order_relaxed) < ALWAYS) return true;
  int one_in = atomic_load_explicit(&site->ended, memory_order_relaxed) < TRUSTED ? 4 : 8;  // as a power of two
  return id * GOLDEN >> (64 - one_in) == 0;
}

// ---- contexts

static cco_site *site_in(const cco_context *context) {
  uintptr_t address = (uintptr_t)context->argument & ~(uintptr_t)IS_SAMPLE;
  return address >= (uintptr_t)sites && address < (uintptr_t)(sites + CCO_MOST_SITES) ? (cco_site *)address : NULL;
}

void cco_site_begin(cco_context *context, cco_site *site, bool is_sample) {
  if (is_sample) {
    char *frames = cco_sanitizer_saved_stack(context->parked.stack);
    size_t bytes = (size_t)(frames - context->low);
    bytes -= bytes % (size_t)sysconf(_SC_PAGESIZE);
    is_sample = bytes == 0 || madvise(context->low, bytes, MADV_DONTNEED) == 0;
  }
  if (is_sample) atomic_fetch_add_explicit(&site->begun, 1, memory_order_relaxed);
  context->argument = (char *)site + (is_sample ? IS_SAMPLE : 0);
}

// Returns whether the kernel has said how deep the stack was used.
static bool note(const cco_context *context, cco_site *site) {
  char *high = context->low + cco_classes[context->size_class].stack;
  size_t depth = cco_touched(context->low, high, (size_t)sysconf(_SC_PAGESIZE));
  size_t deepest = atomic_load_explicit(&site->deepest, memory_order_relaxed);
  while (deepest < depth && !atomic_compare_exchange_weak_explicit(&site->deepest, &deepest, depth,
                                                                   memory_order_relaxed, memory_order_relaxed)) {
  }
  return depth != 0;
}

void cco_site_note(const cco_context *context) {
  cco_site *site = site_in(context);
  if (site != NULL && ((uintptr_t)context->argument & IS_SAMPLE) != 0) (void)note(context, site);
}

void cco_site_end(cco_context *context) {
  cco_site *site = site_in(context);
  bool is_sample = ((uintptr_t)context->argument & IS_SAMPLE) != 0;
  context->argument = NULL;
  if (site != NULL && is_sample && note(context, site))
    atomic_fetch_add_explicit(&site->ended, 1, memory_order_release);
}

// ---- reports

static bool get_use(const cco_site *site, cco_site_use *use) {
  // First: what the other fields must hold is written before the first sample has ended.
  use->ended = atomic_load_explicit(&site->ended, memory_order_acquire);
  if (use->ended == 0) return false;
  uint64_t key = atomic_load_explicit(&site->key, memory_order_relaxed);
  use->file = (const char *)(uintptr_t)(key >> 16);
  use->file_length = atomic_load_explicit(&site->file_length, memory_order_relaxed);
  use->line = atomic_load_explicit(&site->line, memory_order_relaxed);
  use->deepest = atomic_load_explicit(&site->deepest, memory_order_relaxed);
  use->stack = cco_classes[cco_stack_class(cco_site_stack(site, 1))].stack;
  return true;
}

bool cco_site_at(uint32_t index, cco_site_use *use) { return get_use(&sites[index], use); }

bool cco_site_of_context(const cco_context *context, cco_site_use *use) {
  const cco_site *site = site_in(context);
  if (site == NULL) return false;
  (void)get_use(site, use);
  return true;
}
