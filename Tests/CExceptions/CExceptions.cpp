#include "CExceptions.h"

#include <exception>
#include <string>

namespace {

// It owns memory, so that a sanitizer reports a use after it has been freed.
struct Numbered {
  int number;
  std::string text;
  explicit Numbered(int number) : number(number), text(100, static_cast<char>('a' + number % 26)) {}
  bool isWhole() const { return text == std::string(100, static_cast<char>('a' + number % 26)); }
};

struct SuspendsAtItsEnd {
  int times;
  cexceptions_suspend suspend;
  void *context;
  int &wrong;
  ~SuspendsAtItsEnd() {
    for (int i = 0; i < times; i++) {
      if (cexceptions_uncaught() != 1) wrong++;
      suspend(context);
      if (cexceptions_uncaught() != 1) wrong++;
    }
  }
};

}  // namespace

// Not inlined, and each calls a function of the runtime: values that a compiler keeps over a suspension are another
// hazard.
__attribute__((noinline)) int cexceptions_uncaught() { return std::uncaught_exceptions(); }
__attribute__((noinline)) bool cexceptions_is_handling() { return std::current_exception() != nullptr; }

int cexceptions_rethrown(int number, int times, cexceptions_suspend suspend, void *context) {
  try {
    try {
      throw Numbered(number);
    } catch (const Numbered &) {
      for (int i = 0; i < times; i++) suspend(context);
      throw;
    }
  } catch (const Numbered &again) {
    return again.isWhole() ? again.number : -1;
  }
}

int cexceptions_nested(int outer, int inner, cexceptions_suspend suspend, void *context) {
  try {
    throw Numbered(outer);
  } catch (const Numbered &first) {
    suspend(context);
    int second = cexceptions_rethrown(inner, 2, suspend, context);
    suspend(context);
    try {
      throw;
    } catch (const Numbered &again) {
      return &again == &first && again.isWhole() ? again.number + second : -1;
    }
  }
}

int cexceptions_miscounted(int times, cexceptions_suspend suspend, void *context) {
  int wrong = cexceptions_uncaught() != 0;
  try {
    SuspendsAtItsEnd guard{times, suspend, context, wrong};
    throw Numbered(1);
  } catch (const Numbered &) {
  }
  return wrong + (cexceptions_uncaught() != 0);
}
