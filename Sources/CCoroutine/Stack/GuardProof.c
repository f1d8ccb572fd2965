// Asks the kernel whether a byte can be read, because a fault of our own would need the process's signal handler. The
// question is a futex call that waits for another value than the word has. The kernel reads the word, and returns
// EFAULT if it cannot, and EAGAIN at once if it can. A pipe would need a descriptor, process_vm_readv a permission. A
// filter that refuses futexes would break every wait of the process. Any other result, of a filter or of an emulator,
// proves nothing.
#include "GuardProof.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// A value that no word has, because the memory of a trial is zero. Tests filter futex calls by it.
static const uint32_t IN_NO_WORD = 0x6A7D5EED;

bool cco_trial_begin(cco_guard_trial *trial, size_t count, size_t guard) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), stride = page + guard;
  void *low = mmap(NULL, count * stride + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
  if (low == MAP_FAILED) return false;
  *trial = (cco_guard_trial){low, page, guard, stride, count};
  return true;
}

void cco_trial_end(const cco_guard_trial *trial) {
  munmap(trial->low, trial->count * trial->stride + trial->page);
}

// Updates `verdict` by whether the word at `address` can be read.
static void look(const char *address, bool is_guarded, cco_guard_verdict *verdict) {
  // A timeout, in case the kernel waits although it must not.
  struct timespec at_most = {.tv_nsec = 1000000};
  long result = syscall(SYS_futex, address, FUTEX_WAIT_PRIVATE, IN_NO_WORD, &at_most, NULL, 0);
  bool is_seen = result == -1 && (errno == EFAULT || errno == EAGAIN);
  if (!is_seen)
    *verdict = CCO_GUARD_UNSEEN;
  else if ((errno == EFAULT) != is_guarded && *verdict == CCO_GUARD_HOLDS)
    *verdict = CCO_GUARD_FAILS;
}

cco_guard_verdict cco_trial_verdict(const cco_guard_trial *trial, size_t first, size_t count) {
  enum { WORD = sizeof(uint32_t) };
  cco_guard_verdict verdict = CCO_GUARD_HOLDS;
  for (size_t i = first; i < first + count; i++) {
    const char *guard = cco_trial_guard(trial, i), *end = guard + trial->guard;
    look(guard - WORD, false, &verdict);
    look(guard, true, &verdict);
    look(end - WORD, true, &verdict);
    look(end, false, &verdict);
  }
  return verdict;
}
