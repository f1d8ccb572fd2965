// The thread-local state of other runtimes that belongs to the running flow of control, and that few flows have: two
// words of the layer's (for Swift the current Task and its executors, hazard 14), and the exceptions of C++ that are
// being thrown or handled (hazard 15).
//
// A flow that is switched out with such state saves it in its own frame, and restores it when it is resumed
// (cco_switch_carefully). Invariant: at every jump all of these words are nil. So every flow continues on a clean
// thread, as a new coroutine expects. Nothing is exchanged, a saved context has no fields for it, and a flow without
// such state, which is nearly every one, pays for one test (cco_switch).
//
// Why nil means "no state": the second of the layer's words is set exactly while the flow has such state, and the first
// one only then. Caught exceptions are a list; exceptions that are being thrown are a count.
#include "Internal.h"
#include "Layer.h"

// Neither is inlined: the thread may change between them, so each must read the thread pointer anew (hazard 4).

__attribute__((noinline)) bool cco_take_thread_state(cco_thread_state *state) {
  char *thread = cco_thread_pointer();
  void **first = (void **)(thread + cco_facts.state_offset[0]);
  void **second = (void **)(thread + cco_facts.state_offset[1]);
  cco_exceptions *exceptions = cco_thread_exceptions();
  *state = (cco_thread_state){thread, {*first, *second}, *exceptions, false};
  if (state->words[1] == NULL && exceptions->caught == NULL && exceptions->uncaught == 0) return false;
  *first = NULL;
  *second = NULL;
  exceptions->caught = NULL;
  exceptions->uncaught = 0;
  if (state->words[1] != NULL && cco_flow_layer != NULL && cco_flow_layer->leaves != NULL)
    state->is_marked = cco_flow_layer->leaves();
  return true;
}

__attribute__((noinline)) void cco_put_thread_state(const cco_thread_state *state) {
  char *thread = cco_thread_pointer();
  *(void **)(thread + cco_facts.state_offset[1]) = state->words[1];
  *(void **)(thread + cco_facts.state_offset[0]) = state->words[0];
  cco_exceptions *exceptions = cco_thread_exceptions();
  exceptions->caught = state->exceptions.caught;
  exceptions->uncaught = state->exceptions.uncaught;
  if (state->words[1] != NULL && (state->is_marked || state->thread != thread) && cco_flow_layer != NULL)
    cco_flow_layer->returns(state->is_marked, (char *)__builtin_frame_address(0), state->thread);
}
