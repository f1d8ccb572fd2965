// Hazard 13: the kernel's number of the thread that forks. Swift's runtime takes a lock to initialise a `static let` or
// the caches of a generic type (swift_once). The lock contains the number of its holder, which the runtime caches in a
// thread-local. The thread of a forked child has a new number, but inherits the old one there. Without contention this
// has no effect. With contention, the kernel answers the unlock with an error, because the lock belongs to another
// thread, and the runtime retries for ever.
//
//   before a fork   notes the forking thread's number, and the thread-local block of the runtime
//   in the child    keeps both, because a fork of the child notes others
//   at its first    finds the word of the block that swift_once uses, by a lock that no other thread knows, and stores
//   use             the new number there
//
// The child does not do this at once, because an initialiser may fork, and then holds a lock under the old number until
// it returns. (An initialiser that also uses the runtime in the child before it returns never returns.) A child of a
// child may still have the number of the first process, so both numbers are tried. A word that contains such a number
// by chance is restored. If no word is found, nothing has changed.
//
// Limit: other code may cache the number too, such as Synchronization.Mutex in each program and library that is
// compiled with it (docs/hazards.md). A new thread of the child has the right number everywhere.
#include "SwiftWords.h"

#include <unistd.h>

// Weak: a program may not link Swift's runtime.
extern void swift_once(void *lock, void (*make)(void *_Nullable context), void *_Nullable context)
    __attribute__((weak));

// The block and the number of the thread that forks. Fork.c holds the lock of the cells meanwhile.
static cco_thread_block block;
static uint32_t parents;

// Those of this process's first thread, as it had them in the parent.
static struct {
  cco_thread_block block;
  uint32_t number;
} kept;
// The number that this thread may have cached in the parent's parent.
static uint32_t older;

typedef struct once_trial {
  _Alignas(8) volatile uint32_t lock[2];  // a flag and the holder, in either order
  uint32_t number;
  bool holds;
} once_trial;

static void look(void *context) {
  once_trial *trial = context;
  trial->holds = trial->lock[0] == trial->number || trial->lock[1] == trial->number;
}

// Whether swift_once locks under this number on the calling thread.
static bool locks_by(uint32_t number) {
  once_trial trial = {.number = number};
  swift_once((void *)trial.lock, look, &trial);
  return trial.holds;
}

void cco_note_forking_thread(void) {
  parents = (uint32_t)gettid();
  block = (cco_thread_block){.symbol = (const void *)swift_once};
  if (!swift_once || !cco_find_thread_block(&block)) block.count = 0;
}

void cco_keep_forked_thread(void) {
  older = kept.block.words == block.words ? kept.number : 0;
  kept.block = block;
  kept.number = parents;
}

void cco_renumber_forked_thread(void) {
  uint32_t number = (uint32_t)gettid(), *words = (uint32_t *)kept.block.words;
  size_t count = kept.block.count * sizeof(void *) / sizeof *words;
  // The runtime reads the number at the thread's first lock, so a thread that the child has made has the right one.
  if (count == 0 || number != (uint32_t)getpid() || locks_by(number)) return;
  for (size_t i = 0; i < count; i++) {
    uint32_t former = words[i];
    if (former == 0 || (former != kept.number && former != older)) continue;
    words[i] = number;
    if (locks_by(number)) return;
    words[i] = former;
  }
}
