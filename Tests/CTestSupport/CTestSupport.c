#include "CTestSupport.h"

#include <alloca.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int cts_in_child(unsigned seconds, int (*body)(void *), void *argument) {
  pid_t child = fork();
  if (child < 0) return -1000;
  if (child == 0) {
    // Dispatch's threads block it.
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &alarms, NULL);
    alarm(seconds);
    _exit(body(argument));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

__attribute__((noinline)) void cts_write_below(void *address) {
  size_t distance = (size_t)((char *)__builtin_frame_address(0) - (char *)address);
  // The stack pointer is below `address` from here on, as in any function whose frame is so large.
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
