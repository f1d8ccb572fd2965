// A process that forks while coroutines run. The child has one thread, the one that called fork. Every other thread is
// gone at an arbitrary instruction. A lock that such a thread held would stay taken for ever, and a coroutine that it
// would have run never runs.
//
//   the pool's lock      taken before the fork and released on both sides, so the child inherits the pool, its slabs
//                        and their versions in a consistent state
//   the cells' lock      the same, after the pool's; cells that a thread of the parent was trimming are lost
//   the report's lock    released in the child, which writes the report anew
//   walks of stacks      forgotten in the child, or their pins would keep slabs mapped for ever
//   the images' lock     released in the child. A thread of the parent may have been adding an image, which is lost
//   pthread_once         glibc restarts it in the child if another thread was inside it
//   `forked`, `used`     tell the Swift layer, which refuses to launch in a child of a process that used the runtime
//   Swift's runtime      gets the new number of the thread that has forked (ForkedThread.c)
//   `carrier`            cleared: the child is outside of any coroutine, even if a coroutine called fork. So its waits
//                        are refused, and it reaches none of the parent's ready jobs
//
// These two locks are the last that are taken before a fork: holders of the pool's allocate memory, and the C library
// takes the allocator's locks after all handlers. No thread holds both but the one that forks.
//
// Only fork does this. posix_spawn and vfork run no handlers, and the program that they start shares no memory with
// this one.
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
#include "Internal.h"
#include "Stack/Lock.h"
#include "Stack/Pool.h"

#include <pthread.h>

// Exported by Dispatch, but undocumented. Weak: a program without Dispatch has no queues.
extern bool _dispatch_is_multithreaded(void) __attribute__((weak));

uint32_t cco_promise_lock_word;

// Whether Dispatch's threads stayed in a parent. Written in children only.
static bool has_lost_queues;

bool cco_begin_use(cco_use what) {
  if (cco_forked() == CCO_FORKED_USED) return false;
  cco_settle_image();
  if (cco_forked() == CCO_FORKED_UNUSED) cco_renumber_forked_thread();
  uint32_t all = has_lost_queues ? CCO_USES_THREADS : CCO_USES_THREADS | CCO_USES_QUEUES;
  __atomic_store_n(&cco_facts.used, all, __ATOMIC_SEQ_CST);
  // From now on the holder of a taken lock is a thread of this process, so a waiter waits for it.
  __atomic_store_n(&cco_facts.forked, CCO_NOT_FORKED, __ATOMIC_RELAXED);
  return (all & (uint32_t)what) != 0;
}

static void before(void) {
  cco_lock_take(&cco_pools_lock);
  cco_lock_take(&cco_cells_lock);
  cco_note_forking_thread();
}
static void in_parent(void) {
  cco_lock_leave(&cco_cells_lock);
  cco_lock_leave(&cco_pools_lock);
}

static void in_child(void) {
  // Stored without a wake-up, because no other thread exists that waits.
  atomic_store_explicit(&cco_pools_lock.word, CCO_LOCK_FREE, memory_order_release);
  atomic_store_explicit(&cco_cells_lock.word, CCO_LOCK_FREE, memory_order_release);
  atomic_store_explicit(&cco_report_lock.word, CCO_LOCK_FREE, memory_order_release);
  atomic_store_explicit(&cco_images_lock.word, CCO_LOCK_FREE, memory_order_release);
  cco_forget_pins();
  __atomic_store_n(&cco_promise_lock_word, 0, __ATOMIC_RELEASE);
  bool is_refused = cco_forked() == CCO_FORKED_USED || __atomic_load_n(&cco_facts.used, __ATOMIC_RELAXED) != 0;
  __atomic_store_n(&cco_facts.forked, is_refused ? CCO_FORKED_USED : CCO_FORKED_UNUSED, __ATOMIC_RELAXED);
  __atomic_store_n(&cco_facts.used, 0, __ATOMIC_RELAXED);
  has_lost_queues = has_lost_queues || (_dispatch_is_multithreaded && _dispatch_is_multithreaded());
  cco_thread()->carrier = NULL;
  cco_keep_forked_thread();
}

// Before main: glibc restarts an interrupted start-up in the child, which would register the handlers twice.
__attribute__((constructor)) static void register_handlers(void) { pthread_atfork(before, in_parent, in_child); }
