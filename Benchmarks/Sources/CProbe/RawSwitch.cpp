// The floor: Boost's jump between two stacks, without the control block, checks, or thread-local lists of the C core.
#include "CProbe.h"
#include "FloatingPointFlags.h"

#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>

namespace bc = boost::context::detail;

namespace {

constexpr std::size_t stack_bytes = 64 << 10;

// Counts how often it was jumped to. Never returns: behind an entry function lies `_exit`.
void bounce(bc::transfer_t arrival) {
  auto *count = static_cast<uint64_t *>(arrival.data);
  for (;;) {
    ++*count;
    arrival = bc::jump_fcontext(arrival.fctx, nullptr);
  }
}

}  // namespace

uint64_t cprobe_raw_round_trips(uint64_t count, cprobe_flags flags) {
  auto *stack = static_cast<char *>(std::aligned_alloc(4096, stack_bytes));
  if (stack == nullptr || count == 0) return 0;
  uint64_t arrivals = 0;
  cprobe_clear_flags();
  // The first jump parks the other side with clean flags; only then does this side raise one.
  bc::fcontext_t other = bc::make_fcontext(stack + stack_bytes, stack_bytes, bounce);
  other = bc::jump_fcontext(other, &arrivals).fctx;
  if (flags == CPROBE_STICKY) cprobe_raise_inexact();
  // Unrolled, because the processor at hand mispredicts one of the two jumps when the loop is as short as this: 19 ns
  // then instead of 11, and the floor must not be made to look higher than it is.
#pragma clang loop unroll_count(4)
  for (uint64_t i = 1; i < count; i++) other = bc::jump_fcontext(other, nullptr).fctx;
  cprobe_clear_flags();
  std::free(stack);
  return arrivals;
}
