// Hazard 9: the information that AddressSanitizer, LeakSanitizer, ThreadSanitizer and Valgrind need about stacks and
// switches. Everything is in this file, and nothing is conditional elsewhere. In a plain build each function is empty
// or a plain jump.
//
// Switches in a sanitizer build.
// - ASan must get the bounds of the target stack before the jump, and TSan the target fiber. Both belong to the parked
//   stack.
// - So in these builds a saved context's `stack` points to a record on the parked stack, which holds them and the saved
//   stack pointer:
//
//     saved.stack ---> cco_parked { stack (Boost's), bottom, size, fiber }
//
// - The owner of the record stores its fiber before it jumps. The other side stores the values that only it gets: the
//   saved stack pointer (from Boost) and the bounds (from __sanitizer_finish_switch_fiber). No thread-local is needed.
#include "Internal.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CCO_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CCO_TSAN 1
#endif
#endif
#if defined(__has_include)
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#define CCO_HAS_VALGRIND 1
#endif
#endif

uint32_t cco_compiled_sanitizers(void) {
  uint32_t found = 0;
#ifdef CCO_ASAN
  found |= CCO_ADDRESS_SANITIZER | CCO_LEAK_SANITIZER;
#endif
#ifdef CCO_TSAN
  found |= CCO_THREAD_SANITIZER;
#endif
#ifdef CCO_HAS_VALGRIND
  found |= CCO_VALGRIND;
#endif
  return found;
}

// Whether any tool must know about stacks. Written by cco_start, before the first stack exists.
bool cco_sanitizer_watches;

#if defined(CCO_ASAN) || defined(CCO_TSAN)

typedef struct cco_parked {
  void *stack;
  const void *bottom;
  size_t size;
  void *fiber;
} cco_parked;

// The data of a jump: the record of the context that jumps, and its argument.
typedef struct cco_passing {
  cco_parked *from;
  void *data;
} cco_passing;

#ifdef CCO_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#include <pthread.h>

// While a thread runs a coroutine, LeakSanitizer takes the coroutine's stack for the thread's stack, and does not scan
// the thread's own stack. So the thread's own stack is registered as a root region, from the thread's first jump, which
// starts there, to the thread's end. The key is written once. Each thread writes its thread-locals before its first
// jump. The size is kept because the size of the main thread's stack is computed from a limit that may change.
static pthread_key_t own_stack;
static bool has_own_stack_key;
static pthread_once_t own_stack_once = PTHREAD_ONCE_INIT;
static _Thread_local bool own_stack_is_known;
static _Thread_local size_t own_stack_size;

static bool bounds_of(pthread_t thread, void **low, size_t *size) {
  pthread_attr_t attributes;
  if (pthread_getattr_np(thread, &attributes) != 0) return false;
  bool found = pthread_attr_getstack(&attributes, low, size) == 0;
  pthread_attr_destroy(&attributes);
  return found;
}
static void forget_own_stack(void *low) { __lsan_unregister_root_region(low, own_stack_size); }
static void make_own_stack_key(void) { has_own_stack_key = pthread_key_create(&own_stack, forget_own_stack) == 0; }

// Not inlined: a thread-local's address must not be kept over a switch (hazard 4).
static __attribute__((noinline)) void know_own_stack(void) {
  if (own_stack_is_known) return;
  own_stack_is_known = true;
  void *low;
  if (!bounds_of(pthread_self(), &low, &own_stack_size)) return;
  pthread_once(&own_stack_once, make_own_stack_key);
  if (has_own_stack_key && pthread_setspecific(own_stack, low) == 0) __lsan_register_root_region(low, own_stack_size);
}

static void leave(void **fake, const cco_parked *to) {
  know_own_stack();
  __sanitizer_start_switch_fiber(fake, to->bottom, to->size);
}
static void arrive(void *fake, cco_parked *from) { __sanitizer_finish_switch_fiber(fake, &from->bottom, &from->size); }
#else
static void leave(void **fake, const cco_parked *to) { (void)fake, (void)to; }
static void arrive(void *fake, cco_parked *from) { (void)fake, (void)from; }
#endif

#ifdef CCO_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
static void *current_fiber(void) { return __tsan_get_current_fiber(); }
#else
static void *current_fiber(void) { return NULL; }
#endif

bool cco_sanitizer_wants_careful(void) { return true; }
void cco_sanitizer_start(void) { cco_sanitizer_watches = true; }

