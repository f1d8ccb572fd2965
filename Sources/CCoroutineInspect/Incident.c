// What the flight recorder writes files about: a stall, a deadlock, a fatal signal. One thread of the runtime's waits
// here for them, and writes. The threads that note them must not write themselves: the watchdog must not block, and the
// handler of a fatal signal can neither take a lock nor allocate.
//
//   any thread                        the writer
//   sets a bit of `wanted`            takes all bits, and sleeps while there are none
//   for a fatal signal, sleeps until  has written: with the bit of the fatal signal, sets `is_last_written`
//   `is_last_written`
//
// Invariants
//  1. Nothing is noted before cco_begin_incidents, after which the writer starts, and in a forked child, which has no
//     writer.
//  2. Each bit that is set is taken: the writer sleeps only while `wanted` is zero, and the kernel compares that once
//     more.
//  3. A thread with a fatal signal waits for `PATIENCE` at most: the writer may need a lock that this thread holds, of
//     malloc for example. Only the first fatal signal is written about; another one waits for the same file.
//
// Everything but the writer's part is async-signal-safe.
#include "CCoroutineInspect.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 5 };  // seconds

static _Atomic uint32_t wanted;
static _Atomic uint32_t is_last_written;
static _Atomic int process;  // the process that the writer is in; 0 while there is none
static _Atomic int writer;   // the number of its thread; 0 before it has begun

static void sleep_on(const _Atomic uint32_t *word, uint32_t value, const struct timespec *end) {
  // An absolute time, of the monotonic clock.
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, end, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake_all(const _Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30); }

static bool is_written_about(void) {
  int of = atomic_load_explicit(&process, memory_order_acquire);
  return of != 0 && of == getpid();
}

void cco_note_incident(cco_incident incident) {
  if (!is_written_about()) return;
  atomic_fetch_or_explicit(&wanted, 1u << incident, memory_order_release);
  wake_all(&wanted);
}

void cco_note_fatal_signal(void) {
  if (!is_written_about() || atomic_load_explicit(&writer, memory_order_relaxed) == (int)syscall(SYS_gettid)) return;
  if (atomic_load_explicit(&is_last_written, memory_order_acquire) != 0) return;
  int kept = errno;
  struct timespec end, now;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += PATIENCE;
  cco_note_incident(CCO_INCIDENT_SIGNAL);
  while (atomic_load_explicit(&is_last_written, memory_order_acquire) == 0) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec)) break;
    sleep_on(&is_last_written, 0, &end);
  }
  errno = kept;
}

void cco_begin_incidents(void) {
  atomic_store_explicit(&wanted, 0, memory_order_relaxed);
  atomic_store_explicit(&writer, 0, memory_order_relaxed);
  atomic_store_explicit(&process, getpid(), memory_order_release);
}

void cco_forget_incidents(void) { atomic_store_explicit(&process, 0, memory_order_release); }

uint32_t cco_take_incidents(void) {
  atomic_store_explicit(&writer, (int)syscall(SYS_gettid), memory_order_relaxed);
  while (true) {
    uint32_t taken = atomic_exchange_explicit(&wanted, 0, memory_order_acquire);
    if (taken != 0) return taken;
    sleep_on(&wanted, 0, NULL);
  }
}

void cco_end_incidents(uint32_t taken) {
  if ((taken & 1u << CCO_INCIDENT_SIGNAL) == 0) return;
  atomic_store_explicit(&is_last_written, 1, memory_order_release);
  wake_all(&is_last_written);
}
