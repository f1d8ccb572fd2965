// Hazard 15: the C++ runtime keeps the exceptions of a flow of control with the thread: a list of those that are being
// handled (`catch` blocks that have been entered) and a count of those that are being thrown (destructors that run
// while the stack unwinds). A coroutine that suspends there takes both along: see ThreadState.c.
//
// `__cxa_get_globals` returns the address of the two. In libstdc++ and in LLVM's libc++abi they are thread-local
// variables, so their distance from the thread pointer is the same on every thread; start-up checks that on two
// threads. Where it is not, the careful path asks the function at each switch. Each of the two threads also throws an
// exception, and looks whether the two words are what the runtime goes by (ExceptionsProof.cpp).
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

cco_exception_words cco_find_exceptions(void) {
  if (!__cxa_get_globals) return (cco_exception_words){0, false};
  cco_exceptions *words = __cxa_get_globals();
  return (cco_exception_words){(char *)words - cco_thread_pointer(), cco_prove_exceptions(words)};
}

static bool are_elsewhere(cco_exception_words words) { return words.offset != 0 && !words.hold; }

bool cco_exceptions_start(cco_exception_words on_one_thread, cco_exception_words on_another) {
  if (cco_is_disabled(CCO_MITIGATION_EXCEPTIONS)) {
    description = "off: disabled by a test";
  } else if (!__cxa_get_globals) {
    description = "not needed: this program does not link a C++ runtime";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  } else if (are_elsewhere(on_one_thread) || are_elsewhere(on_another)) {
    description = "off: the C++ runtime keeps its exceptions elsewhere; do not wait inside of a catch block, or of a "
                  "destructor while the stack unwinds";
  } else if (on_one_thread.offset != 0 && on_one_thread.offset == on_another.offset) {
    cco_facts.exceptions_offset = on_one_thread.offset;
    description = "on: the runtime's two words were found, a switch inside of a catch block or a cleanup keeps them";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  } else {
    by_function = true;
    description = "on, slower: the two words have no fixed place, switches call __cxa_get_globals";
    cco_mark_active(CCO_MITIGATION_EXCEPTIONS, true);
  }
  return !by_function;
}
