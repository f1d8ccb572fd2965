// Hazard 15: the C++ runtime stores the exceptions of a flow of control in two words of the thread: the list of those
// that are being handled (in a `catch` block), and the count of those that are being thrown (in a destructor while the
// stack unwinds). A coroutine that suspends there saves both (ThreadState.c).
//
// `__cxa_get_globals` returns the address of the two words. In libstdc++ and in LLVM's libc++abi they are thread-local
// variables, so their distance from the thread pointer is the same on every thread. Start-up checks that on two
// threads. If it differs, the careful path calls the function at each switch. Each of the two threads also throws an
// exception, and checks that the runtime uses these words (ExceptionsProof.cpp).
#include "Internal.h"

#include <stddef.h>

// Weak: a C++ runtime is linked because of Context.cpp, but this file works without one.
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
