// A thread's name. Here because Swift's C library module is made without _GNU_SOURCE, which hides pthread_setname_np.
#include "Check.h"
#include "CLinux.h"

#include <pthread.h>
#include <stdio.h>

void clinux_name_thread(const char *name) {
  clinux_check();
  // A longer name would be refused instead of cut.
  char kept[16];
  snprintf(kept, sizeof kept, "%s", name);
  pthread_setname_np(pthread_self(), kept);
}
