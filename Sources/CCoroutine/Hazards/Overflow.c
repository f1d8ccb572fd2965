// Hazard 6: a stack overflow is silent. A thread that has run into a guard has no stack for a signal handler, so the
// process dies without a message. This file gives each thread that runs coroutines an alternate signal stack, and
// installs a process-wide handler that writes one line, which names the coroutine. Then the handler chains: the
// previous handler (Swift's backtracer, a sanitizer, the program's own) runs as if the kernel had called it, or the
// process dies by the signal.
//
// Each switch stores the running context in the thread's words (`running`); the handler reads the owner from there. The
// address of the fault does not identify the owner: a frame that is larger than the guard reaches beyond it, perhaps
// into the stack of another flow.
//
// The handler is async-signal-safe: cco_context_at takes no lock, OverflowReport.c allocates nothing.
#include "Internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// Room for this handler and for those that it chains to; ASan's and Swift's need tens of KiB. Pages that are not
// touched take no memory.
enum { SIGNAL_STACK = 128 << 10 };

static const char *_Atomic description = "on demand: installed by the first thread that runs coroutines";
static void on_fault(int signal, siginfo_t *info, void *interrupted);

// A sanitizer that reserves a signal lets sigaction return success without an effect.
static bool is_installed(int signal) {
  struct sigaction now = {0};
  return sigaction(signal, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault;
}

const char *cco_overflow_description(void) {
  if (!(cco_mitigations() & CCO_MITIGATION_OVERFLOW_REPORT) || (is_installed(SIGSEGV) && is_installed(SIGBUS)))
    return atomic_load(&description);
  return "unknown: the program has installed a handler since; there is a report only if that one calls ours";
}

static struct sigaction previous_segv, previous_bus;
static atomic_bool spent_segv, spent_bus;  // a previous handler with SA_RESETHAND has had its one call

// ---- the handler

static const char *stack_pointer(const void *interrupted) {
  const ucontext_t *user = interrupted;
#if defined(__x86_64__)
  return (const char *)user->uc_mcontext.gregs[REG_RSP];
#else
  return (const char *)user->uc_mcontext.sp;
#endif
}

// Does what the kernel would have done without this handler.
static void chain(int signal, siginfo_t *info, void *interrupted) {
  const struct sigaction *previous = signal == SIGSEGV ? &previous_segv : &previous_bus;
  atomic_bool *spent = signal == SIGSEGV ? &spent_segv : &spent_bus;
  bool sent = info->si_code <= 0;  // by kill or sigqueue, not by a fault
  bool is_default = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_DFL;
  bool is_ignored = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_IGN;
  if (!is_default && !is_ignored && (previous->sa_flags & (int)SA_RESETHAND)) is_default = atomic_exchange(spent, true);
  if (is_ignored && sent) return;
  if (is_default || is_ignored) {
    // When this handler returns, the fault happens again and ends the process, even if the signal is ignored. A signal
    // that was sent does not happen again, so it is sent again.
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    sigaction(signal, &fatal, NULL);
    if (sent) raise(signal);
    return;
  }
  // The kernel restores the mask when the handler returns.
  pthread_sigmask(SIG_BLOCK, &previous->sa_mask, NULL);
  if (previous->sa_flags & SA_NODEFER) {
    sigset_t this_one;
    sigemptyset(&this_one);
    sigaddset(&this_one, signal);
    pthread_sigmask(SIG_UNBLOCK, &this_one, NULL);
  }
  if (previous->sa_flags & SA_SIGINFO)
    previous->sa_sigaction(signal, info, interrupted);
  else
    previous->sa_handler(signal);
}

// Whether the interrupted code runs on this thread's signal stack: then it is another handler that has faulted.
static bool is_on_signal_stack(const char *pointer) {
  stack_t now;
  if (sigaltstack(NULL, &now) != 0 || (now.ss_flags & SS_DISABLE)) return false;
  return pointer >= (const char *)now.ss_sp && pointer < (const char *)now.ss_sp + now.ss_size;
}

// The largest distance of an overflowing stack pointer below its stack. A stack pointer farther below is on a stack
// that this runtime does not know, to which the code itself has switched.
static const size_t LARGEST_FRAME = (size_t)256 << 20;

// Whether a fault of the context that runs on this thread is an overflow of its stack. There are two cases:
// - The stack pointer has left the stack at its lower end. The address of the fault does not matter, because a large
//   frame may have jumped over the guard, into unmapped memory or into a neighbour's guard.
// - The context's own guard was touched while the stack pointer is inside the stack: code that probes a large frame may
//   do so before it moves the stack pointer. A wild pointer into another context's guard does not count.
static bool is_overflow(const cco_context *context, const char *fault, const char *pointer) {
  if (pointer >= (const char *)context) return false;
  if (pointer < context->low) return context->low - pointer <= (ptrdiff_t)LARGEST_FRAME && !is_on_signal_stack(pointer);
  bool in_guard = false;
  return cco_context_at(fault, &in_guard) == context && in_guard;
}

static void on_fault(int signal, siginfo_t *info, void *interrupted) {
  // A signal that another thread or process has sent says nothing about this thread's stack.
  const cco_context *context = info->si_code > 0 ? cco_context_at(cco_thread()->running, NULL) : NULL;
  const char *pointer = stack_pointer(interrupted), *fault = info->si_addr;
  if (context != NULL && is_overflow(context, fault, pointer)) cco_write_overflow_report(context, fault, pointer);
  chain(signal, info, interrupted);
}

// ---- installation

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t signal_stack;
static bool has_key;
static __thread __attribute__((tls_model("initial-exec"))) bool is_guarded;

static void drop_signal_stack(void *stack) {
  stack_t now = {0}, none = {.ss_flags = SS_DISABLE};
  // Other code may have installed another signal stack in the meantime.
  if (sigaltstack(NULL, &now) == 0 && now.ss_sp == stack) sigaltstack(&none, NULL);
  munmap(stack, SIGNAL_STACK);
  is_guarded = false;
}

// If a fork interrupted an installation, the child installs again, and must not chain to this handler.
static void note_previous(int signal, struct sigaction *previous) {
  struct sigaction now;
  if (sigaction(signal, NULL, &now) == 0 && now.sa_sigaction != on_fault) *previous = now;
}

static void install(void) {
  if (cco_is_disabled(CCO_MITIGATION_OVERFLOW_REPORT)) {
    atomic_store(&description, "off: disabled by a test; an overflow ends the process without a word");
    return;
  }
  has_key = pthread_key_create(&signal_stack, drop_signal_stack) == 0;
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  // Read before the installation, because another thread may fault between the two calls.
  note_previous(SIGSEGV, &previous_segv);
  note_previous(SIGBUS, &previous_bus);
  if (!has_key || sigaction(SIGSEGV, &action, NULL) != 0 || sigaction(SIGBUS, &action, NULL) != 0 ||
      !is_installed(SIGSEGV) || !is_installed(SIGBUS)) {
    has_key = false;
    atomic_store(&description, "off: no thread-specific key or no signal handler could be had");
    return;
  }
  atomic_store(&description, "on: on an alternate signal stack, then the handler that was there before");
  cco_mark_active(CCO_MITIGATION_OVERFLOW_REPORT, true);
}

static __attribute__((noinline)) void guard_this_thread(void) {
  pthread_once(&once, install);
  is_guarded = true;
  stack_t now = {0};
  if (!has_key || sigaltstack(NULL, &now) != 0) return;
  // A sanitizer or the program may have given this thread a signal stack already.
  if (!(now.ss_flags & SS_DISABLE) && now.ss_size >= SIGNAL_STACK / 4) return;
  void *stack = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return;
  stack_t mine = {.ss_sp = stack, .ss_size = SIGNAL_STACK};
  if (pthread_setspecific(signal_stack, stack) != 0 || sigaltstack(&mine, NULL) != 0 || sigaltstack(NULL, &now) != 0 ||
      now.ss_sp != stack) {
    pthread_setspecific(signal_stack, NULL);
    munmap(stack, SIGNAL_STACK);
  }
}

void cco_guard_thread(void) {
  if (__builtin_expect(!is_guarded, 0)) guard_this_thread();
}
