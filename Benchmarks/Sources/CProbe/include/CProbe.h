// Loops that must be C or C++. Each does exactly `count` operations and returns what it counted while doing them, so
// that the caller can check that the work was done; none of them reads a clock.
#ifndef CPROBE_H
#define CPROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// What a floating-point status register looks like before the loop: both sides alike, or with an exception flag that
/// one side has raised and the other has not, which one inexact result does to a program for good; or the same, where
/// each jump takes over the current flags if the processor stalls without that.
typedef enum cprobe_flags : uint32_t {
  CPROBE_CLEAN = 0,
  CPROBE_STICKY = 1,
  CPROBE_RECONCILED = 2,
} cprobe_flags;

/// Boost's jump there and back, with nothing around it: the floor under every row. With CPROBE_RECONCILED it is the
/// floor of a correct switch on this processor. Returns the number of round trips that the other side counted.
uint64_t cprobe_raw_round_trips(uint64_t count, cprobe_flags flags);

/// Runs `body` on a stack of its own and returns the sum of what it gives, one jump there and one back for each: the
/// floor under any generator over Boost. One at a time. -1 without memory.
int64_t cprobe_raw_walk(void (*body)(void *_Nullable argument), void *_Nullable argument);
void cprobe_give(int64_t number);

/// Does nothing, which no optimiser of Swift can know: what `object` points to has to exist, on the heap.
void cprobe_see(const void *object);

/// cco_resume and the cco_suspend that answers it. Returns the number of resumes that the coroutine counted, or 0 when
/// the C core refused something.
uint64_t cprobe_resume_suspend(uint64_t count, cprobe_flags flags);

/// The same while both sides handle a C++ exception of their own: each is inside of a catch block.
uint64_t cprobe_resume_suspend_handling(uint64_t count);

/// Calls `body` inside of a catch block, and returns its result.
uint64_t cprobe_while_handling(uint64_t (*body)(void *_Nullable argument), void *_Nullable argument);

/// cco_create, cco_resume into a body that returns at once, cco_destroy; the stack comes from the pool. Returns how
/// many bodies ran.
uint64_t cprobe_create_run_finish(uint64_t count);

/// Whether Boost, and so the raw rows, can show what a sticky flag costs on this architecture.
bool cprobe_has_sticky_flags(void);

/// Whether a switch must reconcile such flags, because this processor stalls without that.
bool cprobe_reconciles(void);

/// Why the C core stands as it does on this machine: cco_report().
const char *cprobe_report(void);

/// Counters of the stack pool, as far as the checks need them.
typedef struct cprobe_stacks {
  uint64_t live;
  uint64_t dirty;
  bool guarded_by_markers;
} cprobe_stacks;
cprobe_stacks cprobe_count_stacks(void);

/// Maps, guards and touches as many stacks as the library would, and runs nothing on them. Returns the nanoseconds it
/// took on this one thread, or 0 where the kernel has no guard markers or no memory.
uint64_t cprobe_touch_stacks(uint64_t count);

/// Gives the memory of every pooled stack back to the kernel; returns how many stacks that were.
uint64_t cprobe_trim_stacks(void);

/// Lets the C library give back what it keeps for later, so that two readings of memory differ by what is in use.
void cprobe_return_freed(void);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
