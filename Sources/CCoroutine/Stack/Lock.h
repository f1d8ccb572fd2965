// The C core's one lock: a word, taken by a compare-and-swap, waited for by a short spin and then a futex.
//
// It is not a pthread mutex, because a pooled create or destroy takes the lock once and lasts a few tens of
// nanoseconds, of which calls into libc would take a third. It consists of C11 atomics, which ThreadSanitizer
// understands.
//
//   FREE --lock--> TAKEN --unlock--> FREE           no thread waits: no system call
//   TAKEN --lock by another--> CONTENDED --unlock--> FREE, one waiter woken
//
// A forked child inherits these locks as they were: who has one frees it there (Fork.c, and the layers' own handlers).
#ifndef CCOROUTINE_LOCK_H
#define CCOROUTINE_LOCK_H

#include "CCoroutine.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct cco_lock {
  atomic_uint word;
} cco_lock;

enum { CCO_LOCK_FREE = 0, CCO_LOCK_TAKEN = 1, CCO_LOCK_CONTENDED = 2, CCO_LOCK_SPINS = 64 };

static __attribute__((noinline, unused)) void cco_lock_wait(cco_lock *lock) {
  for (int spin = 0; spin < CCO_LOCK_SPINS; spin++) {
    unsigned expected = CCO_LOCK_FREE;
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) == CCO_LOCK_FREE &&
        atomic_compare_exchange_weak_explicit(&lock->word, &expected, CCO_LOCK_TAKEN, memory_order_acquire,
                                              memory_order_relaxed))
      return;
    cco_relax();
  }
  // From here on the word is CONTENDED, also after this thread gets the lock, because others may sleep too.
  while (atomic_exchange_explicit(&lock->word, CCO_LOCK_CONTENDED, memory_order_acquire) != CCO_LOCK_FREE)
    syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, CCO_LOCK_CONTENDED, NULL, NULL, 0);
}

static inline void cco_lock_take(cco_lock *lock) {
  unsigned expected = CCO_LOCK_FREE;
  if (!atomic_compare_exchange_strong_explicit(&lock->word, &expected, CCO_LOCK_TAKEN, memory_order_acquire,
                                               memory_order_relaxed))
    cco_lock_wait(lock);
}

static inline void cco_lock_leave(cco_lock *lock) {
  if (atomic_exchange_explicit(&lock->word, CCO_LOCK_FREE, memory_order_release) == CCO_LOCK_CONTENDED)
    syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

// Stored without a wake-up, because a forked child has no other thread that waits.
static inline void cco_lock_free_in_child(cco_lock *lock) {
  atomic_store_explicit(&lock->word, CCO_LOCK_FREE, memory_order_release);
}

// The lock of the report (Start.c).
extern cco_lock cco_report_lock;

#endif
