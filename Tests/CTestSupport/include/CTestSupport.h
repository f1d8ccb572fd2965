// Functions for tests that Swift cannot express: a fork, and frames of a chosen size, for example.
#ifndef CTESTSUPPORT_H
#define CTESTSUPPORT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Forks. The child closes its copies of sockets, calls `body`, and exits with its result; SIGALRM ends it after
/// `seconds`. Returns the child's exit code, minus the signal that ended it, or -1,000 if there was no child.
int cts_in_child(unsigned seconds, int (*body)(void *_Nullable argument), void *_Nullable argument);

/// The same with a child that keeps its copies of sockets.
int cts_in_child_with_sockets(unsigned seconds, int (*body)(void *_Nullable argument), void *_Nullable argument);

/// The same with a child that is the first process of a namespace of its own, as in a container: the default effects of
/// signals do not apply to it. Returns -1,000 if the kernel refuses such a child.
int cts_as_first_process(unsigned seconds, int (*body)(void *_Nullable argument), void *_Nullable argument);

/// Forks, as the functions above do, and returns in both processes: 0 in the child, its number in the parent, or -1.
int cts_fork(unsigned seconds);

/// The same with a child that keeps its copies of sockets.
int cts_fork_with_sockets(unsigned seconds);

/// Waits for the end of a child process, and returns what `cts_in_child` returns.
int cts_end_of(int child);

typedef enum cts_start_kind {
  CTS_FORK,                   ///< fork and exec
  CTS_FORK_WITH_ALL_BLOCKED,  ///< the same while the caller blocks all signals
  CTS_SPAWN,                  ///< posix_spawn without attributes
  CTS_SPAWN_BY_NAME,          ///< posix_spawnp without attributes
  CTS_SPAWN_IN_GROUP,         ///< posix_spawn, with attributes that do not name a signal mask
  CTS_SPAWN_WITH_MASK,        ///< posix_spawn, with attributes that ask for SIGTERM and SIGUSR2 to be blocked
} cts_start_kind;

/// Starts a shell that runs `command`, and returns its number, or -1. Ends with `cts_end_of`.
int cts_start(cts_start_kind kind, const char *command);

/// Whether every thread but the calling one sleeps, as far as a look at one after the other tells.
bool cts_other_threads_sleep(void);

/// Whether every thread but the calling one has slept at one moment, some milliseconds ago. A running thread may hold a
/// lock of the C library, of Swift's runtime or of Dispatch, which would stay locked in a forked child. Never true
/// while a shared worker is busy: then the watchdog's thread wakes every two milliseconds.
bool cts_may_fork(void);

/// Makes the calling thread, the main thread, and every thread that they and the library create from now on, use one
/// processor of those that it may use. Returns 0 or an error number.
int cts_use_one_processor(void);

/// The same for the calling thread alone, and those that it creates.
int cts_keep_thread_on_processor(void);

/// Makes the calling thread run only while no other thread is ready on its processor, except for a thousandth of the
/// time (SCHED_IDLE). Returns 0 or an error number.
int cts_run_when_idle(void);

/// Makes the calling thread take numbers that are very small for zero.
static inline void cts_flush_to_zero(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#else
  __asm__ volatile("msr fpcr, %0" : : "r"((unsigned long)1 << 24));
#endif
}

/// Calls `body` from a function that has no frame pointer and uses the register for something else.
void cts_without_frame_pointer(void (*body)(void *_Nullable argument), void *_Nullable argument);

/// The kernel's number of the calling thread. (The C library promises the compiler that pthread_self returns one value
/// for ever.)
int cts_thread_id(void);

/// The lowest number that no descriptor has. Waits until every other thread sleeps, because a running thread may have a
/// file open for a moment.
int cts_next_descriptor(void);

/// The number of bytes of an object on the heap, as the allocator has rounded them up.
unsigned long cts_allocated_bytes(const void *_Nonnull object);

/// Refuses new descriptors whose numbers are not below `limit`, or not below the hard limit, and returns the former
/// limit.
unsigned long cts_limit_descriptors(unsigned long limit);

/// Lets every accept4 of this process fail with `code`, for ever, before it takes a connection (seccomp). Returns 0, or
/// an error number if the kernel has no such filters.
int cts_refuse_accept(int code);

/// The calls that the kernel pretends to do for this process.
enum {
  CTS_SINGLE_MARKERS_DO_NOTHING = 1,  ///< madvise(MADV_GUARD_INSTALL) returns 0
  CTS_BATCHES_DO_NOTHING = 2,         ///< process_madvise(MADV_GUARD_INSTALL) returns the number of bytes
  CTS_TRIMS_REMOVE_MARKERS = 4,       ///< madvise(MADV_DONTNEED) removes guard markers as well
  CTS_MPROTECT_DOES_NOTHING = 8,      ///< mprotect(PROT_NONE) returns 0
  CTS_PROOF_IS_REFUSED = 16,          ///< the call by which the runtime checks guards fails with EPERM
  CTS_FINE_WAITS_END_AT_ONCE = 32,    ///< epoll_pwait2 returns 0
  CTS_FAULT_HANDLERS_ARE_IGNORED = 64,  ///< sigaction(SIGSEGV) returns 0
  CTS_ALL_PAGES_ARE_THERE = 128,        ///< mincore says that all pages are in memory
};

/// Makes the kernel pretend, for ever (seccomp). Returns 0, or an error number if the kernel has no such filters.
int cts_pretend(unsigned pretences);

/// From now on, forks before and after each change of the effect of `signal`, on the thread that makes it (seccomp).
/// Each child checks whether it ignores the signal, and ends. Returns 0, or an error number if the kernel has no such
/// filters.
int cts_fork_at_changes(int signal);

/// The number of children that these forks have made and that have ended, and of those that did not ignore the signal.
int cts_children_at_changes(void);
int cts_children_with_other_effect(void);

/// Whether the kernel can read the byte at `address`, to write it into a pipe.
bool cts_is_readable(const void *address);

/// The processor time, in ns, of a switch there and back on this processor, without any mitigation: with equal sticky
/// floating-point flags on both sides, or with different ones. Long runs, the best of several. x86-64.
double cts_round_trip(int flags_differ);

/// The bytes that malloc has allocated and not freed, of all threads; a thread's own cache counts as allocated.
size_t cts_heap_bytes(void);

/// Whether the kernel can wait for events for less than a millisecond (epoll_pwait2).
bool cts_has_fine_waits(void);

/// Whether Swift Testing notes a backtrace of each error that is thrown; it does from the start. It keeps them, up to a
/// kilobyte for each error, until the test ends. Called with false first, then with true, by one thread.
void cts_note_throws(bool notes);

/// Calls `body` while the caller's real stack, and no memory of a sanitizer, refers to `object`.
void cts_hold(void *object, void (*body)(void *_Nullable argument), void *_Nullable argument);

/// Writes a byte at `address`, somewhere below the caller's frame, from a frame that reaches so far down and touches no
/// other of its pages.
void cts_write_below(void *address);

/// Whether an allocation by a thread that holds a spin lock ends this process: in debug builds without sanitizers.
bool cts_checks_allocations(void);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
