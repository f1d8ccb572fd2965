// A process that forks while coroutines run. The child has one thread, the one that called fork. Every other thread is
// gone at an arbitrary instruction, and a lock that it held would stay taken for ever.
//
//   the pool's lock     taken before the fork and released on both sides, so the child inherits the pool, its slabs and
//                       their versions in a consistent state. It is among the last locks that are taken before a fork:
//                       its holders allocate memory, and the C library takes the allocator's locks after all handlers
//   the report's lock   released in the child, which writes the report anew
//   walks of stacks     forgotten in the child, or their pins would keep slabs mapped for ever
//   pthread_once        glibc restarts it in the child if another thread was inside it
//
// Only fork does this. posix_spawn and vfork run no handlers, and the program that they start shares no memory with
// this one. The layers have handlers of their own for what is theirs.
#include "Internal.h"
#include "Stack/Pool.h"

#include <pthread.h>

static void before(void) { cco_lock_take(&cco_pools_lock); }
static void in_parent(void) { cco_lock_leave(&cco_pools_lock); }

static void in_child(void) {
  cco_lock_free_in_child(&cco_pools_lock);
  cco_lock_free_in_child(&cco_report_lock);
  cco_forget_pins();
}

// Before main: glibc restarts an interrupted start-up in the child, which would register the handlers twice.
__attribute__((constructor)) static void register_handlers(void) { pthread_atfork(before, in_parent, in_child); }
