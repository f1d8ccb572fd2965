// Hazards 2 and 3: two linked lists that Swift keeps for each thread, with nodes on the stack (dynamic accesses) or
// with stack discipline (task-local bindings made outside of a Task). A coroutine takes its own lists along; a switch
// exchanges the two heads. Consequence: an access or a binding is seen by the flow of control that began it, and by no
// other.
//
// The heads are words of the two libraries' thread-local blocks. Nobody documents where, so start-up looks: on two
// fresh threads that live at the same time it compares the block before, inside and after one access (one binding). The
// single word that goes nil, non-nil, nil is the head; its distance from the thread pointer must be the same on both
// threads, which also proves that the block lies in static thread-local storage. Fresh threads, because inside a Task a
// binding goes to the Task instead.
//
// Not found: for accesses, the functions that Swift's own tasks call at a switch are used (the careful path); for
// task-locals the limit is documented and reported.
#include "Internal.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

// Weak: a program may link neither library, and a future one may rename them.
extern void swift_beginAccess(void *pointer, void *buffer, uintptr_t flags, void *_Nullable pc) __attribute__((weak));
extern void swift_endAccess(void *buffer) __attribute__((weak));
extern void swift_task_enterThreadLocalContext(char *state) __attribute__((weak));
extern void swift_task_exitThreadLocalContext(char *state) __attribute__((weak));
extern void swift_task_localValuePush(const void *key, void *value, const void *type) __attribute__((weak));
extern void swift_task_localValuePop(void) __attribute__((weak));
extern void *_Nullable swift_task_getCurrent(void) __attribute__((weak));
extern char int_metadata[] __asm__("$sSiN") __attribute__((weak));

static const char *accesses = "not started", *task_locals = "not started";
static bool accesses_by_function;
const char *cco_accesses_description(void) { return accesses; }
const char *cco_task_locals_description(void) { return task_locals; }

// ---- one block of thread-local storage: that of the library whose code contains `symbol`

typedef struct block {
  const void *symbol;
  void **words;
  size_t count;
} block;

static int find_block(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  block *wanted = context;
  bool contains = false;
  size_t bytes = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && (uintptr_t)wanted->symbol - start < header->p_memsz) contains = true;
    if (header->p_type == PT_TLS) bytes = header->p_memsz;
  }
  if (!contains) return 0;
  wanted->words = info->dlpi_tls_data;
  wanted->count = wanted->words ? bytes / sizeof(void *) : 0;
  return 1;
}

enum { MOST_WORDS = 512 };

// The offset of the one word that is nil in `before`, non-nil now, and nil again after `end`; 0 when there is not
// exactly one.
static intptr_t find_head(const void *symbol, void (*begin)(void *), void (*end)(void *), void *state) {
  void *before[MOST_WORDS], *inside[MOST_WORDS];
  begin(state);  // lets the library make its block
  end(state);
  block found = {symbol, NULL, 0};
  if (!dl_iterate_phdr(find_block, &found) || found.count == 0 || found.count > MOST_WORDS) return 0;
  memcpy(before, found.words, found.count * sizeof(void *));
  begin(state);
  memcpy(inside, found.words, found.count * sizeof(void *));
  end(state);
  intptr_t offset = 0;
  for (size_t i = 0; i < found.count; i++) {
    if (before[i] != NULL || inside[i] == NULL || found.words[i] != NULL) continue;
    if (offset != 0) return 0;
    offset = (char *)&found.words[i] - cco_thread_pointer();
  }
  return offset;
}

// ---- the three probes

typedef struct access_probe {
  void *buffer[4];
  long variable;
} access_probe;

enum { MODIFY_TRACKED = 0x21 };
static void begin_access(void *state) {
  access_probe *probe = state;
  swift_beginAccess(&probe->variable, probe->buffer, MODIFY_TRACKED, NULL);
}
static void end_access(void *state) { swift_endAccess(((access_probe *)state)->buffer); }

static void begin_binding(void *state) {
  static const char key = 0;
  swift_task_localValuePush(&key, state, int_metadata);
}
static void end_binding(void *state) {
  (void)state;
  swift_task_localValuePop();
}

