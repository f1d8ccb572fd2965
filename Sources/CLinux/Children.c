// Hazard 17: a child process inherits the signal mask of the thread that starts it. Threads of the library block
// signals that are sent to the process as a whole, as those of Dispatch do, because a handler must not run on a
// coroutine's stack. So a child that a coroutine starts would never get SIGTERM or SIGINT, and neither would its own
// children.
//
//   fork          a handler that the C library calls clears the mask of the child
//   posix_spawn   this file defines it and posix_spawnp before the C library's: a call without a mask gets an empty one
//   others        vfork, clone, system and popen call nothing that a library could define (docs/hazards.md)
//
// Both act only if the mask of the calling thread is the one that the library and Dispatch set. Everything else is the
// program's own choice: a thread with another mask, the attribute POSIX_SPAWN_SETSIGMASK, and a caller that blocks all
// signals over a fork and first sets the child's handlers. The mask alone decides: a thread that a coroutine has
// created has inherited it, so its children are covered too.
//
// The mask of a thread of the parent never changes, not even for a moment.
#include "CLinux.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>

// A mask as one number; bit n - 1 is signal n. It leaves out signals that cannot be blocked, which a filled set may
// contain: SIGKILL and SIGSTOP, and those that the C library reserves.
static uint64_t bits_of(const sigset_t *mask) {
  uint64_t bits = 0;
  for (int signal = 1; signal < NSIG; signal++) {
    bool can_be = signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN);
    bits |= (uint64_t)(can_be && sigismember(mask, signal) == 1) << (signal - 1);
  }
  return bits;
}

static uint64_t blocked(void) {
  sigset_t now;
  return pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 ? bits_of(&now) : 0;
}

static void set_blocked(const sigset_t *mask) { pthread_sigmask(SIG_SETMASK, mask, NULL); }

// `given` is the mask of the library's threads. `inherited` is the mask with which the process began; threads of
// Dispatch block both. Written once, before main.
static uint64_t given, inherited;

static void thread_mask(sigset_t *mask) {
  // Not blocked: signals that a thread's own instructions raise, SIGPIPE included. If they were blocked, a fault would
  // end the process without the handlers that report it. Without SIGPROF a profiler would not see the thread.
  static const int left[] = {SIGILL, SIGTRAP, SIGFPE, SIGBUS, SIGSEGV, SIGSYS, SIGPIPE, SIGPROF};
  sigfillset(mask);
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) sigdelset(mask, left[i]);
}

uint64_t clinux_block_signals(void) {
  sigset_t mask;
  thread_mask(&mask);
  uint64_t former = blocked();
  set_blocked(&mask);
  return former;
}

void clinux_set_blocked_signals(uint64_t bits) {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal = 1; signal < NSIG; signal++) {
    if (bits >> (signal - 1) & 1) sigaddset(&mask, signal);
  }
  set_blocked(&mask);
}

void clinux_let_in_questions(void) {
  static __thread bool lets_in;
  if (lets_in) return;
  lets_in = true;
  sigset_t urgent;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_UNBLOCK, &urgent, NULL);
}

// Whether the calling thread has the mask of the library's or of Dispatch's threads. Async-signal-safe.
static bool has_thread_mask(void) {
  uint64_t now = blocked() | (uint64_t)1 << (SIGURG - 1);
  return now == given || now == (given | inherited);
}

// ---- fork

static void in_child(void) {
  // First, because a signal that is unblocked here must find its former handler. A signal that was never blocked may
  // have arrived before; then `notice` has restored the former effect (Signal.c).
  clinux_release_all_signals();
  if (has_thread_mask()) clinux_set_blocked_signals(0);
}

// ---- posix_spawn

typedef int (*spawner)(pid_t *_Nullable, const char *, const posix_spawn_file_actions_t *_Nullable,
                       const posix_spawnattr_t *_Nullable, char *const *, char *const *);

static _Atomic(spawner) real_spawn, real_spawnp;

// The function that the program would call without this library: the C library's, or that of another library before it.
static spawner next(_Atomic(spawner) *real, const char *name) {
  spawner known = atomic_load_explicit(real, memory_order_relaxed);
  if (known) return known;
  known = (spawner)dlsym(RTLD_NEXT, name);
  atomic_store_explicit(real, known, memory_order_relaxed);
  return known;
}

static int spawn(spawner real, pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment) {
  // A program with a static C library: it has no other definition.
  if (!real) return ENOSYS;
  short flags = 0;
  if (attributes) posix_spawnattr_getflags(attributes, &flags);
  if ((flags & POSIX_SPAWN_SETSIGMASK) || !has_thread_mask())
    return real(pid, file, actions, attributes, arguments, environment);
  // A plain copy suffices, because the attributes of glibc consist of numbers and sets.
  posix_spawnattr_t mine;
  if (attributes)
    mine = *attributes;
  else
    posix_spawnattr_init(&mine);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&mine, &none);
  posix_spawnattr_setflags(&mine, (short)(flags | POSIX_SPAWN_SETSIGMASK));
  return real(pid, file, actions, &mine, arguments, environment);
}

// The linker exports these to the shared libraries that call them, such as Foundation's. They are weak, so that a
// program's own definitions win. With a sanitizer they are not weak, because its runtime has weak ones that would win.
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DEFINED_BEFORE_THE_C_LIBRARY
#else
#define DEFINED_BEFORE_THE_C_LIBRARY __attribute__((weak))
#endif

DEFINED_BEFORE_THE_C_LIBRARY int posix_spawn(pid_t *restrict pid, const char *restrict path,
                                      const posix_spawn_file_actions_t *restrict actions,
                                      const posix_spawnattr_t *restrict attributes, char *const *restrict arguments,
                                      char *const *restrict environment) {
  return spawn(next(&real_spawn, "posix_spawn"), pid, path, actions, attributes, arguments, environment);
}

DEFINED_BEFORE_THE_C_LIBRARY int posix_spawnp(pid_t *restrict pid, const char *restrict file,
                                       const posix_spawn_file_actions_t *restrict actions,
                                       const posix_spawnattr_t *restrict attributes, char *const *restrict arguments,
                                       char *const *restrict environment) {
  return spawn(next(&real_spawnp, "posix_spawnp"), pid, file, actions, attributes, arguments, environment);
}

__attribute__((constructor)) static void before_main(void) {
  inherited = blocked();
  sigset_t mask;
  thread_mask(&mask);
  given = bits_of(&mask);
  // Called here because dlsym must not run on a coroutine's stack.
  next(&real_spawn, "posix_spawn");
  next(&real_spawnp, "posix_spawnp");
  pthread_atfork(NULL, NULL, in_child);
}
