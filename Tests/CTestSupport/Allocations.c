// Debug builds of the tests: the C library's allocator, with a check in front that the calling thread holds no spin lock
// of the Swift layer. A program's own malloc is used by all of its libraries, Swift's runtime among them.
//
// One kind of allocation is let through: the language runtime makes a type's metadata when the type is first used, and
// without optimisation that may be under a lock. It happens once for each type of the program. Which allocations these
// are is asked of the call stack, and only when a lock is held.
//
// Not with sanitizers, which have allocators of their own.
#define _GNU_SOURCE // dladdr
#include "CTestSupport.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CTS_HAS_SANITIZER 1
#endif
#endif

#if DEBUG && !defined(CTS_HAS_SANITIZER)

#include "CCoroutine.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdbool.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

// Parts of the names of the runtime's functions that make metadata.
static const char *const metadata_makers[] = {"Metadata", "TypeByMangledName", "conformsToProtocol", "Witness"};

static bool makes_metadata(void) {
  void *frames[24];
  int count = backtrace(frames, 24);
  for (int i = 0; i < count; i++) {
    Dl_info info;
    if (!dladdr(frames[i], &info) || !info.dli_sname || strncmp(info.dli_sname, "swift_", 6) != 0) continue;
    for (size_t maker = 0; maker < sizeof metadata_makers / sizeof *metadata_makers; maker++)
      if (strstr(info.dli_sname, metadata_makers[maker])) return true;
  }
  return false;
}

static void check(void) {
  // Before its constructors have run, the C core has no words for the thread.
  if (cco_facts.words_offset == 0 || cco_thread()->spin_locks == 0 || cco_thread()->lock_exemptions != 0) return;
  uint32_t held = cco_thread()->spin_locks;
  cco_thread()->spin_locks = 0;  // what finds the call stack may allocate
  if (!makes_metadata()) cco_refuse_locked("spin lock", "an allocation");
  cco_thread()->spin_locks = held;
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
