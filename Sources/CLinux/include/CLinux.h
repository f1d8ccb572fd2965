// What Swift cannot say of the kernel: epoll, timer descriptors, signals, thread names, futexes.
#ifndef CLINUX_H
#define CLINUX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Names the calling thread, for debuggers and `top`. The kernel keeps the first 15 bytes.
void clinux_name_thread(const char *name);

/// From now on `signal` makes the answered descriptor, an eventfd, readable until its 8 bytes are read. For one signal
/// of the process; -1 with errno.
int clinux_notice_signal(int signal);

/// Whether the kernel would make a timer's descriptor (timerfd) now.
bool clinux_can_make_timer(void);

/// What a descriptor is watched for, and what happened to it: the kernel's bits. A hang-up and an error concern both
/// directions and need not be asked for.
typedef enum clinux_poll_events : uint32_t {
  CLINUX_POLL_READABLE = 0x1,
  CLINUX_POLL_WRITABLE = 0x4,
  CLINUX_POLL_FAILED = 0x8,
  CLINUX_POLL_HUNG_UP = 0x10,
  CLINUX_POLL_ONCE = 1u << 30,  ///< disarmed by its first event
} clinux_poll_events;

typedef struct clinux_poll_event {
  uint32_t events;
  int32_t descriptor;
} clinux_poll_event;

/// A new epoll descriptor, close-on-exec; -1 with errno.
int clinux_poller(void);

/// Watches `descriptor` for `events` from now on, instead of what it was watched for. Answers 0 or an error number.
int clinux_poller_arm(int poller, int descriptor, uint32_t events);

/// Takes at most `most` events, 128 at once, without waiting. Answers how many; -1 with errno.
int clinux_poller_collect(int poller, clinux_poll_event *events, int most);

/// Sleeps until a wake-up of `word`, unless `word` is not `expected`; at most `nanoseconds`, 0 for no limit. May also
/// return early. Answers false only if the time is over. Keeps errno.
bool clinux_futex_wait(const uint32_t *word, uint32_t expected, uint64_t nanoseconds);

/// Wakes one thread that sleeps on `word`. The memory may be gone already: then nothing happens, or a thread wakes for
/// no reason. Keeps errno.
void clinux_futex_wake(const uint32_t *word);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
