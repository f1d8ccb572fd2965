// Finds the words of other runtimes that belong to a flow of control: those of C++ (Exceptions.c), and those of the
// layer above, if there is one (Layer.h).
//
// Where such words lie is not documented. So two fresh threads look for them: fresh, because nothing that the program
// does is in their words, and two, because a word has a fixed place only if it is equally far from the thread pointer
// of both. Both live at the same time, so that their blocks are different ones.
#include "Internal.h"
#include "Layer.h"

#include <pthread.h>

const cco_flow_hooks *cco_flow_layer;
static bool has_fixed_places;
bool cco_search_wants_careful(void) { return !has_fixed_places; }

typedef struct findings {
  pthread_barrier_t *both_alive;
  int number;
  cco_exception_words exceptions;
} findings;

static void *probe_thread(void *context) {
  findings *mine = context;
  if (cco_flow_layer != NULL) cco_flow_layer->search(mine->number);
  mine->exceptions = cco_find_exceptions();
  pthread_barrier_wait(mine->both_alive);
  return NULL;
}

bool cco_search(cco_core_facts *facts) {
  pthread_barrier_t both_alive;
  pthread_barrier_init(&both_alive, NULL, 2);
  findings a = {.both_alive = &both_alive, .number = 0}, b = {.both_alive = &both_alive, .number = 1};
  pthread_t first, second;
  bool has_first = pthread_create(&first, NULL, probe_thread, &a) == 0;
  bool has_both = has_first && pthread_create(&second, NULL, probe_thread, &b) == 0;
  if (has_first && !has_both) pthread_barrier_wait(&both_alive);
  if (has_first) pthread_join(first, NULL);
  if (has_both) pthread_join(second, NULL);
  pthread_barrier_destroy(&both_alive);
  if (!has_both) return false;
  has_fixed_places = cco_flow_layer == NULL || cco_flow_layer->decide(facts);
  if (!cco_exceptions_start(a.exceptions, b.exceptions)) has_fixed_places = false;
  return true;
}

void cco_exchange(cco_saved_context *from, cco_saved_context *to) {
  if (cco_flow_layer != NULL && cco_flow_layer->exchange != NULL) return cco_flow_layer->exchange(from, to);
  char *thread = cco_thread_pointer();
  for (int i = 0; i < 2; i++) {
    void **word = (void **)(thread + cco_facts.exchanged_offset[i]);
    from->exchanged[i] = *word;
    *word = to->exchanged[i];
  }
}
