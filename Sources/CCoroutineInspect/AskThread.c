// Asks a thread of this process where its coroutine is: by a signal, whose handler walks the frames that it has
// interrupted. Only for the thread of a stall that is reported, and of a coroutine that has run for long when a dump
// is taken. SA_RESTART lets most system calls go on, but not all,
// so the caller asks only a thread that computes, or is in a call that is restarted.
//
//   IDLE --an asker--> ASKED --the handler, on the asked thread--> TAKEN --the handler--> DONE --the asker--> IDLE
//                        +---- the asker has waited long enough ----> IDLE
//
// Invariants
//  1. `state` changes by compare-and-swap, but for the last two steps, which belong to the handler and to the asker.
//     One asker at a time has left IDLE; a second one gets no frames.
//  2. `frames`, `count` and `is_whole` belong to the asker but in TAKEN, when they belong to the handler. So a handler
//     that comes late finds IDLE, or ASKED for another thread, and touches neither.
//  3. The handler runs on the alternate stack of a thread that runs coroutines. It is async-signal-safe: it takes no
//     lock and allocates nothing, and it reads memory of a coroutine that is running on its own thread, and of the
//     parked ones that step it.
//
// SIGURG, as Go uses it: its default is to be ignored, so a signal that arrives without a handler does no harm, and
// programs hardly use it. If the program has a handler of its own, or blocks the signal, there are no frames.
#include "CCoroutineInspect.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { IDLE, ASKED, TAKEN, DONE };
static _Atomic int state;
static _Atomic int asked;
static uintptr_t *frames;
static size_t most, count;
static bool is_whole;

// The interrupted address, and the return addresses above it. `syscall` of the C library makes no frame: its return
// address is `link`. Without it, the function that has called it would be missing, as that in which a thread waits for
// a `static let` (Once.c).
static size_t walk(const cco_context *context, uintptr_t pc, uintptr_t fp, uintptr_t stack, uintptr_t link) {
  size_t found = 0;
  if (pc - (uintptr_t)&syscall < 64 && found < most) {
    frames[found++] = pc;
    pc = link;
  }
  return found + cco_walk_interrupted(context, pc, fp, stack, frames + found, most - found, &is_whole);
}

static void answer(int signal, siginfo_t *info, void *interrupted) {
  (void)signal, (void)info;
  int kept = errno;
  int expected = ASKED;
  // The number of a thread is read after ASKED, which the asker stores after it.
  if (atomic_load_explicit(&state, memory_order_acquire) == ASKED &&
      atomic_load_explicit(&asked, memory_order_relaxed) == (int)syscall(SYS_gettid) &&
      atomic_compare_exchange_strong_explicit(&state, &expected, TAKEN, memory_order_acq_rel, memory_order_relaxed)) {
    const ucontext_t *at = interrupted;
#if defined(__x86_64__)
    uintptr_t pc = (uintptr_t)at->uc_mcontext.gregs[REG_RIP], fp = (uintptr_t)at->uc_mcontext.gregs[REG_RBP];
    uintptr_t stack = (uintptr_t)at->uc_mcontext.gregs[REG_RSP], link = *(const uintptr_t *)stack;
#elif defined(__aarch64__)
    uintptr_t pc = at->uc_mcontext.pc, fp = at->uc_mcontext.regs[29], stack = at->uc_mcontext.sp;
    uintptr_t link = at->uc_mcontext.regs[30];
#endif
    const cco_context *context = cco_context_at((const void *)stack, NULL);
    count = context != NULL ? walk(context, pc, fp, stack, link) : 0;
    atomic_store_explicit(&state, DONE, memory_order_release);
  }
  errno = kept;
}

// Installs the handler, unless the program has one. Each time: the program may have replaced it.
static bool install(void) {
  struct sigaction now;
  if (sigaction(SIGURG, NULL, &now) != 0) return false;
  if ((now.sa_flags & SA_SIGINFO) != 0) return now.sa_sigaction == answer;
  if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) return false;
  struct sigaction mine = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
  sigemptyset(&mine.sa_mask);
  return sigaction(SIGURG, &mine, NULL) == 0;
}

size_t cco_ask_thread(int thread, uintptr_t *into, size_t room, uint64_t nanoseconds, bool *is_all) {
  *is_all = false;
  if (cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER | CCO_THREAD_SANITIZER)) return 0;
  static _Atomic bool is_asking;
  if (atomic_exchange_explicit(&is_asking, true, memory_order_acquire)) return 0;
  size_t found = 0;
  if (install()) {
    frames = into;
    most = room;
    count = 0;
    is_whole = false;
    atomic_store_explicit(&asked, thread, memory_order_relaxed);
    atomic_store_explicit(&state, ASKED, memory_order_release);
    struct timespec pause = {.tv_nsec = 50000};
    if (syscall(SYS_tgkill, getpid(), thread, SIGURG) == 0) {
      for (uint64_t waited = 0; waited < nanoseconds; waited += 50000) {
        if (atomic_load_explicit(&state, memory_order_acquire) == DONE) break;
        nanosleep(&pause, NULL);
      }
    }
    int expected = ASKED;
    if (!atomic_compare_exchange_strong_explicit(&state, &expected, IDLE, memory_order_acq_rel, memory_order_acquire)) {
      // It walks some hundred frames at most. Asleep, because this thread may have a priority that keeps that one from
      // its processor.
      while (atomic_load_explicit(&state, memory_order_acquire) != DONE) nanosleep(&pause, NULL);
      found = count;
      *is_all = is_whole;
      atomic_store_explicit(&state, IDLE, memory_order_relaxed);
    }
  }
  atomic_store_explicit(&is_asking, false, memory_order_release);
  return found;
}
