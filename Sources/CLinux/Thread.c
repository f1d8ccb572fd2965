// Names and starts threads, and recognises the first thread. It is C because Swift's module of the C library is built
// without _GNU_SOURCE, which hides pthread_setname_np.
#include "Check.h"
#include "CLinux.h"

#include <locale.h>
#include <pthread.h>
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
  code = pthread_create(&thread, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  return code;
}
