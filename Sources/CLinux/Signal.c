// Signals that a part of this process handles. A handler sets a bit in a word and wakes the one thread that takes the
// bits, the signals' thread (Signals.swift). A dispatch signal source loses signals on Linux: it rearms a one-shot
// watch around a signalfd, and a signal that arrives meanwhile goes to the ignoring handler.
//
//   `handled`  the signals that have the handler; changed under the hub's lock
//   `changed`  the signals whose effect was changed, or is about to be: a child that is forked meanwhile restores these
//   `arrived`  one bit a signal; set by the handler on any thread, taken by the signals' thread
//   `by_dispatch`  the signals whose mark a DispatchSource leaves; changed by the hub
//   `bell`     changes after each change of `handled` and `arrived`; the signals' thread sleeps on it
//   `owner`    the process whose signals' thread takes the bits; stored before the handler is installed
//
// A signal that every thread blocks stays pending in the kernel, and no handler runs. That is the case in a program
// that was started with the signal blocked, because all of its threads inherit the mask. Therefore the signals' thread,
// which has a stack of the usual size and runs no coroutine, unblocks the handled signals, and blocks all others. No
// other thread's mask is changed. A thread that does not block the signal, usually the main thread, takes it as before.
//
// A forked child has no signals' thread, so signals have their former effect there (clinux_release_all_signals). A
// signal may arrive in the child before that, because fork unblocks signals before it calls any handler of ours. Then
// the signal handler finds another process than `owner`, restores the former effect, and raises the signal again, which
// stays pending until the handler returns. So a bit in the child is always a copy of the parent's, and is dropped. The
// same holds in a child of vfork, which shares its parent's memory, and in one of _Fork or clone, where no other code
// would restore the effect.
//
// Other code of the process may handle the same signal: a DispatchSource, a library for signals. Both are told. The
// handler calls the one that it has replaced, on the same thread. (That of a DispatchSource sends the signal to
// Dispatch's manager thread.) One that replaces ours later is found by the signals' thread, which looks every ten
// milliseconds for a second, and then less and less often, up to every ten seconds: it takes the handler's place again,
// and calls it. If that one calls ours in turn, `is_inside` ends the circle.
//
// Dispatch reads signals by a signalfd as well. So its manager thread may take one that is pending for the process
// before the thread that is to run the handler does, and then no handler runs: one in sixteen, where it was measured.
// Therefore the hub has a DispatchSource too for a signal whose former handler is Dispatch's (SignalHub). For
// such a signal, one of `by_dispatch`, the mark is left by that source and not by the handler, which only calls
// Dispatch's: each signal reaches Dispatch in one of the two ways, and so all of its sources, once.
//
// No wake-up is lost: the thread reads `bell`, then sets its mask and takes the bits, and sleeps only while `bell` has
// the value that it has read. A signal that the new mask unblocks runs the handler on this thread, which changes
// `bell`.
#include "Check.h"
#include "CLinux.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint64_t handled, changed, arrived, by_dispatch;
static _Atomic uint32_t bell;
static _Atomic pid_t owner;
// A slot is written before the handler that reads it is installed, or again while that one is not installed.
static struct sigaction former[NSIG];
static __thread __attribute__((tls_model("initial-exec"))) bool is_inside;

static uint64_t bit(int signal) { return (uint64_t)1 << (signal - 1); }

