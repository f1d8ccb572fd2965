// Swift's hook for jobs that are ready to run, of Tasks without an executor of their own: a word of the concurrency
// library, which it calls in place of its default executor. Libraries that take all Tasks to their threads set it, as
// SwiftNIO's installer does, by a compare-and-swap from null. So of two such libraries one is refused.
#include "CCoroutineRuntime.h"

typedef __attribute__((swiftcall)) void (*enqueue_hook)(void *job, void *original);

// Weak: a program may not link the library, and a future one may rename it.
extern enqueue_hook swift_task_enqueueGlobal_hook __attribute__((weak));

// Written once, before the hook is set.
static void (*enqueue)(void *);

static __attribute__((swiftcall)) void take(void *job, void *original) {
  (void)original;
  void (*function)(void *) = __atomic_load_n(&enqueue, __ATOMIC_ACQUIRE);
  // Swift reads the hook without an order, so a processor may know the hook and not yet what was written before it.
  while (!function) function = __atomic_load_n(&enqueue, __ATOMIC_ACQUIRE);
  function(job);
}

cco_hook cco_hook_tasks(void (*function)(void *job)) {
  enqueue_hook none = 0;
  if (!&swift_task_enqueueGlobal_hook) return CCO_HOOK_MISSING;
  if (!function) {
    enqueue_hook ours = take;
    __atomic_compare_exchange_n(&swift_task_enqueueGlobal_hook, &ours, none, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return CCO_HOOK_FREE;
  }
  __atomic_store_n(&enqueue, function, __ATOMIC_RELEASE);
  if (__atomic_compare_exchange_n(&swift_task_enqueueGlobal_hook, &none, take, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE))
    return CCO_HOOK_SET;
  return none == take ? CCO_HOOK_SET : CCO_HOOK_TAKEN;
}
