// The report of a stack overflow. Async-signal-safe (Line.h).
#include "Hazards/Line.h"
#include "Stack/Slab.h"

#include <sys/prctl.h>

static void add_size(line *l, size_t bytes) {
  bool mebi = bytes >= (size_t)1 << 20;
  add_number(l, bytes >> (mebi ? 20 : 10));
  add(l, mebi ? " MiB" : " KiB");
}

static const cco_label no_label = {.id = 0};
static const cco_label *label_of(const cco_context *context) { return context->label ? context->label : &no_label; }

// Another context is not named: another thread may release its name while this one reads.
static void add_address(line *l, const cco_context *context, const char *fault) {
  bool in_guard = false;
  const cco_context *there = cco_context_at(fault, &in_guard);
  if (there == context && in_guard) {
    add(l, " The fault is in its guard.");
    return;
  }
  if (fault >= context->low) {
    add(l, " The fault is outside of its stack and its guard.");
    return;
  }
  add(l, " The fault is ");
  add_number(l, (uint64_t)(context->low - fault));
  add(l, " bytes below its stack, beyond its guard");
  if (there != NULL) {
    add(l, in_guard ? ", in the guard of another coroutine's stack" : ", in another coroutine's stack");
  }
  add(l, ": one frame is larger than the guard.");
}

void cco_write_overflow_report(const cco_context *context, const char *fault, const char *pointer) {
  const cco_label *label = label_of(context);
  uint32_t size_class = context->size_class % CCO_STACK_CLASSES;
  line l = {.length = 0};
  add_coroutine(&l, label);
  add(&l, " overflowed its stack of ");
  size_t size = cco_classes[size_class].stack;
  add_size(&l, size);
  add_launch_site(&l, label);
  // The next class that is larger and holds the frame: a large frame may need more than one step, and with pages of
  // 64 KiB, as some kernels for aarch64 have, the two smallest classes are of one size.
  const char *lowest = pointer < fault ? pointer : fault;
  size_t wanted = lowest < cco_high(context) ? (size_t)(cco_high(context) - lowest) : 0;
  uint32_t next = size_class + 1;
  while (next < CCO_STACK_CLASSES && (cco_classes[next].stack <= size || cco_classes[next].stack < wanted)) next++;
  if (next < CCO_STACK_CLASSES) {
    unsigned shift = 0;
    while (((size_t)1 << shift) < cco_classes[next].stack) shift++;
    add(&l, ". Give it a larger one: ");
    add(&l, cco_is_call(context) ? "co_withStack(.bytes(1 << " : "co_launch(stack: .bytes(1 << ");
    add_number(&l, shift);
    add(&l, cco_is_call(context) ? ")) { … }." : ")).");
  } else {
    add(&l, ". No larger stack exists: its recursion has no end, or keeps too much in each frame.");
  }
  add_address(&l, context, fault);
  write_line(&l);
}

void cco_write_thread_overflow(size_t bytes) {
  // The C library's function is not async-signal-safe.
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  line l = {.length = 0};
  add(&l, "Coroutine: code outside of any coroutine overflowed the stack of its thread, ");
  add_escaped(&l, name, strnlen(name, sizeof name), 100);
  add(&l, ", which has ");
  add_size(&l, bytes);
  add(&l, ". Give deep code a stack of its own: co_withStack(.bytes(16 << 20)) { … }.");
  write_line(&l);
}
