// The proof for Exceptions.c: checks that the C++ runtime of this program uses the two words. It is C++ because C
// cannot throw.
#include "Internal.h"

#include <exception>

#if __cpp_exceptions

namespace {

// Its destructor runs while the stack unwinds: one exception is being thrown, and none once the word is zero.
struct Unwinding {
  cco_exceptions *words;
  bool *holds;
  ~Unwinding() {
    *holds = words->uncaught == 1 && std::uncaught_exceptions() == 1;
    words->uncaught = 0;
    *holds = *holds && std::uncaught_exceptions() == 0;
    words->uncaught = 1;
  }
};

}  // namespace

extern "C" bool cco_prove_exceptions(cco_exceptions *words) {
  if (words->caught != nullptr || words->uncaught != 0) return false;
  bool holds = false;
  try {
    Unwinding unwinding{words, &holds};
    throw 0;
  } catch (int) {
    // One exception is being handled, and none while the word is nil.
    void *kept = words->caught;
    holds = holds && kept != nullptr && words->uncaught == 0 && std::current_exception() != nullptr;
    words->caught = nullptr;
    holds = holds && std::current_exception() == nullptr;
    words->caught = kept;
    holds = holds && std::current_exception() != nullptr;
  }
  return holds && words->caught == nullptr && words->uncaught == 0;
}

#else

// Without exceptions the program has no catch blocks.
extern "C" bool cco_prove_exceptions(cco_exceptions *words) { return words != nullptr; }

#endif
