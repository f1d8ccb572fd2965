// Hazard 13, the number of the thread that forks. Swift's runtime takes a lock to make what is made once: the value of
// a `static let`, the caches of a generic type (swift_once). The lock contains the kernel's number of its holder, which
// the runtime keeps in a thread-local. The thread of a forked child has another number than the one that it inherits
// there. As long as no second thread wants the lock at the same moment, nothing shows. If one does, the kernel says of
// the unlock that the lock belongs to another thread, and the runtime tries for ever.
//
//   before a fork   notes the forking thread's number, and the thread-local block of the runtime
//   in the child    keeps both: a fork of the child notes others
//   at its first    tries which word of the block swift_once locks by, with a lock of its own that no other thread
//   use             knows, and leaves the new number there
//
// Not in the child at once: an initialiser may fork, and holds a lock by the old number until it returns. (One that
// also uses the runtime in the child before it returns never does.) A child of a child may still have the number of the
// first process, so both are tried. A word that has such a number by chance gets it back. If none is found, nothing has
// changed.
//
// Not reached: the numbers that other code keeps for itself, such as Synchronization.Mutex in each program and library
// that is compiled with it (docs/hazards.md). A new thread of the child has right numbers everywhere.
#include "Internal.h"

#include <unistd.h>

// Weak: a program may not link Swift's runtime.
extern void swift_once(void *lock, void (*make)(void *_Nullable context), void *_Nullable context)
    __attribute__((weak));

// Of the thread that forks, under the lock of the pool, which Fork.c holds meanwhile.
static cco_thread_block block;
static uint32_t parents;

// Of the thread that is the first one of this process, which has forked in the parent.
static struct {
  cco_thread_block block;
  uint32_t number;
} kept;
// The number that this thread may have had in the parent's parent.
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

// Whether swift_once locks by this number on the calling thread.
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
  // The runtime asks for the number at the thread's first lock. A thread that the child has made has its own.
  if (count == 0 || number != (uint32_t)getpid() || locks_by(number)) return;
  for (size_t i = 0; i < count; i++) {
    uint32_t former = words[i];
    if (former == 0 || (former != kept.number && former != older)) continue;
    words[i] = number;
    if (locks_by(number)) return;
    words[i] = former;
  }
}
