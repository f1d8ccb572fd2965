// Start-up and the report: which mitigations are active, which fell back, and why.
//
// cco_start runs once, before the first context. Its order matters:
//   1. The thread words have an address from load time on.
//   2. The words of other runtimes are searched for on two threads of their own (Search.c).
//   3. The probes of floating point and of the layer switch, on the careful path, because nothing is verified yet.
//   4. Only then may `careful` become zero.
//
// Without the two threads a coroutine would see another one's task-locals. So while the kernel refuses them, each call
// that makes a context is refused, and tries the steps from 2 on again.
#include "Internal.h"
#include "Layer.h"
#include "Stack/Lock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static __thread __attribute__((tls_model("initial-exec"))) cco_thread_words words;

// Switches are careful until start-up has verified the fast path.
cco_core_facts cco_facts = {.careful = 1};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool started, is_ready;
static atomic_uint disabled, active;
static _Thread_local bool starting;
static char report[2048];
cco_lock cco_report_lock;

// Runs before main, because a layer reads the thread's words before it makes a context.
__attribute__((constructor)) static void find_words(void) {
  char *here = (char *)&words;
  cco_facts.words_offset = here - cco_thread_pointer();
  for (int i = 0; i < 2; i++) {
    cco_facts.exchanged_offset[i] = (char *)&words.no_exchanged[i] - cco_thread_pointer();
    cco_facts.state_offset[i] = (char *)&words.no_state - cco_thread_pointer();
  }
  cco_facts.exceptions_offset = (char *)&words.no_state - cco_thread_pointer();
}

bool cco_disable(uint32_t mitigations) {
  if (atomic_load(&started)) return false;
  atomic_fetch_or(&disabled, mitigations);
  return true;
}

bool cco_is_disabled(uint32_t mitigation) { return (atomic_load(&disabled) & mitigation) != 0; }
uint32_t cco_mitigations(void) { return atomic_load(&active); }

void cco_mark_active(uint32_t mitigation, bool is_active) {
  if (is_active)
    atomic_fetch_or(&active, mitigation);
  else
    atomic_fetch_and(&active, ~mitigation);
}

static void write_report(void) {
  uint32_t sanitizers = cco_compiled_sanitizers();
  int length = snprintf(report, sizeof report, "floating point   %s\n", cco_floating_point_description());
  if (cco_flow_layer != NULL) {
    cco_flow_layer->describe(report + length, sizeof report - (size_t)length);
    length += (int)strlen(report + length);
  }
  snprintf(report + length, sizeof report - (size_t)length,
           "C++ exceptions   %s\n"
           "stack guards     %s\n"
           "overflow report  %s\n"
           "switch path      %s\n"
           "annotations      %s%s%s%s\n",
           cco_exceptions_description(), cco_guard_description(), cco_overflow_description(),
           cco_facts.careful ? "out of line (sanitizer annotations, or a mitigation that fell back)" : "inline",
           sanitizers & CCO_ADDRESS_SANITIZER ? "AddressSanitizer LeakSanitizer " : "",
           sanitizers & CCO_THREAD_SANITIZER ? "ThreadSanitizer " : "",
           sanitizers & CCO_VALGRIND ? "Valgrind" : "",
           sanitizers == 0 ? "none compiled in" : "");
}

// The steps from 2 on. Not inline: the address of `starting` would be kept over them.
static __attribute__((noinline)) void find_and_prove(void) {
  starting = true;
  if (cco_search(&cco_facts)) {
    cco_floating_point_start();
    if (cco_flow_layer != NULL) cco_flow_layer->prove();
    __atomic_store_n(&cco_facts.careful, cco_sanitizer_wants_careful() || cco_search_wants_careful(), __ATOMIC_RELEASE);
    is_ready = true;
  }
  starting = false;
}

static void run_start(void) {
  starting = true;
  atomic_store(&started, true);
  if (cco_report_layer != NULL) cco_report_layer->start();
  cco_sanitizer_start(), cco_stacks_start();
  find_and_prove();
}

