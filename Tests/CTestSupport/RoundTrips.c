// Measures a switch there and back, with Boost's instructions but without its or our functions. Built without
// optimisation, those return through frames, and each mispredicted return hides the stall on a changed MXCSR that is
// measured here.
#include "CTestSupport.h"

#if defined(__x86_64__)

#include <stdint.h>
#include <time.h>

// The peer's frame, as Boost's jump leaves it: MXCSR, the x87 control word, six registers, the address to continue at.
typedef struct frame {
  uint32_t mxcsr, x87;
  uint64_t registers[6];
  const void *place;
} frame;

void cts_round_trips(long trips, const frame *peer);
extern const char cts_peer[];
__asm__(
    "cts_round_trips:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n"
    "  movq %rdi, %rbx\n  movq %rsi, %r12\n"
    "1:\n  leaq 2f(%rip), %rax\n  pushq %rax\n"
    "  leaq -0x38(%rsp), %rsp\n  stmxcsr (%rsp)\n  fnstcw 4(%rsp)\n"
    "  movq %rsp, %rax\n  movq %r12, %rsp\n  movq 0x38(%rsp), %r8\n"
    "  ldmxcsr (%rsp)\n  fldcw 4(%rsp)\n  leaq 0x40(%rsp), %rsp\n  jmp *%r8\n"
    "2:\n  movq %rax, %r12\n  decq %rbx\n  jnz 1b\n"
    "  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    "cts_peer:\n"
    "  movq %rax, %r13\n  leaq cts_peer(%rip), %rax\n  pushq %rax\n"
    "  leaq -0x38(%rsp), %rsp\n  stmxcsr (%rsp)\n  fnstcw 4(%rsp)\n"
    "  movq %rsp, %rax\n  movq %r13, %rsp\n  movq 0x38(%rsp), %r8\n"
    "  ldmxcsr (%rsp)\n  fldcw 4(%rsp)\n  leaq 0x40(%rsp), %rsp\n  jmp *%r8\n");

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

double cts_round_trip(int flags_differ) {
  enum { TRIPS = 200000, BATCHES = 10 };
  double best = 1e9;
  for (int batch = 0; batch < BATCHES; batch++) {
    uint64_t stack[64] __attribute__((aligned(64)));
    frame *peer = (frame *)&stack[48];
    double start = now();
    uint32_t mxcsr;
    uint16_t x87;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
    // The clock's arithmetic may have raised "inexact", 0x20.
    mxcsr &= ~UINT32_C(0x3F);
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
    *peer = (frame){.mxcsr = flags_differ ? mxcsr | 0x20 : mxcsr, .x87 = x87, .place = cts_peer};
    cts_round_trips(TRIPS, peer);
    double taken = (now() - start) / TRIPS;
    if (taken < best) best = taken;
  }
  return best;
}

#else

double cts_round_trip(int flags_differ) { return (void)flags_differ, 0; }

#endif