void *cco_sanitizer_saved_stack(void *stack) { return ((cco_parked *)stack)->stack; }

// Not instrumented, because ASan would move the records to its fake stack. A stack that is left for ever gives up its
// fake stack before the other side has read the records.
#define ON_THE_REAL_STACK __attribute__((no_sanitize("address")))

// Completes the record of the context that jumped here, and unpacks its argument.
ON_THE_REAL_STACK static cco_transfer receive(cco_transfer raw, void *fake) {
  cco_passing *passing = raw.data;
  passing->from->stack = raw.stack;
  arrive(fake, passing->from);
  return (cco_transfer){passing->from, passing->data};
}

ON_THE_REAL_STACK cco_transfer cco_annotated_jump(void *to, void *data, bool forever) {
  cco_parked *target = to;
  cco_parked here = {.fiber = current_fiber()};
  cco_passing passing = {&here, data};
  void *fake = NULL;
  leave(forever ? NULL : &fake, target);
#ifdef CCO_TSAN
  __tsan_switch_to_fiber(target->fiber, 0);
#endif
  return receive(cco_jump(target->stack, &passing), fake);
}

ON_THE_REAL_STACK cco_transfer cco_sanitizer_enter(cco_context *context, void *stack) {
  cco_parked newborn = {stack, context->low, (size_t)(cco_high(context) - context->low), context->sanitizer};
  return cco_annotated_jump(&newborn, context, false);
}

cco_transfer cco_sanitizer_entered(cco_transfer birth) { return receive(birth, NULL); }

// Leaving a stack for ever frees its fake frames, so the trampoline is told to leave. The next context on this stack
// starts with a new trampoline, and under TSan with a new fiber.
void cco_sanitizer_forget(cco_context *context) {
#ifdef CCO_ASAN
  cco_saved_context here = {0};
  context->caller = &here;
  context->entry = (cco_entry)0;
  cco_switch_carefully(&here, &context->parked);
#endif
  context->parked.stack = NULL;
}

// The size of the stack with its control block, whose argument may be the only reference to a body.
#ifdef CCO_ASAN
static size_t root_size(const cco_context *context) { return (size_t)((char *)(context + 1) - context->low); }
#endif

void cco_sanitizer_note_in_use(cco_context *context) {
#ifdef CCO_TSAN
  context->sanitizer = __tsan_create_fiber(0);
#endif
#ifdef CCO_ASAN
  // Objects that only a parked stack refers to are not leaks.
  __lsan_register_root_region(context->low, root_size(context));
#endif
}

void cco_sanitizer_note_idle(cco_context *context) {
#ifdef CCO_TSAN
  __tsan_destroy_fiber(context->sanitizer);
  context->sanitizer = NULL;
#endif
#ifdef CCO_ASAN
  __lsan_unregister_root_region(context->low, root_size(context));
  // Every frame has returned except the trampoline's, at the top. Unpoisoning all of the stack would touch an eighth of
  // its size in shadow memory.
  size_t size = (size_t)((char *)context - context->low), top = size < 4096 ? size : 4096;
  __asan_unpoison_memory_region((char *)context - top, top);
#endif
}

#else  // a plain build: a plain jump, and only Valgrind must know about stacks

bool cco_sanitizer_wants_careful(void) { return false; }
void cco_sanitizer_start(void) {
#ifdef CCO_HAS_VALGRIND
  cco_sanitizer_watches = RUNNING_ON_VALGRIND != 0;
#endif
}
void *cco_sanitizer_saved_stack(void *stack) { return stack; }
cco_transfer cco_annotated_jump(void *to, void *data, bool forever) {
  (void)forever;
  return cco_jump(to, data);
}
cco_transfer cco_sanitizer_enter(cco_context *context, void *stack) { return cco_jump(stack, context); }
cco_transfer cco_sanitizer_entered(cco_transfer birth) { return birth; }
void cco_sanitizer_forget(cco_context *context) { (void)context; }

void cco_sanitizer_note_in_use(cco_context *context) {
#ifdef CCO_HAS_VALGRIND
  context->valgrind = VALGRIND_STACK_REGISTER(context->low, cco_high(context));
#else
  (void)context;
#endif
}

void cco_sanitizer_note_idle(cco_context *context) {
#ifdef CCO_HAS_VALGRIND
  VALGRIND_STACK_DEREGISTER(context->valgrind);
#else
  (void)context;
#endif
}

#endif
