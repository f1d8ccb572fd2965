// Forks at the moments at which another thread may fork as well: before and after each change of a signal's effect. The
// kernel's call that makes the change is trapped, so no moment is missed, and nothing depends on speed.
//
//   the library's sigaction --> trapped --> forks, makes the call, forks --> the library goes on
//
// The child restores the effect by the same call, in the handler that the C library runs after a fork. There, and in
// all other code of the child, a trapped call is made without a fork.
#define _GNU_SOURCE  // the names of the registers
#include "CTestSupport.h"
#include "Filter.h"

#include <stdatomic.h>

// An argument that sigaction has not: the filter lets the handler's own call pass.
enum { MY_OWN = 0x5AFE };

static int observed;
// Set by the thread whose call is trapped, before it forks: the child's only thread has it as well.
static _Thread_local bool is_inside;
static _Atomic int children, with_other_effect;

static bool is_ignored(void) {
  struct sigaction now;
  return sigaction(observed, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void fork_once(void) {
  int child = cts_fork(30);
  if (child == 0) _exit(is_ignored() ? 0 : 1);
  if (cts_end_of(child) != 0) atomic_fetch_add(&with_other_effect, 1);
  atomic_fetch_add(&children, 1);
}

static void on_change(int signal, siginfo_t *info, void *interrupted) {
  (void)signal, (void)info;
  int kept = errno;
  ucontext_t *user = interrupted;
  bool forks = !is_inside;
  is_inside = true;
  if (forks) fork_once();
  long arguments[] = {argument(user, 0), argument(user, 1), argument(user, 2), argument(user, 3)};
  long result = syscall(SYS_rt_sigaction, arguments[0], arguments[1], arguments[2], arguments[3], MY_OWN);
  reply(user, result == 0 ? 0 : -errno);
  if (forks) {
    fork_once();
    is_inside = false;
  }
  errno = kept;
}

int cts_fork_at_changes(int signal) {
  observed = signal;
  condition changes = has_argument(1, 0), not_mine = has_argument(4, MY_OWN);
  changes.holds = not_mine.holds = false;
  condition all[] = {is_call(SYS_rt_sigaction), has_argument(0, (uint32_t)signal), changes, not_mine};
  filter rules = {.count = 0};
  add_rule(&rules, all, 4, SECCOMP_RET_TRAP);
  return install(&rules, on_change);
}

int cts_children_at_changes(void) { return atomic_load(&children); }
int cts_children_with_other_effect(void) { return atomic_load(&with_other_effect); }
