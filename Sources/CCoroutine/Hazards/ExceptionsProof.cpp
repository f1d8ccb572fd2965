// The proof for Exceptions.c: whether the two words are what the C++ runtime of this program goes by. C++, because only
// a compiler can throw.
#include "Internal.h"

#include <exception>

#if __cpp_exceptions

namespace {

// A destructor that runs while the stack unwinds: one exception is being thrown, and none where the word says so.
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
    // One exception is being handled, and none where the word says so.
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

// Compiled without exceptions, as all C++ of the program then is: there are no catch blocks.
extern "C" bool cco_prove_exceptions(cco_exceptions *words) { return words != nullptr; }

#endif