// Async-signal-safe. It does not call clinux_futex_wake, whose check would refuse a handler that has interrupted a
// lock's holder.
static void ring(void) {
  atomic_fetch_add_explicit(&bell, 1, memory_order_release);
  syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void leave_mark(int signal) {
  atomic_fetch_or_explicit(&arrived, bit(signal), memory_order_release);
  ring();
}

static bool is_function(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) || (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

// Calls the handler that was there before, or that has been there since.
static void tell_others(int signal, siginfo_t *info, void *interrupted) {
  struct sigaction other = former[signal];
  if (is_inside || !is_function(&other)) return;
  is_inside = true;
  if (other.sa_flags & SA_SIGINFO)
    other.sa_sigaction(signal, info, interrupted);
  else
    other.sa_handler(signal);
  is_inside = false;
}

static void notice(int signal, siginfo_t *info, void *interrupted) {
  int kept = errno;
  if (getpid() == atomic_load_explicit(&owner, memory_order_acquire)) {
    if (!(atomic_load_explicit(&by_dispatch, memory_order_acquire) & bit(signal))) leave_mark(signal);
    tell_others(signal, info, interrupted);
  } else {
    sigaction(signal, &former[signal], NULL);
    raise(signal);
  }
  errno = kept;
}

static struct sigaction own_action(void) {
  // On the alternate stack if the thread has one: a coroutine's stack may be too small for the signal's frame.
  struct sigaction action = {.sa_sigaction = notice, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  return action;
}

static bool is_own(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == notice;
}

// Takes the place of handlers that have replaced ours; returns whether there was one.
static bool take_places_again(uint64_t signals) {
  bool found = false;
  for (int signal = 1; signal < NSIG; signal++) {
    struct sigaction now, action = own_action();
    if (!(signals & bit(signal)) || sigaction(signal, NULL, &now) != 0 || is_own(&now)) continue;
    former[signal] = now;
    found = true;
    sigaction(signal, &action, NULL);
  }
  return found;
}

int clinux_handle_signal(int signal) {
  clinux_check();
  if (signal <= 0 || signal >= NSIG) return EINVAL;
  struct sigaction action = own_action();
  if (sigaction(signal, NULL, &former[signal]) != 0) return errno;
  atomic_store_explicit(&owner, getpid(), memory_order_release);
  atomic_fetch_or_explicit(&changed, bit(signal), memory_order_seq_cst);
  struct sigaction replaced;
  if (sigaction(signal, &action, &replaced) != 0) {
    int code = errno;
    atomic_fetch_and_explicit(&changed, ~bit(signal), memory_order_relaxed);
    return code;
  }
  // It differs from the action read above only if the program has changed it in between. A child that is forked before
  // this line has the action read above.
  former[signal] = replaced;
  atomic_fetch_or_explicit(&handled, bit(signal), memory_order_relaxed);
  ring();
  return 0;
}

// Returns when `bell` may have changed, or after `nanoseconds`: then false.
static bool wait_for_bell(uint32_t heard, uint64_t nanoseconds) {
#if __has_feature(thread_sanitizer)
  // ThreadSanitizer calls a handler only in functions that it knows to block, and a futex is not one of them.
  (void)heard, (void)nanoseconds;
  nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return false;
#else
  return clinux_futex_wait((const uint32_t *)&bell, heard, nanoseconds);
#endif
}

// In nanoseconds. SOON: the number of looks of the first kind, a second of them.
static const uint64_t FIRST_LOOK = 10000000, LAST_LOOK = 10000000000;
enum { SOON = 100 };

uint64_t clinux_take_signals(void) {
  clinux_block_signals();
  uint64_t pause = FIRST_LOOK;
  int looks = 0;
  while (true) {
    uint32_t heard = atomic_load_explicit(&bell, memory_order_acquire);
    sigset_t let_in;
    sigemptyset(&let_in);
    uint64_t now = atomic_load_explicit(&handled, memory_order_relaxed);
    for (int signal = 1; signal < NSIG; signal++) {
      if (now & bit(signal)) sigaddset(&let_in, signal);
    }
    pthread_sigmask(SIG_UNBLOCK, &let_in, NULL);
    uint64_t taken = atomic_exchange_explicit(&arrived, 0, memory_order_acquire);
    if (taken) return taken;
    bool has_changed = wait_for_bell(heard, pause);
    if (!has_changed && take_places_again(atomic_load_explicit(&handled, memory_order_relaxed))) return 0;
    if (has_changed) {
      pause = FIRST_LOOK;
      looks = 0;
    } else if (++looks > SOON && pause < LAST_LOOK) {
      pause *= 2;
    }
  }
}

// MARK: - Dispatch

// Weak: a program in C may not have it.
extern void dispatch_resume(void *) __attribute__((weak));

// Whether a signalfd of this process is for `signal`.
static bool is_read(int signal) {
  DIR *all = opendir("/proc/self/fdinfo");
  bool found = false;
  for (struct dirent *entry; all && !found && (entry = readdir(all));) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%.20s", entry->d_name);
    FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
    uint64_t mask;
    while (file && fgets(line, sizeof line, file)) {
      if (sscanf(line, "sigmask: %" SCNx64, &mask) == 1 && (mask & bit(signal))) found = true;
    }
    if (file) fclose(file);
  }
  if (all) closedir(all);
  return found;
}

// Dispatch's handler has no name that could be asked for, so it is known by the image that it lies in. Where this image
// is also ours, as in a program that is linked statically, Dispatch must be reading the signal too.
static bool is_of_dispatch(int signal, const struct sigaction *action) {
  if (!is_function(action) || (action->sa_flags & SA_SIGINFO)) return false;
  Dl_info handler, dispatch, own;
  void *known = dlsym(RTLD_DEFAULT, "dispatch_resume");
  if (!known) known = (void *)dispatch_resume;
  if (!known || !dladdr(known, &dispatch) || !dladdr((void *)action->sa_handler, &handler)) return false;
  if (handler.dli_fbase != dispatch.dli_fbase) return false;
  return !dladdr((void *)notice, &own) || own.dli_fbase != handler.dli_fbase || is_read(signal);
}

uint64_t clinux_signals_of_dispatch(void) {
  uint64_t now = atomic_load_explicit(&handled, memory_order_relaxed), found = 0;
  for (int signal = 1; signal < NSIG; signal++) {
    struct sigaction other = former[signal];
    if ((now & bit(signal)) && is_of_dispatch(signal, &other)) found |= bit(signal);
  }
  return found;
}

void clinux_take_from_dispatch(int signal, bool is_taken) {
  if (is_taken)
    atomic_fetch_or_explicit(&by_dispatch, bit(signal), memory_order_release);
  else
    atomic_fetch_and_explicit(&by_dispatch, ~bit(signal), memory_order_release);
}

void clinux_came_from_dispatch(int signal) {
  if (atomic_load_explicit(&by_dispatch, memory_order_acquire) & bit(signal)) leave_mark(signal);
}

// MARK: - The former effect

static void set_blocked(int how, int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(how, &one, NULL);
}

bool clinux_release_signal(int signal) {
  atomic_fetch_and_explicit(&handled, ~bit(signal), memory_order_relaxed);
  clinux_take_from_dispatch(signal, false);
  // Before the former effect is restored: if every other thread blocks the signal, it must stay pending and not end the
  // process.
  set_blocked(SIG_BLOCK, signal);
  // A handler that has replaced ours since stays.
  struct sigaction now;
  bool is_told = is_function(&former[signal]);
  if (sigaction(signal, NULL, &now) == 0 && is_own(&now)) sigaction(signal, &former[signal], NULL);
  atomic_fetch_and_explicit(&changed, ~bit(signal), memory_order_seq_cst);
  return !is_told;
}

void clinux_release_all_signals(void) {
  atomic_store_explicit(&handled, 0, memory_order_relaxed);
  atomic_store_explicit(&by_dispatch, 0, memory_order_relaxed);
  uint64_t were = atomic_exchange_explicit(&changed, 0, memory_order_relaxed);
  for (int signal = 1; signal < NSIG; signal++) {
    if (were & bit(signal)) sigaction(signal, &former[signal], NULL);
  }
  atomic_store_explicit(&arrived, 0, memory_order_relaxed);
}

bool clinux_is_ignored(int signal) {
  struct sigaction now;
  return sigaction(signal, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_IGN;
}

void clinux_end_by_signal(int signal) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(signal, &action, NULL);
  set_blocked(SIG_UNBLOCK, signal);
  raise(signal);
  // Reached only if the default effect of the signal is not to end the process.
  _exit(128 + signal);
}
