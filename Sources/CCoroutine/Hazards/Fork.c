// A process that forks while coroutines run. The child has one thread, the one that called fork; every other is gone,
// in the middle of whatever it did. So a lock that another thread held would stay taken for ever, and a coroutine that
// another thread would have run never runs.
//
//   the pool's lock      taken before the fork and given back on both sides: the child inherits the pool, its slabs and
//                        their versions between two changes, never inside of one
//   the report's lock    set free in the child, which writes the report anew
//   pthread_once         begins again in the child where another thread was in the middle of it (glibc)
//   `forked`             tells the Swift layer, which refuses to launch
//   `carrier`            cleared: the child is outside of any coroutine, also where a coroutine called fork. Its waits
//                        are refused, and nothing on this thread leads to the ready jobs of the parent, which are not
//                        the child's to run
//
// The pool's lock is the last that is taken before a fork: its holders allocate memory, and the C library takes the
// allocator's own locks after all handlers.
//
// Only fork does this. posix_spawn, vfork and what stands on them run no handlers, and the program that they start
// shares nothing with this one.
#include "Stack/Lock.h"
#include "Stack/Pool.h"

#include <pthread.h>

static void before(void) { cco_lock_take(&cco_pools_lock); }
static void in_parent(void) { cco_lock_leave(&cco_pools_lock); }

static void in_child(void) {
  // Stored without a wake-up, because no other thread exists that waits.
  atomic_store_explicit(&cco_pools_lock.word, CCO_LOCK_FREE, memory_order_release);
  atomic_store_explicit(&cco_report_lock.word, CCO_LOCK_FREE, memory_order_release);
  cco_facts.forked = 1;
  cco_thread()->carrier = NULL;
}

// Before main, because a start-up that another thread was in the middle of runs again in the child: handlers that it
// had registered would then be there twice.
__attribute__((constructor)) static void register_handlers(void) { pthread_atfork(before, in_parent, in_child); }
