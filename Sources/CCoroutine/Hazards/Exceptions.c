// Hazard 15: the C++ runtime keeps the exceptions of a flow of control with the thread: a list of those that are being
// handled (`catch` blocks that have been entered) and a count of those that are being thrown (destructors that run
// while the stack unwinds). A coroutine that suspends there takes both along: see ThreadState.c.
//
// `__cxa_get_globals` returns the address of the two. In libstdc++ and in LLVM's libc++abi they are thread-local
// variables, so their distance from the thread pointer is the same on every thread; start-up checks that on two
// threads. Where it is not, the careful path asks the function at each switch.
#include "Internal.h"

#include <stddef.h>

// Weak: a C++ runtime is linked for Context.cpp's sake, but nothing here should insist on it.
extern cco_exceptions *__cxa_get_globals(void) __attribute__((weak));

static const char *description = "not started";
const char *cco_exceptions_description(void) { return description; }

// Written once by cco_start.
static bool by_function;

// Not inline: the address must not be kept over a switch (hazard 4).
__attribute__((noinline)) cco_exceptions *cco_thread_exceptions(void) {
  if (by_function) return __cxa_get_globals();
  return (cco_exceptions *)(cco_thread_pointer() + cco_facts.exceptions_offset);
}

intptr_t cco_find_exceptions(void) {
  return __cxa_get_globals ? (char *)__cxa_get_globals() - cco_thread_pointer() : 0;
}

bool cco_exceptions_start(intptr_t on_one_thread, intptr_t on_another) {
  if (cco_is_disabled(CCO_MITIGATION_EXCEPTIONS)) {
    description = "off: disabled by a test";
  } else if (!__cxa_get_globals) {
    description = "not needed: this program does not link a C++ runtime";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  } else if (on_one_thread != 0 && on_one_thread == on_another) {
    cco_facts.exceptions_offset = on_one_thread;
    description = "on: the runtime's two words were found, a switch inside of a catch block or a cleanup keeps them";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  } else {
    by_function = true;
    description = "on, slower: the two words have no fixed place, switches call __cxa_get_globals";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  }
  return !by_function;
}
