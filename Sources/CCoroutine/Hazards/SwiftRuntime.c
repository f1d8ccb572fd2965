// Hazards 2 and 3: Swift keeps two linked lists for each thread: the dynamic accesses, whose nodes are on the stack,
// and the task-local bindings made outside of a Task. Each coroutine has lists of its own, because a switch exchanges
// the two heads. So only the flow of control that began an access or a binding sees it.
//
// The heads are words of the two libraries' thread-local blocks. Two fresh threads find them, each by one access and by
// one binding (ThreadBlock.c); fresh, because inside a Task a binding goes to the Task. Then each thread exchanges the
// word as a switch does, and checks that the library begins a new list, and continues the old one once the word is
// restored. The two threads also find the words that Tasks.c and Exceptions.c need.
//
// If a head is not found, or the exchange has not this effect: for accesses, the careful path calls the functions that
// Swift's own tasks call at a switch; for task-locals, the limit is documented and reported.
#include "Internal.h"

#include <pthread.h>

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
static bool accesses_by_function, found_all;
bool cco_swift_runtime_wants_careful(void) { return !found_all; }
const char *cco_accesses_description(void) { return accesses; }
const char *cco_task_locals_description(void) { return task_locals; }

// ---- the words that the probe threads search for

enum { MODIFY_TRACKED = 0x21 };
static void make_access(cco_search *search) {
  void *buffer[4];
  long variable = 0;
  swift_beginAccess(&variable, buffer, MODIFY_TRACKED, NULL);
  cco_note_inside(search);
  swift_endAccess(buffer);
}

static void make_binding(cco_search *search) {
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
  pthread_barrier_t *both_alive;
  intptr_t accesses, task_locals;
  cco_exception_words exceptions;
  bool understands_task_locals;
  cco_task_words tasks;
} findings;

static void *probe_thread(void *context) {
  findings *mine = context;
  if (swift_beginAccess && swift_endAccess)
    mine->accesses = cco_find_head((const void *)swift_beginAccess, make_access);
  if (mine->accesses != 0 && !prove_accesses(mine->accesses)) mine->accesses = 0;
  if (swift_task_localValuePush && swift_task_localValuePop && &int_metadata[0])
    mine->task_locals = cco_find_head((const void *)swift_task_localValuePush, make_binding);
  if (mine->task_locals != 0 && !prove_task_locals(mine->task_locals)) mine->task_locals = 0;
  mine->understands_task_locals = cco_prove_task_locals(mine->task_locals);
  mine->tasks = cco_find_task_words();
  mine->exceptions = cco_find_exceptions();
  pthread_barrier_wait(mine->both_alive);
  return NULL;
}

void cco_swift_runtime_start(cco_runtime_facts *facts) {
  pthread_barrier_t both_alive;
  pthread_barrier_init(&both_alive, NULL, 2);
  findings a = {.both_alive = &both_alive}, b = a;
  pthread_t first, second;
  bool ran = pthread_create(&first, NULL, probe_thread, &a) == 0;
  if (ran && pthread_create(&second, NULL, probe_thread, &b) != 0) {
    pthread_barrier_wait(&both_alive);
    pthread_join(first, NULL);
    ran = false;
  } else if (ran) {
    pthread_join(first, NULL);
    pthread_join(second, NULL);
  }
  pthread_barrier_destroy(&both_alive);

  bool has_functions = swift_task_enterThreadLocalContext && swift_task_exitThreadLocalContext;
  if (cco_is_disabled(CCO_MITIGATION_ACCESSES)) {
    accesses = "off: disabled by a test";
  } else if (!swift_beginAccess) {
    accesses = "not needed: this program does not link Swift's runtime";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
  } else if (ran && a.accesses != 0 && a.accesses == b.accesses && !cco_is_disabled(CCO_MITIGATION_ACCESS_OFFSET)) {
    facts->accesses_offset = a.accesses;
    accesses = "on: the list head was found, switches exchange it";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
    cco_mark_active(CCO_MITIGATION_ACCESS_OFFSET, true);
  } else if (has_functions) {
    accesses_by_function = true;
    accesses = "on, slower: the list head was not found, switches call swift_task_exit/enterThreadLocalContext";
    cco_mark_active(CCO_MITIGATION_ACCESSES, true);
    facts->accesses_offset = 0;
  } else {
    accesses = "off: neither the list head nor Swift's functions were found; do not suspend inside inout access to "
               "properties of classes, globals or captured variables";
  }

  if (cco_is_disabled(CCO_MITIGATION_TASK_LOCALS)) {
    task_locals = "off: disabled by a test";
  } else if (!swift_task_localValuePush) {
    task_locals = "not needed: this program does not link Swift's concurrency library";
    cco_mark_active(CCO_MITIGATION_TASK_LOCALS, true);
  } else if (ran && a.task_locals != 0 && a.task_locals == b.task_locals) {
    facts->task_locals_offset = a.task_locals;
    cco_mark_active(CCO_MITIGATION_TASK_LOCALS, true);
    bool understands = a.understands_task_locals && b.understands_task_locals;
    cco_task_locals_understood(understands);
    task_locals = understands ? "on: the list head was found, switches exchange it; launches inherit the list"
                              : "on: the list head was found, switches exchange it; launches do not inherit the list, "
                                "whose items look different in this version of Swift";
  } else {
    task_locals = "off: the list head was not found; do not suspend inside TaskLocal.withValue";
  }
  if (!ran) a = b = (findings){0};
  cco_tasks_start(a.tasks, b.tasks);
  found_all = cco_exceptions_start(a.exceptions, b.exceptions) && facts->accesses_offset != 0;
}

// ---- the exchange of the careful path

// Whether a saved context belongs to a context: only those have entered Swift's thread-local context.
static bool is_context_state(const cco_saved_context *saved) {
  const cco_context *context = cco_context_at(saved, NULL);
  return context != NULL && saved == &context->parked;
}

void cco_exchange_lists(cco_saved_context *from, cco_saved_context *to) {
  char *thread = cco_thread_pointer();
  void **locals = (void **)(thread + cco_facts.task_locals_offset);
  from->task_locals = *locals;
  *locals = to->task_locals;
  if (accesses_by_function) {
    if (is_context_state(from)) swift_task_exitThreadLocalContext((char *)&from->accesses);
    if (is_context_state(to)) swift_task_enterThreadLocalContext((char *)&to->accesses);
    return;
  }
  void **head = (void **)(thread + cco_facts.accesses_offset);
  from->accesses = *head;
  *head = to->accesses;
}
