// Whether a thread waits for Swift's lock of a lazy initial value: of a `static let`, or of a global.
//
// If the initialiser waits, it leaves the lock to its thread. Another coroutine on that thread then spins in the lock,
// which the kernel refuses to it, and one on another thread sleeps in it.
//
// The function that waits has no public name (swift_once jumps to it). But it calls the initialiser. So an initialiser
// of this file finds it by its own return address.
#include "CCoroutineInspect.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

extern void swift_once(long *token, void (*body)(void *), void *context) __attribute__((weak));
extern void *_Unwind_FindEnclosingFunction(void *address);

static void *_Atomic slow_path;

__attribute__((noinline)) static void find(void *unused) {
  (void)unused;
  char *caller = __builtin_extract_return_addr(__builtin_return_address(0));
  atomic_store_explicit(&slow_path, _Unwind_FindEnclosingFunction(caller - 1), memory_order_relaxed);
}

static const void *image_of(const void *address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

bool cco_waits_for_initial_value(const uintptr_t *frames, size_t count) {
  // Larger than the token of any version of Swift.
  static long token[4];
  if (swift_once == NULL) return false;
  swift_once(token, find, NULL);
  void *slow = atomic_load_explicit(&slow_path, memory_order_relaxed);
  if (slow == NULL) return false;
  const void *c_library = image_of((const void *)&getpid), *swift = image_of(slow);
  for (size_t i = 0; i < count; i++) {
    // A return address may lie behind the end of its function.
    char *address = (char *)frames[i] - (i > 0);
    if (_Unwind_FindEnclosingFunction(address) == slow) return true;
    // Anything else but the call that sleeps is the initialiser, or not about it.
    const void *image = image_of(address);
    if (image == NULL || (image != c_library && image != swift)) return false;
  }
  return false;
}
