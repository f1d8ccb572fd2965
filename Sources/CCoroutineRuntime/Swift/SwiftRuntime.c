// Hazards 2 and 3: Swift keeps two linked lists for each thread: the dynamic accesses, whose nodes are on the stack,
// and the task-local bindings made outside of a Task. Each coroutine has lists of its own, because a switch exchanges
// the two heads. So only the flow of control that began an access or a binding sees it.
//
// The heads are words of the two libraries' thread-local blocks. The core's two fresh threads find them, each by one
// access and by one binding (ThreadBlock.c); fresh, because inside a Task a binding goes to the Task. Then each thread
// exchanges the word as a switch does, and checks that the library begins a new list, and continues the old one once
// the word is restored. The two threads also find the words that Tasks.c needs.
//
// If a head is not found, or the exchange has not this effect: for accesses, the careful path calls the functions that
// Swift's own tasks call at a switch; for task-locals, the limit is documented and reported.
#include "Layer.h"
#include "SwiftWords.h"

#include <stdio.h>

// Weak: a program may link neither library, and a future one may rename them.
extern void swift_beginAccess(void *pointer, void *buffer, uintptr_t flags, void *_Nullable pc) __attribute__((weak));
extern void swift_endAccess(void *buffer) __attribute__((weak));
extern void swift_task_enterThreadLocalContext(char *state) __attribute__((weak));
extern void swift_task_exitThreadLocalContext(char *state) __attribute__((weak));
extern void *_Nullable swift_task_localValueGet(const void *key) __attribute__((weak));
extern void swift_task_localValuePush(const void *key, void *value, const void *type) __attribute__((weak));
extern void swift_task_localValuePop(void) __attribute__((weak));
extern char int_metadata[] __asm__("$sSiN") __attribute__((weak));

static const char *accesses = "not started", *task_locals = "not started";

// ---- the words that the probe threads search for

enum { MODIFY_TRACKED = 0x21 };
static void make_access(cco_piece *search) {
  void *buffer[4];
  long variable = 0;
  swift_beginAccess(&variable, buffer, MODIFY_TRACKED, NULL);
  cco_note_inside(search);
  swift_endAccess(buffer);
}

static void make_binding(cco_piece *search) {
  static const char key = 0;
  long value = 0;
  swift_task_localValuePush(&key, &value, int_metadata);
  cco_note_inside(search);
  swift_task_localValuePop();
}

// ---- the proof that the exchange of a word works

// While the head is nil, an access begins a new list; once the head is restored, the first list ends as usual. The two
// accesses are of different variables, so they do not conflict if the word is not the head.
static bool prove_accesses(intptr_t offset) {
  void **head = (void **)(cco_thread_pointer() + offset);
  void *outer[4], *inner[4];
  long first = 0, second = 0;
  swift_beginAccess(&first, outer, MODIFY_TRACKED, NULL);
  void *kept = *head;
  *head = NULL;
  swift_beginAccess(&second, inner, MODIFY_TRACKED, NULL);
  bool holds = kept != NULL && *head != NULL && *head != kept;
  for (int i = 0; i < 4; i++) holds = holds && inner[i] != kept;
  swift_endAccess(inner);
  holds = holds && *head == NULL;
  *head = kept;
  swift_endAccess(outer);
  holds = holds && *head == NULL;
  *head = NULL;
  return holds;
}

// While the head is nil, the binding is not visible; once the head is restored, it is.
static bool prove_task_locals(intptr_t offset) {
  if (!swift_task_localValueGet) return false;
  void **head = (void **)(cco_thread_pointer() + offset);
  static const char outer = 0, inner = 0;
  long value = 0;
  swift_task_localValuePush(&outer, &value, int_metadata);
  void *kept = *head;
  bool holds = kept != NULL && swift_task_localValueGet(&outer) != NULL;
  *head = NULL;
  holds = holds && swift_task_localValueGet(&outer) == NULL;
  swift_task_localValuePush(&inner, &value, int_metadata);
  holds = holds && swift_task_localValueGet(&inner) != NULL && swift_task_localValueGet(&outer) == NULL;
  swift_task_localValuePop();
  holds = holds && *head == NULL;
  *head = kept;
  holds = holds && swift_task_localValueGet(&outer) != NULL;
  swift_task_localValuePop();
  holds = holds && *head == NULL;
  *head = NULL;
  return holds;
}

typedef struct findings {
  intptr_t accesses, task_locals;
  bool understands_task_locals;
  cco_task_words tasks;
} findings;
static findings found[2];  // of the two threads of start-up

