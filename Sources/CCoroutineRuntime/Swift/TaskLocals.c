// Reads the task-local bindings of the calling flow, and gives a new flow its inherited bindings.
//
// Swift's runtime keeps bindings in a linked list of items, the most recent one first. In a Task, the head of the list
// is a word of the Task. Elsewhere a word of the thread points to a block of one word, the head; switches exchange the
// thread's word (SwiftRuntime.c). The runtime allocates that block at the first binding, and frees it after the last.
//
// A coroutine that inherits bindings begins with a block of its own, whose head is the first inherited item. The items
// belong to TaskLocalSnapshot (Swift). The runtime pushes and pops the coroutine's own bindings in front of them. It
// never pops an inherited item, because pops match pushes, so it frees neither the items nor the block.
//
// An item is three words and the value: the next item with two bits for this item's kind, the key, the type. This is
// not documented, so start-up makes two bindings on each of its two probe threads, and compares every word. The offset
// of the head in a Task is found in the first Task that asks, by one binding. If either check fails, nothing is
// inherited, and the report says so.
#include "SwiftWords.h"

#include <stdatomic.h>
#include <stdlib.h>

extern void *_Nullable swift_task_getCurrent(void) __attribute__((weak));
extern void *_Nullable swift_task_localValueGet(const void *key) __attribute__((weak));
extern void swift_task_localValuePush(const void *key, void *value, const void *type) __attribute__((weak));
extern void swift_task_localValuePop(void) __attribute__((weak));
extern char int_metadata[] __asm__("$sSiN") __attribute__((weak));

// Bits 1 and 2 of an item's first word: 0 and 1 are values, 2 leads to the bindings of the parent Task, and 3 ends the
// search.
enum { KIND_SHIFT = 1, KIND_MASK = 3, FIRST_MARKER = 2, STOP_MARKER = 3, WORD_BITS = 7 };

static bool is_understood;
void cco_task_locals_understood(bool is) { is_understood = is; }

static unsigned kind_of(const cco_task_local *item) { return (unsigned)(item->next >> KIND_SHIFT) & KIND_MASK; }

static cco_task_local *following(const cco_task_local *item) {
  return (cco_task_local *)(item->next & ~(uintptr_t)WORD_BITS);
}

// The first value from `item` on.
static const cco_task_local *value_from(const cco_task_local *item) {
  while (item != NULL && kind_of(item) >= FIRST_MARKER)
    item = kind_of(item) == STOP_MARKER ? NULL : following(item);
  return item;
}

const cco_task_local *cco_next_task_local(const cco_task_local *item) { return value_from(following(item)); }

// ---- the proof

static void **block_of_thread(void) {
  return (void **)(cco_thread_pointer() + cco_facts.exchanged_offset[CCO_TASK_LOCALS]);
}

// Whether the newest item is `key`'s, with `value`, in front of `next`.
static bool is_item(const cco_task_local *item, const void *key, const long *value, const cco_task_local *next) {
  return item != NULL && item->next == (uintptr_t)next && item->key == key && item->type == int_metadata &&
         *(const long *)(item + 1) == *value && swift_task_localValueGet(key) == (const void *)(item + 1);
}

bool cco_prove_task_locals(intptr_t offset) {
  if (offset == 0 || !swift_task_localValueGet) return false;
  void **word = (void **)(cco_thread_pointer() + offset);
  static const char outer_key = 0, inner_key = 0;
  long outer = 0x5ca1ab1e, inner = 0x0ddba11;
  long outer_copy = outer, inner_copy = inner;
  swift_task_localValuePush(&outer_key, &outer_copy, int_metadata);
  void *block = *word;
  const cco_task_local *first = block ? *(const cco_task_local **)block : NULL;
  bool holds = is_item(first, &outer_key, &outer, NULL);
  swift_task_localValuePush(&inner_key, &inner_copy, int_metadata);
  holds = holds && *word == block && is_item(*(const cco_task_local **)block, &inner_key, &inner, first);
  swift_task_localValuePop();
  holds = holds && *word == block && *(const cco_task_local **)block == first;
  swift_task_localValuePop();
  return holds && *word == NULL;
}

// ---- a Task's list

// The index of the list's head among the words of a Task; 0 until a Task was searched, NOT_FOUND if it has none.
static _Atomic intptr_t head_in_task;

// WORDS_OF_TASK: the number of words that a Task has in every version of the runtime.
enum { WORDS_OF_TASK = 24, NOT_FOUND = -1 };

static __attribute__((noinline, no_sanitize("address", "thread"))) intptr_t find_head(void **task) {
  static const char key = 0;
  long value = 0, copy = 0;
  swift_task_localValuePush(&key, &copy, int_metadata);
  const cco_task_local *item = (const cco_task_local *)swift_task_localValueGet(&key) - 1;
  intptr_t found = NOT_FOUND;
  int matches = 0;
  for (intptr_t i = 2; i < WORDS_OF_TASK; i++) {
    if (task[i] != (void *)item) continue;
    found = i;
    matches++;
  }
  void *next = following(item);
  bool holds = matches == 1 && item->key == &key && item->type == int_metadata && *(const long *)(item + 1) == value;
  swift_task_localValuePop();
  return holds && task[found] == next ? found : NOT_FOUND;
}

static __attribute__((no_sanitize("thread"))) const cco_task_local *first_of_task(void **task) {
  intptr_t word = atomic_load_explicit(&head_in_task, memory_order_relaxed);
  if (word == 0) {
    // Threads that search at the same time find the same word.
    word = find_head(task);
    atomic_store_explicit(&head_in_task, word, memory_order_relaxed);
  }
  return word == NOT_FOUND ? NULL : (const cco_task_local *)task[word];
}

// ---- for the layer above

const cco_task_local *cco_task_locals(void) {
  if (!is_understood) return NULL;
  intptr_t word = cco_facts.state_offset[CCO_TASK];
  void **task = word ? *(void ***)(cco_thread_pointer() + word) : cco_current_task();
  if (task != NULL) return value_from(first_of_task(task));
  const cco_task_local **block = *block_of_thread();
  return block ? value_from(*block) : NULL;
}

void cco_enter_task_locals(const cco_task_local *first) {
  const cco_task_local **block = malloc(sizeof *block);
  if (block == NULL) abort();
  *block = first;
  *block_of_thread() = block;
}

void cco_leave_task_locals(void) {
  void **word = block_of_thread();
  free(*word);
  *word = NULL;
}

cco_aside cco_put_task_locals_aside(void) {
  void **word = block_of_thread();
  cco_aside aside = {*word, cco_exchange_task(NULL)};
  *word = NULL;
  return aside;
}

void cco_take_task_locals_back(cco_aside aside) {
  *block_of_thread() = aside.bindings;
  cco_exchange_task(aside.task);
}
