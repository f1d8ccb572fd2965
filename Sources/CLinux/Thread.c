// Names and starts threads, and recognises the first thread. It is C because Swift's module of the C library is built
// without _GNU_SOURCE, which hides pthread_setname_np.
#include "Check.h"
#include "CLinux.h"

#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { GUARD = 64 << 10 };

void clinux_name_thread(const char *name) {
  clinux_check();
  // The C library refuses a longer name instead of cutting it.
  char kept[16];
  snprintf(kept, sizeof kept, "%s", name);
  pthread_setname_np(pthread_self(), kept);
}

void clinux_reset_thread(const char *name) {
  clinux_check();
  int unused;
  // A cancelled thread would drop the frames of its next body.
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &unused);
  clinux_block_signals();
  uselocale(LC_GLOBAL_LOCALE);
  clinux_name_thread(name);
}

bool clinux_is_main_thread(void) { return getpid() == gettid(); }

// A new thread inherits the processors and the policy of the one that starts it, which may be any thread of the
// program: one that is pinned, or of real time. It gets those of the main thread in their place, which are those of the
// process.
static void take_from_main_thread(pthread_attr_t *attributes) {
  pid_t main_thread = getpid();
  if (gettid() == main_thread) return;
  cpu_set_t own, all;
  if (sched_getaffinity(0, sizeof own, &own) == 0 && sched_getaffinity(main_thread, sizeof all, &all) == 0
      && !CPU_EQUAL(&own, &all))
    pthread_attr_setaffinity_np(attributes, sizeof all, &all);
  int policy = sched_getscheduler(0);
  if ((policy == SCHED_FIFO || policy == SCHED_RR) && sched_getscheduler(main_thread) == SCHED_OTHER) {
    struct sched_param none = {0};
    pthread_attr_setinheritsched(attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(attributes, SCHED_OTHER);
    pthread_attr_setschedparam(attributes, &none);
  }
}

int clinux_start_thread(size_t stack, clinux_thread_body body, void *argument) {
  pthread_attr_t attributes;
  int code = pthread_attr_init(&attributes);
  if (code != 0) return code;
  pthread_t thread;
  // As wide as the guards of coroutines: frames are not probed page by page, so a large one jumps over a page. The C
  // library takes the guard out of the size.
  pthread_attr_setstacksize(&attributes, stack + GUARD);
  pthread_attr_setguardsize(&attributes, GUARD);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  take_from_main_thread(&attributes);
  code = pthread_create(&thread, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  return code;
}
