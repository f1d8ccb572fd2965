// What the Swift and the C++ runtime keep with the thread for the flow of control that runs on it: the current Task
// with the executors that it runs on (hazard 14), and the exceptions that are being thrown or handled (hazard 15).
//
// A flow that is switched out while it has any of it leaves it in its own frame and takes it up again when it comes
// back (cco_switch_carefully). Invariant: at every jump all of these words are nil. So every flow that continues finds
// a clean thread, as a new coroutine expects it; nothing is exchanged, a saved context needs no room, and a flow that
// has none of it, which is nearly every one, pays for one test (cco_switch).
//
// Why nil suffices as the sign: the list of executors is non-nil exactly while a job of Swift's runs on the stack, and
// the current Task is set only then. Caught exceptions are a list; those that are being thrown are a count.
#include "Internal.h"

// Both not inlined: the thread may have changed between them, so each must read the thread pointer anew (hazard 4).

__attribute__((noinline)) bool cco_take_thread_state(cco_thread_state *state) {
  char *thread = cco_thread_pointer();
  void **running = (void **)(thread + cco_facts.executors_offset);
  void **task = (void **)(thread + cco_facts.task_offset);
  cco_exceptions *exceptions = cco_thread_exceptions();
  *state = (cco_thread_state){thread, *task, *running, *exceptions, false};
  if (state->running == NULL && exceptions->caught == NULL && exceptions->uncaught == 0) return false;
  // A generator's body, or a coroutine that is started on the spot: it would not see the Task below it, but a wait
  // would park that too.
  if (cco_facts.refuses_tasks && state->running != NULL && cco_context_at(__builtin_frame_address(0), NULL) != NULL) {
    state->is_counted = true;
    cco_thread()->tasks_left++;
  }
  *running = NULL;
  *task = NULL;
  exceptions->caught = NULL;
  exceptions->uncaught = 0;
  return true;
}

__attribute__((noinline)) void cco_put_thread_state(const cco_thread_state *state) {
  char *thread = cco_thread_pointer();
  // Still the same thread: nothing below the Task has waited.
  if (state->is_counted) cco_thread()->tasks_left--;
  *(void **)(thread + cco_facts.executors_offset) = state->running;
  *(void **)(thread + cco_facts.task_offset) = state->task;
  cco_exceptions *exceptions = cco_thread_exceptions();
  exceptions->caught = state->exceptions.caught;
  exceptions->uncaught = state->exceptions.uncaught;
  if (state->running != NULL && state->thread != thread)
    cco_move_task_frames((char *)__builtin_frame_address(0), state->thread, thread);
}
