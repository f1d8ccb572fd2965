// Names and starts threads, and recognises the first thread. It is C because Swift's module of the C library is built
// without _GNU_SOURCE, which hides pthread_setname_np.
#include "Check.h"
#include "CLinux.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

void clinux_name_thread(const char *name) {
  clinux_check();
  // The C library refuses a longer name instead of cutting it.
  char kept[16];
  snprintf(kept, sizeof kept, "%s", name);
  pthread_setname_np(pthread_self(), kept);
}

bool clinux_is_main_thread(void) { return getpid() == gettid(); }

int clinux_start_thread(size_t stack, clinux_thread_body body, void *argument) {
  pthread_attr_t attributes;
  int code = pthread_attr_init(&attributes);
  if (code != 0) return code;
  pthread_t thread;
  pthread_attr_setstacksize(&attributes, stack);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  code = pthread_create(&thread, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  return code;
}
