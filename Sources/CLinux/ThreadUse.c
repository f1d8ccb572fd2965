// What another thread of this process does: its processor time, and the system call in which it sleeps. Used by the
// report of stalls.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clinux_thread_id(void) { return gettid(); }

int64_t clinux_thread_time(int thread) {
  clinux_check();
  // The clock that pthread_getcpuclockid would return. That function reads the number through a pthread_t, which is
  // invalid after the thread's end. The kernel refuses a number that no thread has.
  clockid_t clock = (clockid_t)(~(unsigned)thread << 3 | 6);
  struct timespec time;
  int kept = errno;
  int64_t result = clock_gettime(clock, &time) == 0 ? (int64_t)time.tv_sec * 1000000000 + time.tv_nsec : -1;
  errno = kept;
  return result;
}

// Reads the beginning of a file about a thread as a string; returns whether there is one.
static bool read_about(const char *tasks, int thread, const char *name, char *text, size_t size) {
  char path[256];
  int length = snprintf(path, sizeof path, "%s/%d/%s", tasks, thread, name);
  if (length < 0 || length >= (int)sizeof path) return false;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t count = read(file, text, size - 1);
  close(file);
  if (count <= 0) return false;
  text[count] = '\0';
  return true;
}

static long call_of(const char *tasks, int thread) {
  char text[512];
  // "0 0x3 0x7f…" begins with the number of the call. "-1 …" means asleep elsewhere in the kernel, for example for a
  // page. The third form is "running".
  if (read_about(tasks, thread, "syscall", text, sizeof text)) {
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text) return CLINUX_THREAD_RUNS;
    return number >= 0 ? number : CLINUX_THREAD_SLEEPS;
  }
  // The kernel or a sandbox lacks that file, or it belongs to root because the process has given up privileges.
  // "12 (name) S …" has the state behind the name, which may contain any character.
  if (!read_about(tasks, thread, "stat", text, sizeof text)) return CLINUX_THREAD_UNKNOWN;
  char *state = strrchr(text, ')');
  if (!state || state[1] != ' ') return CLINUX_THREAD_UNKNOWN;
  if (state[2] != 'S' && state[2] != 'D') return CLINUX_THREAD_RUNS;
  // The file contains the function of the kernel in which the thread sleeps.
  if (read_about(tasks, thread, "wchan", text, sizeof text) && strstr(text, "futex")) return SYS_futex;
  return CLINUX_THREAD_SLEEPS;
}

long clinux_thread_call(const char *tasks, int thread) {
  clinux_check();
  int kept = errno;
  long call = call_of(tasks, thread);
  errno = kept;
  return call;
}

// Whether the call that is shown in this form goes on after a signal with SA_RESTART as if there had been none.
static bool call_restarts(const char *text) {
  char *rest;
  long number = strtol(text, &rest, 10);
  unsigned long arguments[4];
  for (int i = 0; i < 4; i++) arguments[i] = strtoul(rest, &rest, 16);
  struct stat file;
  switch (number) {
  // With a limit of time it ends with EINTR, or begins the time anew (signal(7)).
  case SYS_futex: return arguments[3] == 0;
  // So does the read of a socket with SO_RCVTIMEO.
  case SYS_read:
  case SYS_readv: return fstat((int)arguments[0], &file) == 0 && !S_ISSOCK(file.st_mode);
  // A write to a pipe or a socket returns what was written before the signal.
  case SYS_write:
  case SYS_writev: return fstat((int)arguments[0], &file) == 0 && S_ISREG(file.st_mode);
  case SYS_flock:
  case SYS_wait4:
  case SYS_waitid:
  case SYS_openat:
  case SYS_fsync:
  case SYS_fdatasync: return true;
  default: return false;
  }
}

bool clinux_tolerates_signals(int thread) {
  clinux_check();
  int kept = errno;
  char text[512];
  bool result = false;
  if (read_about("/proc/self/task", thread, "syscall", text, sizeof text))
    result = strncmp(text, "running", 7) == 0 || call_restarts(text);
  else if (read_about("/proc/self/task", thread, "stat", text, sizeof text)) {
    char *state = strrchr(text, ')');
    result = state && state[1] == ' ' && state[2] == 'R';
  }
  errno = kept;
  return result;
}

// The calls that can sleep, as far as the architecture has them.
const char *clinux_call_name(long number) {
  switch (number) {
#define CALL(name) \
  case SYS_##name: return #name;
    CALL(read) CALL(write) CALL(readv) CALL(writev) CALL(pread64) CALL(pwrite64) CALL(preadv) CALL(pwritev)
    CALL(preadv2) CALL(pwritev2) CALL(futex) CALL(nanosleep) CALL(clock_nanosleep) CALL(restart_syscall)
    CALL(ppoll) CALL(pselect6) CALL(epoll_pwait) CALL(accept) CALL(accept4) CALL(connect) CALL(recvfrom) CALL(recvmsg)
    CALL(recvmmsg) CALL(sendto) CALL(sendmsg) CALL(sendmmsg) CALL(shutdown) CALL(sendfile) CALL(splice) CALL(tee)
    CALL(vmsplice) CALL(copy_file_range) CALL(fsync) CALL(fdatasync) CALL(sync) CALL(syncfs) CALL(sync_file_range)
    CALL(msync) CALL(openat) CALL(close) CALL(newfstatat) CALL(fstat) CALL(statx) CALL(statfs) CALL(getdents64)
    CALL(flock) CALL(fcntl) CALL(ioctl) CALL(wait4) CALL(waitid) CALL(rt_sigtimedwait) CALL(rt_sigsuspend)
    CALL(semop) CALL(semtimedop) CALL(msgrcv) CALL(msgsnd) CALL(mq_timedreceive) CALL(mq_timedsend) CALL(io_getevents)
    CALL(io_uring_enter) CALL(mmap) CALL(munmap) CALL(mremap) CALL(mprotect) CALL(madvise) CALL(fallocate)
    CALL(ftruncate) CALL(truncate) CALL(renameat2) CALL(unlinkat) CALL(mkdirat) CALL(linkat) CALL(symlinkat)
    CALL(faccessat) CALL(readlinkat) CALL(execve) CALL(clone) CALL(exit_group) CALL(getrandom) CALL(membarrier)
#ifdef SYS_futex_waitv
    CALL(futex_waitv)
#endif
#ifdef SYS_futex_wait
    CALL(futex_wait)
#endif
#ifdef SYS_epoll_pwait2
    CALL(epoll_pwait2)
#endif
#ifdef SYS_openat2
    CALL(openat2)
#endif
#ifdef SYS_faccessat2
    CALL(faccessat2)
#endif
#ifdef SYS_clone3
    CALL(clone3)
#endif
#ifdef SYS_poll  // the older calls of x86-64
    CALL(poll) CALL(select) CALL(epoll_wait) CALL(open) CALL(stat) CALL(lstat) CALL(pause) CALL(vfork) CALL(rename)
    CALL(unlink) CALL(mkdir) CALL(rmdir) CALL(access) CALL(readlink)
#endif
#undef CALL
    default: return NULL;
  }
}
