#define _GNU_SOURCE  // processors and threads

#include "CTestSupport.h"

#include <alloca.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t fork_limited(unsigned seconds, bool keeps_sockets) {
  pid_t child = fork();
  if (child != 0) return child;
  // Dispatch's threads block it.
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  signal(SIGALRM, SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &alarms, NULL);
  alarm(seconds);
  // Copies of sockets: tests that run beside this one wait for their ends.
  for (int number = 3; !keeps_sockets && number < 1024; number++) {
    struct stat status;
    if (fstat(number, &status) == 0 && S_ISSOCK(status.st_mode)) close(number);
  }
  return 0;
}

int cts_fork(unsigned seconds) { return fork_limited(seconds, false); }
int cts_fork_with_sockets(unsigned seconds) { return fork_limited(seconds, true); }

int cts_end_of(int child) {
  if (child < 0) return -1000;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int in_child(unsigned seconds, bool keeps_sockets, int (*body)(void *), void *argument) {
  pid_t child = fork_limited(seconds, keeps_sockets);
  if (child == 0) _exit(body(argument));
  return cts_end_of(child);
}

int cts_in_child(unsigned seconds, int (*body)(void *), void *argument) {
  return in_child(seconds, false, body, argument);
}

int cts_in_child_with_sockets(unsigned seconds, int (*body)(void *), void *argument) {
  return in_child(seconds, true, body, argument);
}

int cts_as_first_process(unsigned seconds, int (*body)(void *), void *argument) {
  // SIGALRM does not end such a process, so the body has to end by itself.
  if (unshare(CLONE_NEWPID) != 0) return -1000;
  return in_child(seconds, false, body, argument);
}

// Whether no other thread runs, as far as one look at each of them tells, and how often they have left a processor.
static bool look_at_threads(unsigned long *switches) {
  *switches = 0;
  DIR *tasks = opendir("/proc/self/task");
  if (!tasks) return true;
  int self = gettid(), awake = 0;
  for (struct dirent *entry; (entry = readdir(tasks));) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == self) continue;
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    FILE *file = fopen(path, "r");
    if (!file) continue;
    while (fgets(line, sizeof line, file)) {
      char state;
      unsigned long count;
      if (sscanf(line, "State: %c", &state) == 1 && (state == 'R' || state == 'D')) awake++;
      if (sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1 ||
          sscanf(line, "nonvoluntary_ctxt_switches: %lu", &count) == 1)
        *switches += count + 1;
    }
    fclose(file);
  }
  closedir(tasks);
  return awake == 0;
}

bool cts_other_threads_sleep(void) {
  unsigned long switches;
  return look_at_threads(&switches);
}

// Looks twice. The threads are looked at one after the other: one that wakes another meanwhile, and sleeps before its
// turn, would be missed, and may have left the other one inside of a lock of Swift's. One that has slept at both looks
// without a switch has slept between them, so at that moment all of them did. The time between is that of a thread
// whose timer is about to end, as a watchdog's that has just seen the last coroutine.
bool cts_may_fork(void) {
  unsigned long first, second;
  if (!look_at_threads(&first)) return false;
  nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
  return look_at_threads(&second) && first == second;
}

static cpu_set_t this_processor(void) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  return one;
}

int cts_use_one_processor(void) {
  cpu_set_t one = this_processor();
  // The library's threads take the main thread's.
  if (sched_setaffinity(getpid(), sizeof one, &one) != 0) return errno;
  return sched_setaffinity(0, sizeof one, &one) == 0 ? 0 : errno;
}

int cts_keep_thread_on_processor(void) {
  cpu_set_t one = this_processor();
  return sched_setaffinity(0, sizeof one, &one) == 0 ? 0 : errno;
}

int cts_run_when_idle(void) {
  struct sched_param priority = {.sched_priority = 0};
  return sched_setscheduler(0, SCHED_IDLE, &priority) == 0 ? 0 : errno;
}

int cts_thread_id(void) { return gettid(); }

int cts_next_descriptor(void) {
  while (!cts_other_threads_sleep()) sched_yield();
  // Of an open file of its own: standard input may be closed.
  int number = epoll_create1(EPOLL_CLOEXEC);
  close(number);
  return number;
}

unsigned long cts_allocated_bytes(const void *object) { return malloc_usable_size((void *)object); }

unsigned long cts_limit_descriptors(unsigned long limit) {
  struct rlimit limits;
  getrlimit(RLIMIT_NOFILE, &limits);
  unsigned long before = limits.rlim_cur;
  limits.rlim_cur = limit < limits.rlim_max ? limit : limits.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limits);
  return before;
}

int cts_refuse_accept(int code) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_accept4, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)code & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  long refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  return refused == 0 ? 0 : refused > 0 ? EBUSY : errno;
}

__attribute__((noinline)) void cts_write_below(void *address) {
  size_t distance = (size_t)((char *)__builtin_frame_address(0) - (char *)address);
  // From here on the stack pointer is below `address`, as in any function with such a large frame.
  volatile char *frame = alloca(distance);
  __asm__ volatile("" : : "r"(frame) : "memory");
  *(volatile char *)address = 1;
}

// Not instrumented: AddressSanitizer would move `kept` to its fake stack.
__attribute__((noinline, no_sanitize("address"))) void cts_hold(void *object, void (*body)(void *), void *argument) {
  void *volatile kept = object;
  body(argument);
  kept = (void *)0;
}

bool cts_has_fine_waits(void) {
  int poller = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event;
  struct timespec time = {.tv_nsec = 1};
  long count = syscall(441, poller, &event, 1, &time, NULL, 0);  // older headers do not name it
  close(poller);
  return count == 0;
}

// The runtime's hooks, which Swift Testing sets.
extern _Atomic(void *) _swift_willThrow, _swift_willThrowTypedImpl;

void cts_note_throws(bool notes) {
  static void *hooks[2];
  if (notes) {
    _swift_willThrow = hooks[0];
    _swift_willThrowTypedImpl = hooks[1];
  } else {
    hooks[0] = atomic_exchange(&_swift_willThrow, NULL);
    hooks[1] = atomic_exchange(&_swift_willThrowTypedImpl, NULL);
  }
}

size_t cts_heap_bytes(void) {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

#if defined(__x86_64__)
__asm__(
    ".text\n.globl cts_without_frame_pointer\n.type cts_without_frame_pointer, @function\n"
    "cts_without_frame_pointer:\n"
    "  pushq %rbp\n  movl $1, %ebp\n  movq %rdi, %rax\n  movq %rsi, %rdi\n  callq *%rax\n  popq %rbp\n  retq\n"
    ".size cts_without_frame_pointer, . - cts_without_frame_pointer\n");
#else
__asm__(
    ".text\n.globl cts_without_frame_pointer\n.type cts_without_frame_pointer, @function\n"
    "cts_without_frame_pointer:\n"
    "  stp x29, x30, [sp, #-16]!\n  mov x29, #1\n  mov x2, x0\n  mov x0, x1\n  blr x2\n"
    "  ldp x29, x30, [sp], #16\n  ret\n"
    ".size cts_without_frame_pointer, . - cts_without_frame_pointer\n");
#endif
