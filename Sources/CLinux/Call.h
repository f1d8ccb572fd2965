// System calls without the C library's wrapper. The wrappers of calls at which a thread can be cancelled keep a state
// in the frame pointer's register while the call runs. A profiler that walks by frame pointers then sees one frame, in
// the C library: three of four samples of a server that sends and receives. Coroutines cannot be cancelled by
// pthread_cancel, so nothing is lost.
//
// Sanitizers learn from the wrappers which memory a call writes, and that a receive comes after a send. So they get
// them.
#ifndef CLINUX_CALL_H
#define CLINUX_CALL_H

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CLINUX_WRAPPERS
#endif
#endif
#if !defined(__x86_64__) && !defined(__aarch64__)
#define CLINUX_WRAPPERS
#endif

// Returns the result of the kernel: a negative error number if it refuses.
#if defined(CLINUX_WRAPPERS)
#include <unistd.h>
static inline int64_t clinux_call(long number, long a, long b, long c, long d, long e, long f) {
  ssize_t result = -ENOSYS;
  switch (number) {
    case SYS_recvfrom:
      result = recvfrom((int)a, (void *)b, (size_t)c, (int)d, (struct sockaddr *)e, (socklen_t *)f);
      break;
    case SYS_sendto:
      result = sendto((int)a, (const void *)b, (size_t)c, (int)d, (const struct sockaddr *)e, (socklen_t)f);
      break;
    case SYS_sendmsg: result = sendmsg((int)a, (const struct msghdr *)b, (int)c); break;
    case SYS_accept4: result = accept4((int)a, (struct sockaddr *)b, (socklen_t *)c, (int)d); break;
  }
  return result < 0 ? -errno : result;
}
#elif defined(__x86_64__)
static inline int64_t clinux_call(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#else
static inline int64_t clinux_call(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
  return x0;
}
#endif

#endif
