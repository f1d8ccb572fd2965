// What the Swift layer does about forks. A coroutine that a thread of the parent would have run never runs in the
// child, and a lock that such a thread held would stay taken for ever. The core has handlers of its own for stacks
// (Fork.c there), and so has what reads symbols (Symbols.c).
//
//   the cells' lock      taken before the fork and released on both sides; cells that a thread of the parent was
//                        trimming are lost. No thread holds it together with the pool's lock but the one that forks
//   the promises' lock   released in the child
//   `forked`, `used`     tell the Swift layer, which refuses to launch in a child of a process that used the runtime
//   Swift's runtime      gets the new number of the thread that has forked (ForkedThread.c)
//   `carrier`            cleared: the child is outside of any coroutine, even if a coroutine called fork. So its waits
//                        are refused, and it reaches none of the parent's ready jobs
//
// Daemons and multi-process servers fork before they work, so a child of a process that has not used the runtime is
// like a new process. A use is an operation that leaves work to other threads. `cco_begin_use` is called before it, and
// before any state changes that a child could inherit half done. So a fork sees no part of the use, or it sees `used`.
//
//   UNUSED --first use--> USED --fork: the child--> CHILD OF USED, for ever, its children as well
//     |  ^                 ^
//     |  +-- the parent    | first use
//     +-- fork: the child--> CHILD OF UNUSED --fork--> CHILD OF UNUSED
//
//   UNUSED            forked CCO_NOT_FORKED      used 0
//   USED              forked CCO_NOT_FORKED      used not 0
//   CHILD OF UNUSED   forked CCO_FORKED_UNUSED   used 0    a lock's holder may be a thread of the parent
//   CHILD OF USED     forked CCO_FORKED_USED     used 0    so one test of `used` refuses every use
//
// Dispatch's threads stay in the parent too, and Dispatch on Linux does not handle a fork: in the child its timers
// never fire, and its queues may wait for threads that do not exist. Dispatch knows whether it has made threads. If it
// had made some before the fork, a child may use the worker pool, but no queue.
#include "Cells/Blocks.h"
#include "Layer.h"
#include "Swift/SwiftWords.h"

#include <pthread.h>

// Exported by Dispatch, but undocumented. Weak: a program without Dispatch has no queues.
extern bool _dispatch_is_multithreaded(void) __attribute__((weak));

cco_runtime_facts cco_runtime;
uint32_t cco_promise_lock_word;
uint32_t cco_worlds;

// Whether Dispatch's threads stayed in a parent. Written in children only.
static bool has_lost_queues;

bool cco_begin_use(cco_use what) {
  if (cco_forked() == CCO_FORKED_USED) return false;
  if (cco_report_layer != NULL) cco_report_layer->start();
  if (cco_forked() == CCO_FORKED_UNUSED) cco_renumber_forked_thread();
  uint32_t all = has_lost_queues ? CCO_USES_THREADS : CCO_USES_THREADS | CCO_USES_QUEUES;
  __atomic_store_n(&cco_runtime.used, all, __ATOMIC_SEQ_CST);
  // From now on the holder of a taken lock is a thread of this process, so a waiter waits for it.
  __atomic_store_n(&cco_runtime.forked, CCO_NOT_FORKED, __ATOMIC_RELAXED);
  return (all & (uint32_t)what) != 0;
}

static void before(void) {
  cco_lock_take(&cco_cells_lock);
  cco_note_forking_thread();
}
static void in_parent(void) { cco_lock_leave(&cco_cells_lock); }

static void in_child(void) {
  cco_lock_free_in_child(&cco_cells_lock);
  __atomic_store_n(&cco_promise_lock_word, 0, __ATOMIC_RELEASE);
  bool is_refused = cco_forked() == CCO_FORKED_USED || __atomic_load_n(&cco_runtime.used, __ATOMIC_RELAXED) != 0;
  __atomic_store_n(&cco_runtime.forked, is_refused ? CCO_FORKED_USED : CCO_FORKED_UNUSED, __ATOMIC_RELAXED);
  __atomic_store_n(&cco_runtime.used, 0, __ATOMIC_RELAXED);
  has_lost_queues = has_lost_queues || (_dispatch_is_multithreaded && _dispatch_is_multithreaded());
  cco_layer()->carrier = NULL;
  cco_keep_forked_thread();
}

// Before main: glibc restarts an interrupted start-up in the child, which would register the handlers twice.
__attribute__((constructor)) static void register_handlers(void) { pthread_atfork(before, in_parent, in_child); }
