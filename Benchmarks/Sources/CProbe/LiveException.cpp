// A catch block: while it runs, the C++ runtime keeps the exception with the thread, and a switch has to take it along.
#include "CProbe.h"

namespace {

struct live {
  uint64_t number;
};

}  // namespace

uint64_t cprobe_while_handling(uint64_t (*body)(void *argument), void *argument) {
  try {
    throw live{1};
  } catch (const live &caught) {
    return body(argument) * caught.number;
  }
}