// The word that swift_task_getCurrent answers: tried one by one with a mark, on a thread that runs nothing else.
static intptr_t find_task_word(void) {
  block found = {(const void *)swift_task_getCurrent, NULL, 0};
  if (!dl_iterate_phdr(find_block, &found) || found.count > MOST_WORDS) return 0;
  for (size_t i = 0; i < found.count; i++) {
    void *old = found.words[i];
    found.words[i] = &found;
    bool is_it = swift_task_getCurrent() == (void *)&found;
    found.words[i] = old;
    if (is_it) return (char *)&found.words[i] - cco_thread_pointer();
  }
  return 0;
}

typedef struct findings {
  pthread_barrier_t *both_alive;
  intptr_t accesses, task_locals, task;
} findings;

static void *probe_thread(void *context) {
  findings *mine = context;
  access_probe access = {{NULL}, 0};
  long value = 0;
  if (swift_beginAccess && swift_endAccess)
    mine->accesses = find_head((const void *)swift_beginAccess, begin_access, end_access, &access);
  if (swift_task_localValuePush && swift_task_localValuePop && &int_metadata[0])
    mine->task_locals = find_head((const void *)swift_task_localValuePush, begin_binding, end_binding, &value);
  if (mine->task_locals && swift_task_getCurrent) mine->task = find_task_word();
  pthread_barrier_wait(mine->both_alive);
  return NULL;
}

void cco_swift_runtime_start(cco_runtime_facts *facts) {
  pthread_barrier_t both_alive;
  pthread_barrier_init(&both_alive, NULL, 2);
  findings a = {&both_alive, 0, 0, 0}, b = {&both_alive, 0, 0, 0};
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
  if (cco_is_disabled(CCO_CURE_ACCESSES)) {
    accesses = "off: disabled by a test";
  } else if (!swift_beginAccess) {
    accesses = "not needed: this program does not link Swift's runtime";
    cco_mark_active(CCO_CURE_ACCESSES, true);
  } else if (ran && a.accesses != 0 && a.accesses == b.accesses && !cco_is_disabled(CCO_CURE_ACCESS_OFFSET)) {
    facts->accesses_offset = a.accesses;
    accesses = "on: the list head was found, switches exchange it";
    cco_mark_active(CCO_CURE_ACCESSES, true);
    cco_mark_active(CCO_CURE_ACCESS_OFFSET, true);
  } else if (has_functions) {
    accesses_by_function = true;
    accesses = "on, slower: the list head was not found, switches call swift_task_exit/enterThreadLocalContext";
    cco_mark_active(CCO_CURE_ACCESSES, true);
    facts->accesses_offset = 0;
  } else {
    accesses = "off: neither the list head nor Swift's functions were found; do not suspend inside inout access to "
               "properties of classes, globals or captured variables";
  }

  if (cco_is_disabled(CCO_CURE_TASK_LOCALS)) {
    task_locals = "off: disabled by a test";
  } else if (!swift_task_localValuePush) {
    task_locals = "not needed: this program does not link Swift's concurrency library";
    cco_mark_active(CCO_CURE_TASK_LOCALS, true);
  } else if (ran && a.task_locals != 0 && a.task_locals == b.task_locals) {
    facts->task_locals_offset = a.task_locals;
    if (a.task == b.task) facts->task_offset = a.task;
    task_locals = "on: the list head was found, switches exchange it";
    cco_mark_active(CCO_CURE_TASK_LOCALS, true);
  } else {
    task_locals = "off: the list head was not found; do not suspend inside TaskLocal.withValue";
  }
}

// ---- the exchange of the careful path

// Whether a slot belongs to a context: only those have entered Swift's thread-local context.
static bool is_context_slot(const cco_slot *slot) {
  const cco_context *context = cco_context_at(slot, NULL);
  return context != NULL && slot == &context->parked;
}

void cco_exchange_lists(cco_slot *from, cco_slot *to) {
  char *thread = cco_thread_pointer();
  void **locals = (void **)(thread + cco_facts.task_locals_offset);
  from->task_locals = *locals;
  *locals = to->task_locals;
  if (accesses_by_function) {
    if (is_context_slot(from)) swift_task_exitThreadLocalContext((char *)&from->accesses);
    if (is_context_slot(to)) swift_task_enterThreadLocalContext((char *)&to->accesses);
    return;
  }
  void **head = (void **)(thread + cco_facts.accesses_offset);
  from->accesses = *head;
  *head = to->accesses;
}
