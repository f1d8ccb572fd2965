// A filter of system calls (seccomp), which hands a call to a signal handler in the kernel's place. The handler writes
// the result into the caller's registers. The file that includes this defines _GNU_SOURCE, for their names.
#ifndef CTESTSUPPORT_FILTER_H
#define CTESTSUPPORT_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static inline long argument(const ucontext_t *user, int index) {
#if defined(__x86_64__)
  static const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10};
  return user->uc_mcontext.gregs[registers[index]];
#else
  return (long)user->uc_mcontext.regs[index];
#endif
}

static inline void reply(ucontext_t *user, long result) {
#if defined(__x86_64__)
  user->uc_mcontext.gregs[REG_RAX] = result;
#else
  user->uc_mcontext.regs[0] = (uint64_t)result;
#endif
}

typedef struct filter {
  struct sock_filter steps[64];
  unsigned short count;
} filter;

static inline void add(filter *filter, unsigned short code, uint32_t value, uint8_t if_true, uint8_t if_false) {
  filter->steps[filter->count++] = (struct sock_filter){code, if_true, if_false, value};
}

typedef struct condition {
  uint32_t at;  // in struct seccomp_data
  unsigned short compare;
  bool holds;  // else the comparison must fail
  uint32_t value;
} condition;

enum { NUMBER = offsetof(struct seccomp_data, nr), ARGUMENTS = offsetof(struct seccomp_data, args) };

static inline void add_rule(filter *filter, const condition *all, uint8_t count, uint32_t action) {
  for (uint8_t i = 0; i < count; i++) {
    // Over the two steps of each condition that follows, and over the action.
    uint8_t next_rule = (uint8_t)(2 * (count - 1 - i) + 1);
    add(filter, BPF_LD | BPF_W | BPF_ABS, all[i].at, 0, 0);
    add(filter, BPF_JMP | BPF_K | all[i].compare, all[i].value, all[i].holds ? 0 : next_rule,
        all[i].holds ? next_rule : 0);
  }
  add(filter, BPF_RET | BPF_K, action, 0, 0);
}

static inline condition is_call(uint32_t number) { return (condition){NUMBER, BPF_JEQ, true, number}; }
static inline condition has_argument(uint32_t index, uint32_t value) {
  return (condition){ARGUMENTS + 8 * index, BPF_JEQ, true, value};
}

// Installs the rules for every thread, for ever; what no rule names is allowed. Returns 0 or an error number.
static inline int install(filter *rules, void (*on_call)(int, siginfo_t *, void *)) {
  add(rules, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSYS, &action, NULL) != 0) return errno;
  struct sock_fprog program = {.len = rules->count, .filter = rules->steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  long refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  return refused == 0 ? 0 : refused > 0 ? EBUSY : errno;
}

#endif
