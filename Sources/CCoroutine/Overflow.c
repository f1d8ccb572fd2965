// Hazard 6: a stack overflow is silent. A thread that has run into a guard has no stack left to handle the signal on,
// so the process dies without a word. Here each thread that runs coroutines gets an alternate signal stack, and a
// process-wide handler writes one line that names the coroutine. Then happens what would have happened anyway: the
// handler that was installed before (Swift's backtracer, a sanitizer, the program's own) runs as if the kernel had
// called it, or the process dies by the signal.
//
// All that runs in the handler is async-signal-safe: cco_context_at takes no lock, LastWords.c allocates nothing.
#include "Internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// Room for this handler and for those it chains to; ASan's and Swift's want tens of KiB. Committed by touch.
enum { SIGNAL_STACK = 128 << 10 };

static const char *_Atomic description = "on demand: installed by the first thread that runs coroutines";
const char *cco_overflow_description(void) { return atomic_load(&description); }

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

// Does what the kernel would have done had this handler not been there.
static void chain(int signal, siginfo_t *info, void *interrupted) {
  const struct sigaction *previous = signal == SIGSEGV ? &previous_segv : &previous_bus;
  atomic_bool *spent = signal == SIGSEGV ? &spent_segv : &spent_bus;
  bool sent = info->si_code <= 0;  // by kill or sigqueue, not by a fault
  bool is_default = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_DFL;
  bool is_ignored = !(previous->sa_flags & SA_SIGINFO) && previous->sa_handler == SIG_IGN;
  if (!is_default && !is_ignored && (previous->sa_flags & (int)SA_RESETHAND)) is_default = atomic_exchange(spent, true);
  if (is_ignored && sent) return;
  if (is_default || is_ignored) {
    // The fault happens again when this handler returns (a signal that was sent does not, so it is sent again), and now
    // it ends the process; a fault that is ignored does so too.
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

// How far below a guard the stack pointer of an overflow may be: a large frame moves it there before it is touched.
enum { LARGEST_FRAME = 1 << 20 };

static void on_fault(int signal, siginfo_t *info, void *interrupted) {
  bool in_guard = false;
  const cco_context *context = info->si_code > 0 ? cco_context_at(info->si_addr, &in_guard) : NULL;
  // A wild pointer into the guard of a stack that this thread does not run on is no overflow.
  if (context != NULL && in_guard) {
    const char *pointer = stack_pointer(interrupted), *fault = info->si_addr;
    if (pointer < (const char *)context && pointer + LARGEST_FRAME > fault) cco_say_last_words(context);
  }
  chain(signal, info, interrupted);
}

// ---- installation

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t signal_stack;
static bool has_key;
static __thread __attribute__((tls_model("initial-exec"))) bool is_guarded;

static void drop_signal_stack(void *stack) {
  stack_t now = {0}, none = {.ss_flags = SS_DISABLE};
  // Somebody else may have put another one in its place.
  if (sigaltstack(NULL, &now) == 0 && now.ss_sp == stack) sigaltstack(&none, NULL);
  munmap(stack, SIGNAL_STACK);
  is_guarded = false;
}

static void install(void) {
  if (cco_is_disabled(CCO_CURE_OVERFLOW_REPORT)) {
    atomic_store(&description, "off: disabled by a test; an overflow ends the process without a word");
    return;
  }
  has_key = pthread_key_create(&signal_stack, drop_signal_stack) == 0;
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  // Read first: a fault on another thread may come between the two calls.
  sigaction(SIGSEGV, NULL, &previous_segv);
  sigaction(SIGBUS, NULL, &previous_bus);
  if (!has_key || sigaction(SIGSEGV, &action, NULL) != 0 || sigaction(SIGBUS, &action, NULL) != 0) {
    has_key = false;
    atomic_store(&description, "off: no thread-specific key or no signal handler could be had");
    return;
  }
  atomic_store(&description, "on: on an alternate signal stack, then the handler that was there before");
  cco_mark_active(CCO_CURE_OVERFLOW_REPORT, true);
}

static __attribute__((noinline)) void guard_this_thread(void) {
  pthread_once(&once, install);
  is_guarded = true;
  stack_t now = {0};
  if (!has_key || sigaltstack(NULL, &now) != 0) return;
  // A sanitizer or the program may have given this thread one already.
  if (!(now.ss_flags & SS_DISABLE) && now.ss_size >= SIGNAL_STACK / 4) return;
  void *stack = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return;
  stack_t mine = {.ss_sp = stack, .ss_size = SIGNAL_STACK};
  if (pthread_setspecific(signal_stack, stack) != 0 || sigaltstack(&mine, NULL) != 0) {
    pthread_setspecific(signal_stack, NULL);
    munmap(stack, SIGNAL_STACK);
  }
}

void cco_guard_thread(void) {
  if (__builtin_expect(!is_guarded, 0)) guard_this_thread();
}
