// A kernel that answers calls and does nothing, or something else: a filter of system calls (seccomp) hands the call to
// a signal handler, which writes the answer into the caller's registers.
#define _GNU_SOURCE  // the names of the registers
#include "CTestSupport.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

// Older headers do not name all of these.
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, EPOLL_PWAIT2 = 441, PROCESS_MADVISE = 440 };
// An argument that madvise has not: the filter lets the handler's own call pass.
enum { MY_OWN = 0x5AFE };
// GuardProof.c asks with this number whether a byte can be read.
enum { IN_NO_WORD = 0x6A7D5EED };

static long argument(const ucontext_t *user, int index) {
#if defined(__x86_64__)
  static const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10};
  return user->uc_mcontext.gregs[registers[index]];
#else
  return (long)user->uc_mcontext.regs[index];
#endif
}

static void reply(ucontext_t *user, long result) {
#if defined(__x86_64__)
  user->uc_mcontext.gregs[REG_RAX] = result;
#else
  user->uc_mcontext.regs[0] = (uint64_t)result;
#endif
}

static void on_call(int signal, siginfo_t *info, void *interrupted) {
  (void)signal;
  int kept = errno;
  ucontext_t *user = interrupted;
  long result = 0;
  if (info->si_syscall == PROCESS_MADVISE) {
    const struct iovec *pieces = (const struct iovec *)argument(user, 1);
    for (long i = 0; i < argument(user, 2); i++) result += (long)pieces[i].iov_len;
  } else if (info->si_syscall == SYS_madvise && argument(user, 2) == MADV_DONTNEED) {
    syscall(SYS_madvise, argument(user, 0), argument(user, 1), MADV_DONTNEED, MY_OWN);
    syscall(SYS_madvise, argument(user, 0), argument(user, 1), GUARD_REMOVE, MY_OWN);
  }
  reply(user, result);
  errno = kept;
}

typedef struct filter {
  struct sock_filter steps[64];
  unsigned short count;
} filter;

static void add(filter *filter, unsigned short code, uint32_t value, uint8_t if_true, uint8_t if_false) {
  filter->steps[filter->count++] = (struct sock_filter){code, if_true, if_false, value};
}

typedef struct condition {
  uint32_t at;  // in struct seccomp_data
  unsigned short compare;
  bool holds;  // else the comparison must fail
  uint32_t value;
} condition;

enum { NUMBER = offsetof(struct seccomp_data, nr), ARGUMENTS = offsetof(struct seccomp_data, args) };

static void add_rule(filter *filter, const condition *all, uint8_t count, uint32_t action) {
  for (uint8_t i = 0; i < count; i++) {
    // Over the two steps of each condition that follows, and over the action.
    uint8_t next_rule = (uint8_t)(2 * (count - 1 - i) + 1);
    add(filter, BPF_LD | BPF_W | BPF_ABS, all[i].at, 0, 0);
    add(filter, BPF_JMP | BPF_K | all[i].compare, all[i].value, all[i].holds ? 0 : next_rule,
        all[i].holds ? next_rule : 0);
  }
  add(filter, BPF_RET | BPF_K, action, 0, 0);
}

static condition is_call(uint32_t number) { return (condition){NUMBER, BPF_JEQ, true, number}; }
static condition has_argument(uint32_t index, uint32_t value) {
  return (condition){ARGUMENTS + 8 * index, BPF_JEQ, true, value};
}

// A call of madvise that does not come from the handler. A thread that ends gives its stack back while it blocks all
// signals, so no handler could run for it: that is more than a MiB.
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
  add(&rules, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);

  struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSYS, &action, NULL) != 0) return errno;
  struct sock_fprog program = {.len = rules.count, .filter = rules.steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  long refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  return refused == 0 ? 0 : refused > 0 ? EBUSY : errno;
}

bool cts_is_readable(const void *address) {
  int ends[2];
  if (pipe(ends) != 0) return true;
  ssize_t count = write(ends[1], address, 1);
  close(ends[0]);
  close(ends[1]);
  return count == 1;
}
