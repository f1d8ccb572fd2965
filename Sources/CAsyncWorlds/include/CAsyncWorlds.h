// What a simulated world of Tasks needs below Swift: to run a job, to look at a Task, and to be asked where compiled
// code leaves the world. For CoroutineTesting alone.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// The functions that the import slots lead to while a thread drives a world. All run on that thread.
typedef struct {
  // A Task that is suspended wants to continue on another executor.
  void (*_Nonnull hop)(void *_Nonnull world, void *_Nonnull task, void *_Nullable identity, uintptr_t implementation);
  // Nanoseconds of the world.
  int64_t (*_Nonnull now)(void *_Nonnull world);
  // Code of the world is about to call a function that continues outside of it.
  void (*_Nonnull leave)(void *_Nonnull world, const char *_Nonnull function);
  // Code of the world gives work to a queue; returns whether the world takes it, by the call that follows.
  bool (*_Nonnull takes_work)(void *_Nonnull world, const char *_Nonnull function);
  void (*_Nonnull take_work)(void *_Nonnull world, void *_Nonnull queue, void *_Nullable context,
                             void *_Nonnull function, bool is_block);
  // Code of the world is about to run something on a queue, in its own call.
  void (*_Nonnull run_work)(void *_Nonnull world, void *_Nonnull queue);
  // A Task was created; `callers` are the innermost return addresses on the stack.
  void (*_Nonnull created)(void *_Nonnull world, void *_Nonnull task, const uintptr_t *_Nonnull callers, int count);
  // The runtime has locked an object that Tasks share, an AsyncStream for example.
  void (*_Nonnull used)(void *_Nonnull world, void *_Nonnull object);
  // The code has trapped, and the process is about to end.
  void (*_Nonnull trapped)(void *_Nonnull world);
} caw_callbacks;

// How many import slots of the loaded objects lead to the functions above; zero where Swift is linked statically.
typedef struct {
  int hops, clocks, exits;
} caw_slots;

// Replaces the import slots of all objects that are loaded now; objects that have been seen before cost a comparison
// only. Any thread; calls exclude each other.
caw_slots caw_install(const caw_callbacks *_Nonnull callbacks);

// The world that the calling thread drives; null for none.
void *_Nullable caw_current(void);
void *_Nullable caw_exchange(void *_Nullable world);

// Runs a job on the calling thread until it suspends.
void caw_run(void *_Nonnull job, bool is_main);
// Runs work that a world has taken.
void caw_work(void *_Nullable context, void *_Nonnull function);
// Releases what a world holds of work: the block, if it is one, and the queue, which was retained before `take_work`.
void caw_release_work(void *_Nullable block, void *_Nonnull queue);
bool caw_is_main_queue(void *_Nonnull queue);
// Enqueues a suspended Task on an executor, as Swift would.
void caw_enqueue(void *_Nonnull task, void *_Nullable identity, uintptr_t implementation);
// The same for a Task that is none of the calling thread's world.
void caw_enqueue_outside(void *_Nonnull task, void *_Nullable identity, uintptr_t implementation);

// The main actor's executor; the Task that the calling thread runs.
void *_Nullable caw_main(void);
void *_Nullable caw_current_task(void);

// Between these calls, with true and then with false, the calling thread's first lock is one of a stream: `used` then
// tells of the locks of streams alone. Before, and where that is not known, it tells of all.
void caw_learn_stream(bool begins);
bool caw_knows_streams(void);

// Whether an executor is the main actor's; whether it is one of the program's own (neither a default actor's nor the
// main actor's nor none).
bool caw_is_main(void *_Nullable identity);
bool caw_is_custom(void *_Nullable identity, uintptr_t implementation);

typedef enum { CAW_TASK = 0, CAW_ACTOR = 193, CAW_CONTINUATION = 195 } caw_kind;

uint64_t caw_id(void *_Nonnull job);    // unique in the process
int caw_job_kind(void *_Nonnull job);   // a caw_kind
void *_Nonnull caw_actor(void *_Nonnull job);  // of a job of the kind CAW_ACTOR
// Whether a job of the kind CAW_CONTINUATION resumes the Task.
bool caw_continues(void *_Nonnull job, void *_Nonnull task);
bool caw_is_async_let(void *_Nonnull task);
bool caw_is_child(void *_Nonnull task);
bool caw_has_ended(void *_Nonnull task);
// The same of a Task that may not be in memory any more; `id` is its caw_id. True if it is not.
bool caw_has_gone(void *_Nonnull task, uint64_t id);
bool caw_is_cancelled(void *_Nonnull task);
bool caw_has_preference(void *_Nonnull task);  // for a task executor
bool caw_is_enqueued(void *_Nonnull task);

// Stores the addresses at which a suspended Task continues, innermost first, and those of its callers.
int caw_waits(void *_Nonnull task, uintptr_t *_Nonnull addresses, int most);
void caw_retain(void *_Nonnull task);
void caw_release(void *_Nonnull task);
void caw_cancel(void *_Nonnull task);
