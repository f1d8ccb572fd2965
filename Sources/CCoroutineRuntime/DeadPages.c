// The dead pages of a parked coroutine: the part of its stack below the saved stack pointer. A coroutine that went deep
// once would keep that memory for as long as it waits.
//
//   low                          saved stack pointer                         control block
//    |  dead: whole pages  |  rest  |  saved registers  |  frames, first one last  |
//    '--- goes back -------'  '------------------ stays --------------------------'
//
// Invariants
//  1. The caller holds the coroutine: it is parked, and no thread resumes it before the call has returned. The caller
//     has acquired what it did before it left its stack.
//  2. Only whole pages below a saved stack pointer go back, of the stack that the pointer is on, and none below `low`.
//     So the guard stays, and neighbours are not touched.
//
// Why no live byte is lost
//  - Frames. A stack grows down. The switch saves the registers below the last frame, and takes the stack pointer after
//    that. Everything that the coroutine reads after its resume, before it writes it, lies at or above that pointer.
//  - The red zone, 128 bytes below the stack pointer of a function on x86-64. The switch steps over it before it saves
//    anything (cco_jump_unpredicted). On aarch64 Linux there is none.
//  - Signal handlers run on the stack of the thread that gets the signal: its own, the alternate one, or that of the
//    coroutine that it runs. No thread runs on the stack of a held coroutine, and `parked.stack` is set only by the
//    next flow, after the thread has left.
//  - Memory that others use while a coroutine waits (waiters, values that are delivered, buffers of system calls and of
//    other threads) lies in frames.
//  - A coroutine that waits inside of a generator's body, or of a body on a second stack, has several stacks. The saved
//    pointer is on the last of them. Each of the others is parked as well, in the `caller` of the next, and stays so
//    until the coroutine continues.
//  - Sanitizers keep records, fake stacks and shadow memory of a stack, and Valgrind its own view of it. With them
//    nothing goes back.
//
// Whether the pages have memory is not asked before: mincore takes four times as long as the advice to drop nothing.
//
// Nothing depends on the zeros that the pages read as. So a kernel or an emulator that ignores the advice does no harm,
// and one that refuses it (memory that is locked) is not asked again for this wait.
#include "CCoroutineRuntime.h"
#include "Internal.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// SELF: see the core's Guard.c. AT_ONCE: the most stacks of one call.
enum { SELF = -10001, AT_ONCE = 16 };

// Whether the kernel takes several ranges in one call: Linux 6.13.
static atomic_bool takes_one_range;

// The part below `stack` of the stack that `stack` is on: whole pages, or nothing.
static struct iovec dead_pages(const cco_context *on, uintptr_t stack, size_t page) {
  uintptr_t low = (uintptr_t)on->low, end = stack / page * page;
  return stack < (uintptr_t)on && end > low ? (struct iovec){on->low, end - low} : (struct iovec){NULL, 0};
}

static const cco_context *context_of(uintptr_t stack, const cco_context *likely) {
  bool is_there = stack >= (uintptr_t)likely->low && stack < (uintptr_t)likely;
  return is_there ? likely : cco_context_at((const void *)stack, NULL);
}

static void give_back(const struct iovec *ranges, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += ranges[i].iov_len;
  if (count > 1 && !atomic_load_explicit(&takes_one_range, memory_order_relaxed)) {
    if (syscall(SYS_process_madvise, SELF, ranges, count, MADV_DONTNEED, 0U) == (long)bytes) return;
    // Refused as a whole, or at one of the ranges. A range that is advised twice is only slower.
    atomic_store_explicit(&takes_one_range, true, memory_order_relaxed);
  }
  for (size_t i = 0; i < count; i++) (void)madvise(ranges[i].iov_base, ranges[i].iov_len, MADV_DONTNEED);
}

size_t cco_drop_dead_pages(const cco_context *const *held, size_t count) {
  if ((cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER | CCO_THREAD_SANITIZER)) != 0 || cco_sanitizer_watches)
    return 0;
  size_t page = (size_t)sysconf(_SC_PAGESIZE), dropped = 0;
  struct iovec ranges[AT_ONCE];
  size_t full = 0;
  for (size_t i = 0; i < count; i++) {
    const cco_saved_context *parked = &held[i]->parked;
    while (parked != NULL) {
      uintptr_t stack = (uintptr_t)__atomic_load_n(&parked->stack, __ATOMIC_ACQUIRE);
      const cco_context *on = context_of(stack, held[i]);
      if (on == NULL) break;
      struct iovec pages = dead_pages(on, stack, page);
      if (pages.iov_len > 0) {
        ranges[full++] = pages;
        dropped++;
      }
      if (full == AT_ONCE) {
        give_back(ranges, full);
        full = 0;
      }
      parked = on == held[i] ? NULL : on->caller;
    }
  }
  give_back(ranges, full);
  return dropped;
}
