// The floor under a generator around a visitor: the walk on a stack of its own, Boost's jump to the consumer and back
// for every element, and nothing else.
#include "CProbe.h"

#include <CCoroutine.h>
#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>

namespace bc = boost::context::detail;

namespace {

constexpr std::size_t stack_bytes = 512 << 10;

struct walk {
  void (*body)(void *argument);
  void *argument;
};

void *consumer;
char end;

void run(bc::transfer_t arrival) {
  consumer = arrival.fctx;
  auto *walk = static_cast<struct walk *>(arrival.data);
  walk->body(walk->argument);
  bc::jump_fcontext(consumer, &end);
}

}  // namespace

// As the library jumps: by a jump, not by a call that no return would match.
void cprobe_give(int64_t number) { consumer = cco_jump_unpredicted(consumer, &number).stack; }

int64_t cprobe_raw_walk(void (*body)(void *argument), void *argument) {
  auto *stack = static_cast<char *>(std::aligned_alloc(4096, stack_bytes));
  if (stack == nullptr) return -1;
  struct walk walk = {body, argument};
  int64_t sum = 0;
  bc::transfer_t arrival = bc::jump_fcontext(bc::make_fcontext(stack + stack_bytes, stack_bytes, run), &walk);
  cco_transfer answer = {arrival.fctx, arrival.data};
  while (answer.data != &end) {
    sum += *static_cast<int64_t *>(answer.data);
    answer = cco_jump_unpredicted(answer.stack, nullptr);
  }
  std::free(stack);
  return sum;
}
