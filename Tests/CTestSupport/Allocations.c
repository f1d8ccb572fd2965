// Debug builds of the tests: the C library's allocator, with a check in front that the calling thread holds no spin
// lock of the Swift layer. A program's own malloc is used by all of its libraries, Swift's runtime among them.
//
// Allocations of the language runtime for itself are allowed: it makes a type's metadata at the type's first use, and
// without optimisation that may be under a lock. Allocations for a program are refused: then Swift code or
// `swift_allocObject` calls the runtime's allocator. The callers are looked up only while a lock is held.
//
// Sanitizers have allocators of their own, so there is no check with them.
#define _GNU_SOURCE // dladdr
#include "CTestSupport.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CTS_HAS_SANITIZER 1
#endif
#endif

#if DEBUG && !defined(CTS_HAS_SANITIZER)

#include "CCoroutineRuntime.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static bool is_named(const Dl_info *function, const char *name) {
  return function->dli_sname && strcmp(function->dli_sname, name) == 0;
}

/// Whether a caller is a part of this program, of which the Swift layer is one.
static bool is_own(const Dl_info *caller) {
  Dl_info own;
  return dladdr((void *)is_own, &own) && caller->dli_fbase == own.dli_fbase;
}

/// `frames`: the callers of the C library's allocator, the nearest first.
static bool is_for_program(void *const *frames, int count) {
  Dl_info caller;
  if (count < 1 || !dladdr(frames[0], &caller)) return false;
  if (is_own(&caller)) return true;
  if (!is_named(&caller, "swift_slowAlloc") && !is_named(&caller, "_Znwm")) return false;
  if (count < 2 || !dladdr(frames[1], &caller)) return false;
  bool is_swift = caller.dli_sname && strncmp(caller.dli_sname, "$s", 2) == 0;
  return is_swift || is_own(&caller) || is_named(&caller, "swift_allocObject");
}

static __attribute__((noinline)) void check(void) {
  // Before its constructors have run, the C core has no words for the thread.
  if (cco_facts.words_offset == 0 || cco_layer()->spin_locks == 0 || cco_layer()->lock_exemptions != 0) return;
  uint32_t held = cco_layer()->spin_locks;
  cco_layer()->spin_locks = 0;  // finding the callers may allocate
  void *frames[24];
  int count = backtrace(frames, 24);
  // The first two are this function and the allocator.
  if (is_for_program(frames + 2, count - 2)) {
    backtrace_symbols_fd(frames + 2, count - 2, STDERR_FILENO);
    cco_refuse_locked("spin lock", "an allocation");
  }
  cco_layer()->spin_locks = held;
}

void *malloc(size_t size) {
  check();
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  check();
  return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
  check();
  return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  check();
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  check();
  void *made = __libc_memalign(alignment, size);
  if (!made) return ENOMEM;
  *memory = made;
  return 0;
}

bool cts_checks_allocations(void) { return true; }

#else

bool cts_checks_allocations(void) { return false; }

#endif
