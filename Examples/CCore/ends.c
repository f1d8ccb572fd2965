// Two programs that end: `ends overflow` uses up a context's stack, `ends thread` ends its thread in the middle of a
// body. Without a layer above it the core itself says so, in one line. scripts/embedder runs both.
#include "CCoroutine.h"

#include <pthread.h>
#include <string.h>

// Never true, which the compiler does not know.
static volatile int deepest = -1;

static int recurse(int depth) {
  volatile char frame[1024];
  memset((void *)frame, depth, sizeof frame);
  return depth == deepest ? 0 : recurse(depth + 1) + frame[depth & 1023];
}

static cco_saved_context *overflow(cco_context *context, void *argument) {
  (void)context, (void)argument;
  return recurse(0) == 1 ? NULL : &context->parked;
}

static cco_saved_context *end_thread(cco_context *context, void *argument) {
  (void)context, (void)argument;
  pthread_exit(NULL);
}

int main(int count, char **words) {
  if (count < 2) return 0;
  cco_guard_thread();
  cco_context *context = NULL;
  void *answer = NULL;
  cco_entry body = strcmp(words[1], "overflow") == 0 ? overflow : end_thread;
  if (cco_create(64 << 10, body, NULL, &context) != CCO_OK) return 0;
  (void)cco_resume(context, NULL, &answer);
  return 0;
}
