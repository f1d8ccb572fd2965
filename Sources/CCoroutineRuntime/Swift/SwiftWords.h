// The words of Swift's runtime, and how they are found: what the files of this folder know of each other.
#ifndef CCOROUTINE_SWIFT_WORDS_H
#define CCOROUTINE_SWIFT_WORDS_H

#include "CCoroutineRuntime.h"
#include "Internal.h"

CCO_NONNULL_BEGIN

// ---- TaskLocals.c: whether task-local lists have the layout that the file assumes. Called on a thread without
// bindings, with the offset of their head.
bool cco_prove_task_locals(intptr_t offset);
void cco_task_locals_understood(bool is_understood);

// ---- ThreadBlock.c: the thread-local block of the library whose code contains `symbol`, on the calling thread.
typedef struct cco_thread_block {
  const void *symbol;
  void *_Nullable *_Nullable words;
  size_t count;
  bool is_library;  // not the program itself
} cco_thread_block;
bool cco_find_thread_block(cco_thread_block *block);
// Returns the distance from the thread pointer of the one word that is non-nil only inside `piece`; 0 if there is not
// exactly one. `piece` calls cco_note_inside in the middle.
typedef struct cco_piece cco_piece;
intptr_t cco_find_head(const void *symbol, void (*piece)(cco_piece *search));
void cco_note_inside(cco_piece *search);

// ---- Tasks.c: hazard 14.
typedef struct cco_task_words {
  intptr_t task, running;
} cco_task_words;
cco_task_words cco_find_task_words(void);
void cco_tasks_start(cco_task_words on_one_thread, cco_task_words on_another);
const char *cco_tasks_description(void);
// Proves that a Task's synchronous part may continue on another thread. Called once switches work.
void cco_tasks_prove(void);
// Whether a flow that leaves inside of a Task must be counted: it would not see the Task below it, but a wait would
// park that Task too. Asked only while waits inside of Tasks are refused. Counts it.
bool cco_task_leaves(void);
// A flow inside of a Task is back: counted, or on another thread, whose words its frames must name from now on.
void cco_task_returns(bool is_counted, char *stack, const char *from);

// ---- ForkedThread.c: hazard 13. Called on the thread that forks: before the fork, in the child, at the child's first
// use.
void cco_note_forking_thread(void);
void cco_keep_forked_thread(void);
void cco_renumber_forked_thread(void);

CCO_NONNULL_END

#endif
