// Children that run a program, started in every way that the C library has for it.
#include "CTestSupport.h"

#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static pid_t fork_and_run(char *const *arguments) {
  pid_t child = fork();
  if (child == 0) {
    execv("/bin/sh", arguments);
    _exit(127);
  }
  return child;
}

// As many libraries do: no signal may reach the child before it has its own handlers.
static pid_t fork_with_all_blocked(char *const *arguments) {
  sigset_t all, former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  pid_t child = fork_and_run(arguments);
  pthread_sigmask(SIG_SETMASK, &former, NULL);
  return child;
}

static pid_t spawn(cts_start_kind kind, char *const *arguments) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  if (kind == CTS_SPAWN_IN_GROUP) {
    sigaddset(&signals, SIGUSR1);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  } else if (kind == CTS_SPAWN_WITH_MASK) {
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGUSR2);
    posix_spawnattr_setsigmask(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  }
  bool is_plain = kind == CTS_SPAWN || kind == CTS_SPAWN_BY_NAME;
  pid_t child = -1;
  int code = kind == CTS_SPAWN_BY_NAME ? posix_spawnp(&child, "sh", NULL, NULL, arguments, environ)
                                       : posix_spawn(&child, "/bin/sh", NULL, is_plain ? NULL : &attributes, arguments,
                                                     environ);
  posix_spawnattr_destroy(&attributes);
  return code == 0 ? child : -1;
}

int cts_start(cts_start_kind kind, const char *command) {
  char *arguments[] = {"sh", "-c", (char *)command, NULL};
  switch (kind) {
    case CTS_FORK: return fork_and_run(arguments);
    case CTS_FORK_WITH_ALL_BLOCKED: return fork_with_all_blocked(arguments);
    default: return spawn(kind, arguments);
  }
}
