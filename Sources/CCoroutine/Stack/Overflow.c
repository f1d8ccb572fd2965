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
// Other fatal signals of a thread that runs a coroutine (a trap of Swift is SIGILL or SIGTRAP) pass through the same
// handler, which writes one line as well before it chains. The layer above has the texts (CCoroutineInspect's
// OverflowReport.c and FatalReport.c), and may do something more before any thread's fatal signal goes on (Incident.c).
// Without a layer there is one line about an overflow, and none about other signals.
//
// A thread's own stack has a guard as well, of the C library, and code on it may run into that. The layer knows.
//
// A handler is never lost. If the previous effect is the default one, a signal that another process has sent is raised
// once more with that effect, and unblocked. It usually ends the process. The first process of a container survives it,
// because the kernel ignores the default effect there; so does a process whose debugger drops the signal. Then this
// handler is installed again.
//
// The handler is async-signal-safe: cco_context_at takes no lock, and the layer's functions allocate nothing.
#include "Internal.h"
#include "Layer.h"

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

// The first two have to be installed for overflow reports.
static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP};
enum { SIGNALS = sizeof signals / sizeof *signals, NEEDED = 2 };
static struct sigaction previous_actions[SIGNALS];
static atomic_bool spent[SIGNALS];  // a previous handler with SA_RESETHAND has had its one call

static int index_of(int signal) {
  int index = 0;
  while (index < SIGNALS - 1 && signals[index] != signal) index++;
  return index;
}

// ---- the handler

typedef struct registers {
  uintptr_t stack, frame, pc;
} registers;

static registers registers_of(const void *interrupted) {
  const ucontext_t *user = interrupted;
#if defined(__x86_64__)
  const greg_t *all = user->uc_mcontext.gregs;
  return (registers){(uintptr_t)all[REG_RSP], (uintptr_t)all[REG_RBP], (uintptr_t)all[REG_RIP]};
#else
  return (registers){user->uc_mcontext.sp, user->uc_mcontext.regs[29], user->uc_mcontext.pc};
#endif
}

static struct sigaction own_action(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  return action;
}

// Does what the kernel would have done without this handler.
static void chain(int signal, siginfo_t *info, void *interrupted) {
  const struct sigaction *previous = &previous_actions[index_of(signal)];
  bool sent = info->si_code <= 0;  // by kill or sigqueue, not by a fault
  // A trap of x86-64 comes after its instruction, and does not happen again.
  bool must_raise = sent || signal == SIGTRAP;
  bool is_default = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_DFL;
  bool is_ignored = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_IGN;
  if (!is_default && !is_ignored && (previous->sa_flags & (int)SA_RESETHAND))
    is_default = atomic_exchange(&spent[index_of(signal)], true);
  if (is_ignored && sent) return;
  if (is_default || is_ignored) {
    // When this handler returns, the fault happens again and ends the process, even if the signal is ignored. A signal
    // that was sent does not happen again, so it is sent again.
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    sigaction(signal, &fatal, NULL);
    if (!must_raise) return;
    sigset_t this_one, old;
    sigemptyset(&this_one);
    sigaddset(&this_one, signal);
    pthread_sigmask(SIG_UNBLOCK, &this_one, &old);
    raise(signal);
    // The process has survived. abort() ends it itself.
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    struct sigaction own = own_action();
    sigaction(signal, &own, NULL);
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

// Whether a fault of the running context is an overflow: its stack pointer has left the stack at its end, wherever the
// fault is, because a large frame may jump over the guard; or its own guard was touched from inside, as code does
// that probes a large frame before it moves the pointer. A wild pointer into another context's guard does not count.
static bool is_overflow(const cco_context *context, const char *fault, const char *pointer) {
  if (pointer >= (const char *)context) return false;
  if (pointer < context->low) return context->low - pointer <= (ptrdiff_t)LARGEST_FRAME && !is_on_signal_stack(pointer);
  bool in_guard = false;
  return cco_context_at(fault, &in_guard) == context && in_guard;
}

// A signal that another thread or process has sent says nothing about this thread. abort() sends one to its own thread.
static bool is_own(int signal, const siginfo_t *info) {
  return info->si_code > 0 || (signal == SIGABRT && info->si_code == SI_TKILL && info->si_pid == getpid());
}

const cco_report_hooks *cco_report_layer;

static void report_overflow(const cco_context *context, const char *fault, const char *pointer) {
  if (cco_report_layer != NULL) return cco_report_layer->overflow(context, fault, pointer);
  static const char line[] = "Coroutine: a context has overflowed its stack; create it with a larger one\n";
  (void)!write(STDERR_FILENO, line, sizeof line - 1);
}

static void on_fault(int signal, siginfo_t *info, void *interrupted) {
  const cco_context *context = is_own(signal, info) ? cco_context_at(cco_thread()->running, NULL) : NULL;
  if (context != NULL) {
    registers now = registers_of(interrupted);
    bool may_overflow = signal == SIGSEGV || signal == SIGBUS;
    if (may_overflow && is_overflow(context, info->si_addr, (const char *)now.stack))
      report_overflow(context, info->si_addr, (const char *)now.stack);
    else if (now.stack >= (uintptr_t)context->low && now.stack < (uintptr_t)context && cco_report_layer != NULL)
      cco_report_layer->fatal(context, signal, now.pc, now.frame, now.stack);
  } else if ((signal == SIGSEGV || signal == SIGBUS) && is_own(signal, info) && cco_report_layer != NULL) {
    const char *pointer = (const char *)registers_of(interrupted).stack;
    if (!is_on_signal_stack(pointer)) cco_report_layer->fault(info->si_addr, pointer);
  }
  // One that `kill` has sent ends the process as well, if nothing else handles it.
  if (cco_report_layer != NULL && (is_own(signal, info) || previous_actions[index_of(signal)].sa_handler == SIG_DFL))
    cco_report_layer->end();
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
  if (cco_report_layer != NULL) cco_report_layer->start();
  has_key = pthread_key_create(&signal_stack, drop_signal_stack) == 0;
  struct sigaction action = own_action();
  bool is_complete = has_key;
  for (int i = 0; i < SIGNALS && has_key; i++) {
    // Read before the installation, because another thread may fault between the two calls.
    note_previous(signals[i], &previous_actions[i]);
    bool is_there = sigaction(signals[i], &action, NULL) == 0 && is_installed(signals[i]);
    if (i < NEEDED && !is_there) is_complete = false;
  }
  if (!is_complete) {
    has_key = false;
    atomic_store(&description, "off: no thread-specific key or no signal handler could be had");
    return;
  }
  atomic_store(&description, "on: on an alternate signal stack, then the handler that was there before");
  cco_mark_active(CCO_MITIGATION_OVERFLOW_REPORT, true);
}

static void take_signal_stack(void) {
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

static __attribute__((noinline)) void guard_this_thread(void) {
  pthread_once(&once, install);
  is_guarded = true;
  if (cco_report_layer != NULL) cco_report_layer->guard();
  take_signal_stack();
}

void cco_guard_thread(void) {
  if (__builtin_expect(!is_guarded, 0)) guard_this_thread();
}

void cco_restore_signal_stack(void) {
  if (!has_key) return;
  stack_t mine = {.ss_sp = pthread_getspecific(signal_stack), .ss_size = SIGNAL_STACK};
  if (mine.ss_sp == NULL)
    take_signal_stack();
  else
    sigaltstack(&mine, NULL);
}