static void search_thread(int thread) {
  findings *mine = &found[thread];
  if (swift_beginAccess && swift_endAccess)
    mine->accesses = cco_find_head((const void *)swift_beginAccess, make_access);
  if (mine->accesses != 0 && !prove_accesses(mine->accesses)) mine->accesses = 0;
  if (swift_task_localValuePush && swift_task_localValuePop && &int_metadata[0])
    mine->task_locals = cco_find_head((const void *)swift_task_localValuePush, make_binding);
  if (mine->task_locals != 0 && !prove_task_locals(mine->task_locals)) mine->task_locals = 0;
  mine->understands_task_locals = cco_prove_task_locals(mine->task_locals);
  mine->tasks = cco_find_task_words();
}

static void exchange(cco_saved_context *from, cco_saved_context *to);
static cco_flow_hooks hooks;

static bool decide(cco_core_facts *facts) {
  findings a = found[0], b = found[1];
  bool has_functions = swift_task_enterThreadLocalContext && swift_task_exitThreadLocalContext;
  if (cco_is_disabled(CCO_MITIGATION_ACCESSES)) {
    accesses = "off: disabled by a test";
  } else if (!swift_beginAccess) {
    accesses = "not needed: this program does not link Swift's runtime";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
  } else if (a.accesses != 0 && a.accesses == b.accesses && !cco_is_disabled(CCO_MITIGATION_ACCESS_OFFSET)) {
    facts->exchanged_offset[CCO_ACCESSES] = a.accesses;
    accesses = "on: the list head was found, switches exchange it";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
    cco_mark_active(CCO_MITIGATION_ACCESS_OFFSET, true);
  } else if (has_functions) {
    hooks.exchange = exchange;
    accesses = "on, slower: the list head was not found, switches call swift_task_exit/enterThreadLocalContext";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
    facts->exchanged_offset[CCO_ACCESSES] = 0;
  } else {
    accesses = "off: neither the list head nor Swift's functions were found; do not suspend inside inout access to "
               "properties of classes, globals or captured variables";
  }

  if (cco_is_disabled(CCO_MITIGATION_TASK_LOCALS)) {
    task_locals = "off: disabled by a test";
  } else if (!swift_task_localValuePush) {
    task_locals = "not needed: this program does not link Swift's concurrency library";
    cco_mark_active(CCO_MITIGATION_TASK_LOCALS, true);
  } else if (a.task_locals != 0 && a.task_locals == b.task_locals) {
    facts->exchanged_offset[CCO_TASK_LOCALS] = a.task_locals;
    cco_mark_active(CCO_MITIGATION_TASK_LOCALS, true);
    bool understands = a.understands_task_locals && b.understands_task_locals;
    cco_task_locals_understood(understands);
    task_locals = understands ? "on: the list head was found, switches exchange it; launches inherit the list"
                              : "on: the list head was found, switches exchange it; launches do not inherit the list, "
                                "whose items look different in this version of Swift";
  } else {
    task_locals = "off: the list head was not found; do not suspend inside TaskLocal.withValue";
  }
  cco_tasks_start(a.tasks, b.tasks);
  if (cco_runtime.refuses_tasks) hooks.leaves = cco_task_leaves;
  return facts->exchanged_offset[CCO_ACCESSES] != 0;
}

// The proof may refuse them as well.
static void prove(void) {
  cco_tasks_prove();
  if (cco_runtime.refuses_tasks) hooks.leaves = cco_task_leaves;
}

// ---- the exchange, if the head of the accesses was not found

// Whether a saved context belongs to a context: only those have entered Swift's thread-local context.
static bool is_context_state(const cco_saved_context *saved) {
  const cco_context *context = cco_context_at(saved, NULL);
  return context != NULL && saved == &context->parked;
}

// Swift's functions keep two words for a flow: its value of this word, and the spare one behind it.
static void exchange(cco_saved_context *from, cco_saved_context *to) {
  void **locals = (void **)(cco_thread_pointer() + cco_facts.exchanged_offset[CCO_TASK_LOCALS]);
  from->exchanged[CCO_TASK_LOCALS] = *locals;
  *locals = to->exchanged[CCO_TASK_LOCALS];
  if (is_context_state(from)) swift_task_exitThreadLocalContext((char *)&from->exchanged[CCO_ACCESSES]);
  if (is_context_state(to)) swift_task_enterThreadLocalContext((char *)&to->exchanged[CCO_ACCESSES]);
}
_Static_assert(offsetof(cco_saved_context, spare) ==
                   offsetof(cco_saved_context, exchanged) + (CCO_ACCESSES + 1) * sizeof(void *),
               "two words in a row");

// ---- what the core is told

static void describe(char *out, size_t room) {
  snprintf(out, room,
           "access sets      %s\n"
           "task-locals      %s\n"
           "current Task     %s\n",
           accesses, task_locals, cco_tasks_description());
}

static cco_flow_hooks hooks = {
    .search = search_thread, .decide = decide, .prove = prove, .describe = describe, .returns = cco_task_returns};

__attribute__((constructor)) static void add_layer(void) { cco_flow_layer = &hooks; }
