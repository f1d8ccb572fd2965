// A process that forks while coroutines run. The child has one thread, the one that called fork; every other is gone,
// in the middle of whatever it did. So a lock that another thread held would stay taken for ever, and a coroutine that
// another thread would have run never runs.
//
//   the pool's lock      taken before the fork and given back on both sides: the child inherits the pool, its slabs and
//                        their versions between two changes, never inside of one
//   the report's lock    set free in the child, which writes the report anew
//   pthread_once         begins again in the child where another thread was in the middle of it (glibc)
//   `forked`, `used`     tell the Swift layer, which refuses to launch where the parent had used the runtime
//   Swift's runtime      gets the new number of the thread that has forked (ForkedThread.c)
//   `carrier`            cleared: the child is outside of any coroutine, also where a coroutine called fork. Its waits
//                        are refused, and nothing on this thread leads to the ready jobs of the parent, which are not
//                        the child's to run
//
// The pool's lock is the last that is taken before a fork: its holders allocate memory, and the C library takes the
// allocator's own locks after all handlers.
//
// Only fork does this. posix_spawn, vfork and what stands on them run no handlers, and the program that they start
// shares nothing with this one.
//
// Daemons and servers of several processes fork first and work then, so a child of a process that has not used the
// runtime is like a new process. A use is what leaves something behind that only threads carry on: `cco_begin_use`
// comes before it, and before whatever a child could inherit half done. A fork sees either no part of it, or `used`.
//
//   UNUSED --first use--> USED --fork: the child--> CHILD OF USED, for ever, its children as well
//     |  ^                 ^
//     |  +-- the parent    | first use
//     +-- fork: the child--> CHILD OF UNUSED --fork--> CHILD OF UNUSED
//
//   UNUSED            forked CCO_NOT_FORKED      used 0
//   USED              forked CCO_NOT_FORKED      used not 0
//   CHILD OF UNUSED   forked CCO_FORKED_UNUSED   used 0    a lock's holder may have stayed in the parent
//   CHILD OF USED     forked CCO_FORKED_USED     used 0    so the one test of `used` refuses there
//
// Dispatch's threads stay in the parent too, and Dispatch on Linux does nothing about a fork: in the child its timers
// never fire, and its queues may wait for threads that are not there. Dispatch knows whether it has made threads. If it
// had at the fork, a child may use the worker pool, and no queue.
#include "Internal.h"
#include "Stack/Lock.h"
#include "Stack/Pool.h"

#include <pthread.h>

// Exported by Dispatch, and undocumented. Weak: a program without Dispatch has no queues.
extern bool _dispatch_is_multithreaded(void) __attribute__((weak));

uint32_t cco_promise_lock_word;

// Whether Dispatch's threads stayed in a parent. Written in children only.
static bool has_lost_queues;

bool cco_begin_use(cco_use what) {
  if (cco_forked() == CCO_FORKED_USED) return false;
  if (cco_forked() == CCO_FORKED_UNUSED) cco_renumber_forked_thread();
  uint32_t all = has_lost_queues ? CCO_USES_THREADS : CCO_USES_THREADS | CCO_USES_QUEUES;
  __atomic_store_n(&cco_facts.used, all, __ATOMIC_SEQ_CST);
  // From now on a lock's holder is a thread of this process, which may be slow.
  __atomic_store_n(&cco_facts.forked, CCO_NOT_FORKED, __ATOMIC_RELAXED);
  return (all & (uint32_t)what) != 0;
}

static void before(void) {
  cco_lock_take(&cco_pools_lock);
  cco_note_forking_thread();
}
static void in_parent(void) { cco_lock_leave(&cco_pools_lock); }

static void in_child(void) {
  // Stored without a wake-up, because no other thread exists that waits.
  atomic_store_explicit(&cco_pools_lock.word, CCO_LOCK_FREE, memory_order_release);
  atomic_store_explicit(&cco_report_lock.word, CCO_LOCK_FREE, memory_order_release);
  __atomic_store_n(&cco_promise_lock_word, 0, __ATOMIC_RELEASE);
  bool is_refused = cco_forked() == CCO_FORKED_USED || __atomic_load_n(&cco_facts.used, __ATOMIC_RELAXED) != 0;
  __atomic_store_n(&cco_facts.forked, is_refused ? CCO_FORKED_USED : CCO_FORKED_UNUSED, __ATOMIC_RELAXED);
  __atomic_store_n(&cco_facts.used, 0, __ATOMIC_RELAXED);
  has_lost_queues = has_lost_queues || (_dispatch_is_multithreaded && _dispatch_is_multithreaded());
  cco_thread()->carrier = NULL;
  cco_keep_forked_thread();
}

// Before main, because a start-up that another thread was in the middle of runs again in the child: handlers that it
// had registered would then be there twice.
__attribute__((constructor)) static void register_handlers(void) { pthread_atfork(before, in_parent, in_child); }
