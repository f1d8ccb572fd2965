// The floor: Boost's jump between two stacks, without the control block, checks, or thread-local lists of the C core.
#include "CProbe.h"
#include "FloatingPointFlags.h"

#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>

namespace bc = boost::context::detail;

namespace {

constexpr std::size_t stack_bytes = 64 << 10;

// The first word of a saved frame is its MXCSR: a frame in which only flags differ takes over the current ones.
inline void reconcile(bc::fcontext_t frame) {
#if defined(__x86_64__)
  auto *saved = static_cast<uint32_t *>(frame);
  uint32_t current = __builtin_ia32_stmxcsr();
  if (__builtin_expect(current != *saved, 0) && ((current ^ *saved) & ~UINT32_C(0x3F)) == 0) *saved = current;
#else
  (void)frame;
#endif
}

// Counts how often it was jumped to. Never returns: behind an entry function lies `_exit`.
template <bool reconciles>
void bounce(bc::transfer_t arrival) {
  auto *count = static_cast<uint64_t *>(arrival.data);
  for (;;) {
    ++*count;
    if (reconciles) reconcile(arrival.fctx);
    arrival = bc::jump_fcontext(arrival.fctx, nullptr);
  }
}

// Unrolled, because the processor at hand mispredicts one of the two jumps when the loop is as short as this: 19 ns
// then instead of 11, and the floor must not be made to look higher than it is.
template <bool reconciles>
void jump(uint64_t count, bc::fcontext_t other) {
#pragma clang loop unroll_count(4)
  for (uint64_t i = 0; i < count; i++) {
    if (reconciles) reconcile(other);
    other = bc::jump_fcontext(other, nullptr).fctx;
  }
}

}  // namespace

uint64_t cprobe_raw_round_trips(uint64_t count, cprobe_flags flags) {
  auto *stack = static_cast<char *>(std::aligned_alloc(4096, stack_bytes));
  if (stack == nullptr || count == 0) return 0;
  uint64_t arrivals = 0;
  cprobe_clear_flags();
  // The first jump parks the other side with clean flags; only then does this side raise one.
  bool reconciles = flags == CPROBE_RECONCILED && cprobe_reconciles();
  bc::fcontext_t other =
      bc::make_fcontext(stack + stack_bytes, stack_bytes, reconciles ? bounce<true> : bounce<false>);
  other = bc::jump_fcontext(other, &arrivals).fctx;
  if (flags != CPROBE_CLEAN) cprobe_raise_inexact();
  if (reconciles)
    jump<true>(count - 1, other);
  else
    jump<false>(count - 1, other);
  cprobe_clear_flags();
  std::free(stack);
  return arrivals;
}
