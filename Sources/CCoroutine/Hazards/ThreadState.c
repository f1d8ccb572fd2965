// The thread-local state of the Swift and C++ runtimes that belongs to the running flow of control: the current Task
// and its executors (hazard 14), and the exceptions that are being thrown or handled (hazard 15).
//
// A flow that is switched out with such state saves it in its own frame, and restores it when it is resumed
// (cco_switch_carefully). Invariant: at every jump all of these words are nil. So every flow continues on a clean
// thread, as a new coroutine expects. Nothing is exchanged, a saved context has no fields for it, and a flow without
// such state, which is nearly every one, pays for one test (cco_switch).
//
// Why nil means "no state": the list of executors is non-nil exactly while a job of Swift's runs on the stack, and the
// current Task is set only then. Caught exceptions are a list; exceptions that are being thrown are a count.
#include "Internal.h"

// Neither is inlined: the thread may change between them, so each must read the thread pointer anew (hazard 4).

__attribute__((noinline)) bool cco_take_thread_state(cco_thread_state *state) {
  char *thread = cco_thread_pointer();
  void **running = (void **)(thread + cco_facts.executors_offset);
  void **task = (void **)(thread + cco_facts.task_offset);
  cco_exceptions *exceptions = cco_thread_exceptions();
  *state = (cco_thread_state){thread, *task, *running, *exceptions, false};
  if (state->running == NULL && exceptions->caught == NULL && exceptions->uncaught == 0) return false;
  // This is a generator's body, or a coroutine that was started at once by its launcher. It would not see the Task
  // below it, but a wait would park that Task too.
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
  // The thread is still the same, because nothing below the Task has waited.
  if (state->is_counted) cco_thread()->tasks_left--;
  *(void **)(thread + cco_facts.executors_offset) = state->running;
  *(void **)(thread + cco_facts.task_offset) = state->task;
  cco_exceptions *exceptions = cco_thread_exceptions();
  exceptions->caught = state->exceptions.caught;
  exceptions->uncaught = state->exceptions.uncaught;
  if (state->running != NULL && state->thread != thread)
    cco_move_task_frames((char *)__builtin_frame_address(0), state->thread, thread);
}