bool cco_start(void) {
  if (starting) return true;  // the floating-point probe makes a context of its own
  pthread_once(&once, run_start);
  if (!is_ready) {
    pthread_mutex_lock(&one_at_a_time);
    if (!is_ready) find_and_prove();
    pthread_mutex_unlock(&one_at_a_time);
  }
  return is_ready;
}

const char *cco_report(void) {
  cco_start();
  cco_lock_take(&cco_report_lock);
  write_report();
  cco_lock_leave(&cco_report_lock);
  return report;
}

// Makes the compiler save all callee-saved registers in this function's frame. The layer may scan the frames of the
// caller when they come back on another thread, and must find the values of registers there too.
#if defined(__x86_64__)
#define SAVE_REGISTERS() \
  __asm__ volatile("" : : "r"(__builtin_frame_address(0)) : "rbx", "r12", "r13", "r14", "r15", "memory")
#else
#define SAVE_REGISTERS()                                                                                              \
  __asm__ volatile("" : : "r"(__builtin_frame_address(0)) : "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", \
                   "x27", "x28", "memory")
#endif

void cco_switch_carefully(cco_saved_context *from, cco_saved_context *to) {
  cco_thread_state state;
  bool has_state = cco_take_thread_state(&state);
  cco_exchange(from, to);
  void *stack = to->stack;
  cco_thread()->running = cco_sanitizer_saved_stack(stack);
  to->stack = NULL;
  if (cco_facts.reconciles) cco_reconcile_floating_point(cco_sanitizer_saved_stack(stack));
  // A generator that a Task steps takes this path at each step, so the return predictor matters here too.
  cco_transfer arrival =
      cco_facts.careful ? cco_annotated_jump(stack, from, false) : cco_jump_unpredicted(stack, from);
  __atomic_store_n(&((cco_saved_context *)arrival.data)->stack, arrival.stack, __ATOMIC_RELEASE);
  SAVE_REGISTERS();
  if (has_state) cco_put_thread_state(&state);
}

// Not inline, so that ThreadSanitizer sees the happens-before edge.
bool cco_is_parked(const cco_saved_context *saved) { return __atomic_load_n(&saved->stack, __ATOMIC_ACQUIRE) != NULL; }

const char *cco_status_message(cco_status status) {
  switch (status) {
    case CCO_OK: return "no error";
    case CCO_STACK_TOO_LARGE: return "the stack asked for is beyond the largest size class of 16 MiB; ask for less";
    case CCO_OUT_OF_MAPS:
      return "the process has reached vm.max_map_count memory mappings while guarding a stack; raise it with "
             "'sysctl -w vm.max_map_count=1048576' or run on Linux 6.13 or later, where guards need no mapping";
    case CCO_OUT_OF_MEMORY:
      return "the kernel refused address space for stacks; look at the limits 'ulimit -v' (RLIMIT_AS), "
             "'ulimit -d' (RLIMIT_DATA) and vm.overcommit_memory";
    case CCO_OUT_OF_THREADS:
      return "the process has met a limit on threads, of which the first use of the runtime needs two; raise pids.max "
             "of its cgroup, RLIMIT_NPROC (ulimit -u) or kernel.threads-max";
    case CCO_NOT_RESUMABLE: return "cannot resume a context that is running or finished";
    case CCO_NOT_RUNNING: return "cannot suspend a context that is not running on this stack";
    case CCO_HAS_LIVE_FRAMES:
      return "cannot free a stack with live frames; resume it with an error first, so that they unwind";
  }
  return "unknown status";
}

cco_status cco_refuse_resume(const cco_context *context) {
  (void)context;
  return CCO_NOT_RESUMABLE;
}
cco_status cco_refuse_suspend(const cco_context *context) {
  (void)context;
  return CCO_NOT_RUNNING;
}
