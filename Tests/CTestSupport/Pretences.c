// Pretends to be a kernel that answers calls without doing them, or does something else.
#define _GNU_SOURCE  // the names of the registers
#include "CTestSupport.h"
#include "Filter.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

// Older headers do not name all of these.
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, EPOLL_PWAIT2 = 441, PROCESS_MADVISE = 440 };
// An argument that madvise has not: the filter lets the handler's own call pass.
enum { MY_OWN = 0x5AFE };
// The number by which GuardProof.c asks whether a byte can be read.
enum { IN_NO_WORD = 0x6A7D5EED };

static void on_call(int signal, siginfo_t *info, void *interrupted) {
  (void)signal;
  int kept = errno;
  ucontext_t *user = interrupted;
  long result = 0;
  if (info->si_syscall == PROCESS_MADVISE) {
    const struct iovec *pieces = (const struct iovec *)argument(user, 1);
    for (long i = 0; i < argument(user, 2); i++) result += (long)pieces[i].iov_len;
  } else if (info->si_syscall == SYS_mincore) {
    memset((void *)argument(user, 2), 1, (size_t)argument(user, 1) / (size_t)sysconf(_SC_PAGESIZE));
  } else if (info->si_syscall == SYS_madvise && argument(user, 2) == MADV_DONTNEED) {
    syscall(SYS_madvise, argument(user, 0), argument(user, 1), MADV_DONTNEED, MY_OWN);
    syscall(SYS_madvise, argument(user, 0), argument(user, 1), GUARD_REMOVE, MY_OWN);
  }
  reply(user, result);
  errno = kept;
}

// A call of madvise that the handler does not make. A thread that ends returns its stack, which is larger than a MiB,
// while it blocks all signals, so no handler could run for that call.
static void add_madvise(filter *filter, uint32_t advice) {
  condition not_mine = has_argument(3, MY_OWN);
  not_mine.holds = false;
  condition all[] = {is_call(SYS_madvise), has_argument(2, advice), not_mine, {ARGUMENTS + 8, BPF_JGT, false, 1 << 20}};
  add_rule(filter, all, 4, SECCOMP_RET_TRAP);
}

static void add_call(filter *filter, uint32_t number, uint32_t index, uint32_t value, uint32_t action) {
  condition all[] = {is_call(number), has_argument(index, value)};
  add_rule(filter, all, 2, action);
}

int cts_pretend(unsigned pretences) {
  filter rules = {.count = 0};
  if (pretences & CTS_SINGLE_MARKERS_DO_NOTHING) add_madvise(&rules, GUARD_INSTALL);
  if (pretences & CTS_TRIMS_REMOVE_MARKERS) add_madvise(&rules, MADV_DONTNEED);
  if (pretences & CTS_BATCHES_DO_NOTHING) add_call(&rules, PROCESS_MADVISE, 3, GUARD_INSTALL, SECCOMP_RET_TRAP);
  if (pretences & CTS_MPROTECT_DOES_NOTHING) add_call(&rules, SYS_mprotect, 2, PROT_NONE, SECCOMP_RET_TRAP);
  if (pretences & CTS_PROOF_IS_REFUSED) add_call(&rules, SYS_futex, 2, IN_NO_WORD, SECCOMP_RET_ERRNO | EPERM);
  if (pretences & CTS_FAULT_HANDLERS_ARE_IGNORED) add_call(&rules, SYS_rt_sigaction, 0, SIGSEGV, SECCOMP_RET_ERRNO | 0);
  if (pretences & CTS_FINE_WAITS_END_AT_ONCE) {
    condition all[] = {is_call(EPOLL_PWAIT2)};
    add_rule(&rules, all, 1, SECCOMP_RET_ERRNO | 0);
  }
  if (pretences & CTS_ALL_PAGES_ARE_THERE) {
    condition all[] = {is_call(SYS_mincore)};
    add_rule(&rules, all, 1, SECCOMP_RET_TRAP);
  }
  return install(&rules, on_call);
}

bool cts_is_readable(const void *address) {
  int ends[2];
  if (pipe(ends) != 0) return true;
  ssize_t count = write(ends[1], address, 1);
  close(ends[0]);
  close(ends[1]);
  return count == 1;
}
