// The reports of stack overflows, of coroutines and of threads. Async-signal-safe (Line.h).
#include "Line.h"
#include "Reports.h"
#include "Stack/Slab.h"

#include <pthread.h>
#include <sys/prctl.h>

static void add_size(cco_line *l, size_t bytes) {
  bool mebi = bytes >= (size_t)1 << 20;
  cco_line_add_number(l, bytes >> (mebi ? 20 : 10));
  cco_line_add(l, mebi ? " MiB" : " KiB");
}

static const cco_label no_label = {.id = 0};
static const cco_label *label_of(const cco_context *context) { return context->label ? context->label : &no_label; }

// Another context is not named: another thread may release its name while this one reads.
static void add_address(cco_line *l, const cco_context *context, const char *fault) {
  bool in_guard = false;
  const cco_context *there = cco_context_at(fault, &in_guard);
  if (there == context && in_guard) {
    cco_line_add(l, " The fault is in its guard.");
    return;
  }
  if (fault >= context->low) {
    cco_line_add(l, " The fault is outside of its stack and its guard.");
    return;
  }
  cco_line_add(l, " The fault is ");
  cco_line_add_number(l, (uint64_t)(context->low - fault));
  cco_line_add(l, " bytes below its stack, beyond its guard");
  if (there != NULL) {
    cco_line_add(l, in_guard ? ", in the guard of another coroutine's stack" : ", in another coroutine's stack");
  }
  cco_line_add(l, ": one frame is larger than the guard.");
}

void cco_write_overflow_report(const cco_context *context, const char *fault, const char *pointer) {
  const cco_label *label = label_of(context);
  uint32_t size_class = context->size_class % CCO_STACK_CLASSES;
  cco_line l = {.length = 0};
  cco_line_add_coroutine(&l, label);
  cco_line_add(&l, " overflowed its stack of ");
  size_t size = cco_classes[size_class].stack;
  add_size(&l, size);
  cco_line_add_launch_site(&l, label);
  // The next class that is larger and holds the frame: a large frame may need more than one step, and with pages of
  // 64 KiB, as some kernels for aarch64 have, the two smallest classes are of one size.
  const char *lowest = pointer < fault ? pointer : fault;
  size_t wanted = lowest < cco_high(context) ? (size_t)(cco_high(context) - lowest) : 0;
  uint32_t next = size_class + 1;
  while (next < CCO_STACK_CLASSES && (cco_classes[next].stack <= size || cco_classes[next].stack < wanted)) next++;
  if (next < CCO_STACK_CLASSES) {
    unsigned shift = 0;
    while (((size_t)1 << shift) < cco_classes[next].stack) shift++;
    cco_line_add(&l, ". Give it a larger one: ");
    cco_line_add(&l, cco_is_call(context) ? "co_withStack(.bytes(1 << " : "co_launch(stack: .bytes(1 << ");
    cco_line_add_number(&l, shift);
    cco_line_add(&l, cco_is_call(context) ? ")) { … }." : ")).");
  } else {
    cco_line_add(&l, ". No larger stack exists: its recursion has no end, or keeps too much in each frame.");
  }
  add_address(&l, context, fault);
  cco_line_write(&l);
}

// ---- the stack of a thread

// The stack of a thread that the Swift layer or the program has created: its lowest byte, its size, and that of its
// guard; NULL for the first thread, whose stack grows.
static __thread __attribute__((tls_model("initial-exec"))) char *thread_low;
static __thread __attribute__((tls_model("initial-exec"))) size_t thread_bytes, thread_guard;

void cco_note_stack_of_thread(void) {
  pthread_attr_t attributes;
  void *low;
  size_t size, guard;
  if (getpid() == gettid() || pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  if (pthread_attr_getstack(&attributes, &low, &size) == 0 && pthread_attr_getguardsize(&attributes, &guard) == 0) {
    thread_low = low;
    thread_bytes = size;
    thread_guard = guard;
  }
  pthread_attr_destroy(&attributes);
}

// Whether the guard below the stack of this thread was touched, by code that runs on it. (In some versions of the C
// library the lowest byte is that of the guard.)
static bool is_overflow_of_thread(const char *fault, const char *pointer) {
  if (thread_low == NULL || pointer >= thread_low + thread_bytes) return false;
  return fault >= thread_low - thread_guard && fault < thread_low + thread_guard;
}

void cco_report_fault_of_thread(const char *fault, const char *pointer) {
  if (!is_overflow_of_thread(fault, pointer)) return;
  // The C library's function is not async-signal-safe.
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  cco_line l = {.length = 0};
  cco_line_add(&l, "Coroutine: code outside of any coroutine overflowed the stack of its thread, ");
  cco_line_add_escaped(&l, name, strnlen(name, sizeof name), 100);
  cco_line_add(&l, ", which has ");
  add_size(&l, thread_bytes);
  cco_line_add(&l, ". Give deep code a stack of its own: co_withStack(.bytes(16 << 20)) { … }.");
  cco_line_write(&l);
}
