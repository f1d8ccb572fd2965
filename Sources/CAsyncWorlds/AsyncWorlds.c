#include "CAsyncWorlds.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// Import slots. A loaded object reaches a function of another one through a slot in its own memory, which the dynamic
// linker fills. Five kinds of slots are replaced, once, and stay so; on a thread that drives no world each of the
// replacements costs a load of a thread-local and a jump.
//
//   hops      swift_task_switch. Compiled code calls it before it continues on another executor. Swift then runs an
//             idle actor's code at once, on the same thread, which on one thread is always: no order could be chosen.
//             In a world the Task is suspended instead, and the world decides when it goes on.
//   clocks    clock_gettime, in the program, in libswift_Concurrency and in Foundation. Not in libdispatch and libc:
//             their own waits need the real time.
//   births    swift_task_create, to say where a Task comes from.
//   locks     pthread_mutex_lock in libswift_Concurrency: two steps that use one AsyncStream depend on each other.
//   exits     what continues on a thread outside of the world: Dispatch, new threads. They are reported and called,
//             unless the world takes what was to run.
//
// Everything here depends on how Swift 6.3 works inside. CoroutineTesting therefore proves each effect before it relies
// on it (AsyncExecutors.swift), and refuses async worlds where one fails.

#define SWIFT __attribute__((swiftcall))
#define ASYNC __attribute__((swiftasynccall))
#define CONTEXT __attribute__((swift_async_context)) void *

typedef struct {
  void *identity;
  uintptr_t implementation;
} executor;
typedef ASYNC void (*resume_function)(CONTEXT);
typedef ASYNC void (*switch_function)(CONTEXT, resume_function, void *, uintptr_t);

// Weak, because a program whose Swift is a later one must be refused, and not fail to link.
#define WEAK __attribute__((weak))
WEAK extern SWIFT void swift_job_run(void *, executor);
WEAK extern SWIFT void swift_job_run_on_serial_and_task_executor(void *, executor, executor);
WEAK extern SWIFT executor swift_task_getMainExecutor(void);
WEAK extern SWIFT executor swift_task_getCurrentExecutor(void);
WEAK extern SWIFT void **swift_task_suspend(void);
WEAK extern SWIFT void swift_task_enqueueTaskOnExecutor(void *, executor);
WEAK extern SWIFT uint64_t swift_task_getJobTaskId(void *);
WEAK extern SWIFT void swift_task_cancel(void *);
WEAK extern SWIFT void *swift_task_getCurrent(void);
WEAK extern void *swift_retain(void *);
WEAK extern void swift_release(void *);

static caw_callbacks calls;
// Without a call of the dynamic linker, which would cost each replacement a frame. A plug-in has room for a word of it.
static __thread __attribute__((tls_model("initial-exec"))) void *current;

void *caw_current(void) { return current; }

void *caw_exchange(void *world) {
  void *outer = current;
  current = world;
  return outer;
}

// The function that a slot had before. Any thread comes here by its slot, perhaps at the moment at which another one
// has replaced that, and reads the slot without an order: not every processor knows then what was written before.
static inline __attribute__((always_inline)) void *before(void **function) {
  void *known = __atomic_load_n(function, __ATOMIC_RELAXED);
#if !defined(__x86_64__)
  while (!known) known = __atomic_load_n(function, __ATOMIC_ACQUIRE);
#endif
  return known;
}
#define REAL(function) ((__typeof__(function))before((void **)&(function)))

// ---- jobs and Tasks

void caw_run(void *job, bool is_main) {
  executor none = {0, 0};
  if (is_main)
    swift_job_run(job, swift_task_getMainExecutor());
  else
    // This one never continues inline on another executor.
    swift_job_run_on_serial_and_task_executor(job, none, none);
}

void caw_enqueue(void *task, void *identity, uintptr_t implementation) {
  swift_task_enqueueTaskOnExecutor(task, (executor){identity, implementation});
}

void *caw_main(void) { return swift_task_getMainExecutor().identity; }
void *caw_current_task(void) { return swift_task_getCurrent ? swift_task_getCurrent() : NULL; }

bool caw_is_main(void *identity) { return identity && identity == swift_task_getMainExecutor().identity; }

// The low bits say how to compare two executors; the rest is the witness table, which default actors do not have.
bool caw_is_custom(void *identity, uintptr_t implementation) {
  return identity && (implementation & ~(uintptr_t)3) && !caw_is_main(identity);
}

// Words of a job: the object's two, two of the executor, flags and number, two more, the function that resumes it, its
// context. Of a Task: the status after those (ActiveTaskStatus).
enum { FLAGS = 4, RESUME = 7, RESUME_CONTEXT = 8, STATUS = 12 };
// Of an actor's own job: the actor, after the words of a job.
enum { ACTOR = 8 };
// Of the job of a continuation: its Task, after a word that is not used.
enum { CONTINUATION = 9 };
enum { CHILD = 1 << 24, ASYNC_LET = 1 << 28 };
enum { IS_CANCELLED = 0x100, IS_ENQUEUED = 0x1000, HAS_ENDED = 0x2000, HAS_PREFERENCE = 0x8000 };

static uint32_t flags(void *job) { return (uint32_t)((uint64_t *)job)[FLAGS]; }
static uint64_t status(void *task) { return __atomic_load_n((uint64_t *)task + STATUS, __ATOMIC_RELAXED); }

uint64_t caw_id(void *job) { return swift_task_getJobTaskId(job); }
int caw_job_kind(void *job) { return flags(job) & 0xff; }
bool caw_is_async_let(void *task) { return flags(task) & ASYNC_LET; }
bool caw_is_child(void *task) { return flags(task) & CHILD; }
bool caw_has_ended(void *task) { return status(task) & HAS_ENDED; }
bool caw_has_gone(void *task, uint64_t id) {
  // Read by the kernel, which does not mind an address that is none.
  uint64_t words[STATUS + 1];
  struct iovec to = {words, sizeof words}, from = {task, sizeof words};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)sizeof words) return true;
  return (uint32_t)(words[FLAGS] >> 32) != (uint32_t)id || words[STATUS] & HAS_ENDED;
}

bool caw_is_cancelled(void *task) { return status(task) & IS_CANCELLED; }
bool caw_has_preference(void *task) { return status(task) & HAS_PREFERENCE; }
bool caw_is_enqueued(void *task) { return status(task) & IS_ENQUEUED; }
void *caw_actor(void *job) { return ((void **)job)[ACTOR]; }
bool caw_continues(void *job, void *task) { return ((void **)job)[CONTINUATION] == task; }

void caw_enqueue_outside(void *task, void *identity, uintptr_t implementation) {
  void *world = caw_exchange(NULL);
  caw_enqueue(task, identity, implementation);
  caw_exchange(world);
}

void caw_retain(void *task) { swift_retain(task); }
void caw_release(void *task) { swift_release(task); }
void caw_cancel(void *task) { swift_task_cancel(task); }

int caw_waits(void *task, uintptr_t *addresses, int most) {
  // A context is the parent's, and the function by which the parent continues.
  uintptr_t *const *words = task;
  int count = 0;
  addresses[count++] = (uintptr_t)words[RESUME];
  for (const uintptr_t *context = words[RESUME_CONTEXT]; context && count < most; context = (void *)context[0])
    if (context[1]) addresses[count++] = context[1];
  return count;
}

// ---- births

typedef struct {
  void *task, *context;
} created;
typedef SWIFT created (*create_function)(size_t, void *, const void *, void *, void *);
static create_function real_create;

enum { CALLERS = 4 };

static SWIFT created create_task(size_t flags, void *options, const void *type, void *function, void *closure) {
  created task = REAL(real_create)(flags, options, type, function, closure);
  if (current) {
    uintptr_t callers[CALLERS];
    int count = 0;
    // Swift's code keeps frame pointers. The upper bits of one may be a mark.
    const uintptr_t *frame = __builtin_frame_address(0);
    while (count < CALLERS) {
      callers[count++] = frame[1];
      const uintptr_t *next = (const uintptr_t *)(frame[0] & ~((uintptr_t)0xf << 60));
      if (next <= frame || (uintptr_t)next - (uintptr_t)frame > 1 << 16 || (uintptr_t)next % sizeof(void *)) break;
      frame = next;
    }
    calls.created(current, task.task, callers, count);
  }
  return task;
}

// ---- locks of streams

static int (*real_lock)(pthread_mutex_t *);
// Where the function continues that locks a stream; 0 while unknown: then each lock may be one of a stream.
static uintptr_t stream_lock;
static __thread bool learns;

static int lock_mutex(pthread_mutex_t *mutex) {
  if (current) {
    uintptr_t caller = (uintptr_t)__builtin_return_address(0), known = __atomic_load_n(&stream_lock, __ATOMIC_RELAXED);
    if (learns && !known) __atomic_store_n(&stream_lock, caller, __ATOMIC_RELAXED);
    if (!known || caller == known) calls.used(current, mutex);
  }
  return REAL(real_lock)(mutex);
}

void caw_learn_stream(bool begins) { learns = begins; }
bool caw_knows_streams(void) { return __atomic_load_n(&stream_lock, __ATOMIC_RELAXED); }

// ---- hops

static switch_function real_switch;

static __attribute__((noinline)) ASYNC void switch_in_world(CONTEXT context, resume_function resume, void *identity,
                                                            uintptr_t implementation) {
  if (swift_task_getCurrentExecutor().identity != identity) {
    void **task = swift_task_suspend();
    task[RESUME] = (void *)resume;
    task[RESUME_CONTEXT] = context;
    calls.hop(current, task, identity, implementation);
    return;
  }
  __attribute__((musttail)) return REAL(real_switch)(context, resume, identity, implementation);
}

// Apart from the above, which saves registers: each hop of the program comes here, which outside of worlds is a load, a
// test and a jump.
static ASYNC void switch_task(CONTEXT context, resume_function resume, void *identity, uintptr_t implementation) {
  if (__builtin_expect(current != NULL, 0))
    __attribute__((musttail)) return switch_in_world(context, resume, identity, implementation);
  __attribute__((musttail)) return REAL(real_switch)(context, resume, identity, implementation);
}

// ---- clocks

static int (*real_clock)(clockid_t, struct timespec *);

// The date at which a world begins.
static const int64_t epoch = 1700000000LL * 1000000000LL;

static int virtual_clock(clockid_t clock, struct timespec *time) {
  int64_t now;
  if (!current) return REAL(real_clock)(clock, time);
  switch (clock) {
  case CLOCK_REALTIME:
  case CLOCK_REALTIME_COARSE: now = calls.now(current) + epoch; break;
  case CLOCK_MONOTONIC:
  case CLOCK_MONOTONIC_RAW:
  case CLOCK_MONOTONIC_COARSE:
  case CLOCK_BOOTTIME: now = calls.now(current); break;
  default: return REAL(real_clock)(clock, time);  // processor time
  }
  *time = (struct timespec){now / 1000000000, now % 1000000000};
  return 0;
}

static time_t (*real_time)(time_t *);
static time_t virtual_time(time_t *result) {
  if (!current) return REAL(real_time)(result);
  time_t now = (calls.now(current) + epoch) / 1000000000;
  if (result) *result = now;
  return now;
}

static int (*real_day)(struct timeval *, void *);
static int virtual_day(struct timeval *result, void *zone) {
  if (!current || !result) return REAL(real_day)(result, zone);
  int64_t now = calls.now(current) + epoch;
  *result = (struct timeval){now / 1000000000, now % 1000000000 / 1000};
  return 0;
}

// ---- exits

WEAK extern void *_Block_copy(const void *);
WEAK extern void _Block_release(const void *);
WEAK extern void dispatch_retain(void *);
WEAK extern void dispatch_release(void *);
WEAK extern char _dispatch_main_q;
typedef void (*work_function)(void *);
// Words of a block: its class, its flags, the function, which gets the block.
enum { INVOKE = 2 };

static bool take_block(const char *function, void *queue, void *block) {
  if (!_Block_copy || !calls.takes_work(current, function)) return false;
  void **copy = _Block_copy(block);
  dispatch_retain(queue);
  calls.take_work(current, queue, copy, copy[INVOKE], true);
  return true;
}

static bool take_function(const char *function, void *queue, void *context, void *work) {
  if (!calls.takes_work(current, function)) return false;
  dispatch_retain(queue);
  calls.take_work(current, queue, context, work, false);
  return true;
}

// What leaves the world; what it may take; and what runs in the call, after what the queue has taken.
#define EXITS(X)                                                                                                       \
  X(dispatch_after) X(dispatch_after_f) X(dispatch_group_async) X(dispatch_group_async_f) X(dispatch_group_notify)     \
  X(dispatch_group_notify_f) X(dispatch_apply) X(dispatch_apply_f) X(dispatch_block_notify)                            \
  X(dispatch_read) X(dispatch_write) X(dispatch_io_read) X(dispatch_io_write)
#define BLOCKS(X) X(dispatch_async) X(dispatch_barrier_async)
#define FUNCTIONS(X) X(dispatch_async_f) X(dispatch_barrier_async_f)
#define SYNCS(X) X(dispatch_sync) X(dispatch_sync_f) X(dispatch_barrier_sync) X(dispatch_barrier_sync_f)
#define QUEUES(X) EXITS(X) BLOCKS(X) FUNCTIONS(X) SYNCS(X)

// All of them have at most five parameters, each of them a word.
typedef long (*any_function)(long, long, long, long, long);
#define REPLACE(name, is_taken)                                                                                        \
  static any_function real_##name;                                                                                     \
  static long leave_by_##name(long a, long b, long c, long d, long e) {                                                \
    if (current && (is_taken)) return 0;                                                                               \
    return REAL(real_##name)(a, b, c, d, e);                                                                           \
  }
#define EXIT(name) REPLACE(name, (calls.leave(current, #name), false))
#define BLOCK(name) REPLACE(name, take_block(#name, (void *)a, (void *)b))
#define FUNCTION(name) REPLACE(name, take_function(#name, (void *)a, (void *)b, (void *)c))
#define SYNC(name) REPLACE(name, (calls.run_work(current, (void *)a), false))
EXITS(EXIT)
EXIT(pthread_create)
BLOCKS(BLOCK)
FUNCTIONS(FUNCTION)
SYNCS(SYNC)

void caw_work(void *context, void *function) { ((work_function)function)(context); }
void caw_release_work(void *block, void *queue) {
  if (block) _Block_release(block);
  dispatch_release(queue);
}
bool caw_is_main_queue(void *queue) { return queue == &_dispatch_main_q; }

// ---- traps

static struct sigaction old_illegal, old_trap, old_abort;

// Swift ends a program by an illegal instruction, or by a breakpoint on ARM. Neither comes from inside of malloc. The
// instruction runs again afterwards, and the handler that was there before gets the signal. Its runtime calls abort, as
// for accesses that overlap: that sends a signal to its own thread, and the former handler is called from here, because
// it reads the registers. So does malloc where the heap is broken, under the lock that the report then waits for: the
// alarm ends the process.
static void on_trap(int signal, siginfo_t *info, void *registers) {
  sigaction(SIGILL, &old_illegal, NULL);
  sigaction(SIGTRAP, &old_trap, NULL);
  sigaction(SIGABRT, &old_abort, NULL);
  bool is_abort = signal == SIGABRT;
  if (current && (!is_abort || (info->si_code == SI_TKILL && info->si_pid == getpid()))) {
    if (is_abort) {
      struct sigaction none = {.sa_handler = SIG_DFL};
      sigaction(SIGALRM, &none, NULL);
      alarm(10);
    }
    calls.trapped(current);
  }
  if (!is_abort) return;
  if (old_abort.sa_flags & SA_SIGINFO)
    old_abort.sa_sigaction(signal, info, registers);
  else
    raise(signal);
}

static void handle_traps(void) {
  struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  action.sa_sigaction = on_trap;
  sigemptyset(&action.sa_mask);
  sigaction(SIGILL, &action, &old_illegal);
  sigaction(SIGTRAP, &action, &old_trap);
  sigaction(SIGABRT, &action, &old_abort);
}

// ---- slots

enum { HOP, CLOCK, LOCK, EXIT, THREAD };
typedef struct {
  const char *name;
  void *replacement;
  void **real;
  int kind;
} replaced;

#define ROW(name) {#name, (void *)leave_by_##name, (void **)&real_##name, EXIT},
static const replaced table[] = {
    {"swift_task_switch", (void *)switch_task, (void **)&real_switch, HOP},
    {"swift_task_create", (void *)create_task, (void **)&real_create, HOP},
    {"clock_gettime", (void *)virtual_clock, (void **)&real_clock, CLOCK},
    {"time", (void *)virtual_time, (void **)&real_time, CLOCK},
    {"gettimeofday", (void *)virtual_day, (void **)&real_day, CLOCK},
    {"pthread_mutex_lock", (void *)lock_mutex, (void **)&real_lock, LOCK},
    QUEUES(ROW) //
    {"pthread_create", (void *)leave_by_pthread_create, (void **)&real_pthread_create, THREAD}};
enum { COUNT = sizeof table / sizeof *table };

static caw_slots slots;

static bool is_program(const char *object) { return !*object; }

static bool is_meant(const char *object, int kind) {
  const char *file = strrchr(object, '/');
  file = file ? file + 1 : object;
  switch (kind) {
  case HOP: return true;
  case CLOCK:
    return is_program(object) || strstr(file, "libswift_Concurrency") || strstr(file, "Foundation");
  case LOCK: return strstr(file, "libswift_Concurrency");
  // Not of the program: the runtime of coroutines is linked into it, and begins threads of its own.
  case THREAD: return !is_program(object) && strstr(file, "Foundation");
  default:
    // Swift's own executors use Dispatch too, and so may a test library; neither carries the program's code away.
    return !strstr(file, "libdispatch") && !strstr(file, "libswift_Concurrency") && !strstr(file, "libTesting")
           && !strstr(file, "XCTest") && strncmp(file, "libc.", 5) && strncmp(file, "libstdc++", 9)
           && strncmp(file, "libpthread", 10) && strncmp(file, "ld-linux", 8);
  }
}

static void replace(void **slot, void *replacement, struct dl_phdr_info *info) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)slot;
  bool is_read_only = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_RELRO && address >= start && address < start + header->p_memsz) is_read_only = true;
  }
  void *first = (void *)(address & -page);
  if (is_read_only) mprotect(first, page, PROT_READ | PROT_WRITE);
  __atomic_store_n(slot, replacement, __ATOMIC_RELEASE);
  if (is_read_only) mprotect(first, page, PROT_READ);
}

static void look(struct dl_phdr_info *info, const ElfW(Rela) *all, size_t bytes, const ElfW(Sym) *symbols,
                 const char *strings) {
  for (size_t i = 0; all && i < bytes / sizeof *all; i++) {
    size_t symbol = ELF64_R_SYM(all[i].r_info);
    if (!symbol) continue;
    const char *name = strings + symbols[symbol].st_name;
    for (int k = 0; k < COUNT; k++) {
      if (strcmp(name, table[k].name) || !is_meant(info->dlpi_name, table[k].kind) || !*table[k].real) continue;
      void **slot = (void **)(info->dlpi_addr + all[i].r_offset);
      if (*slot != table[k].replacement) replace(slot, table[k].replacement, info);
      if (table[k].replacement == (void *)create_task || table[k].kind == LOCK) continue;
      *(table[k].kind == HOP ? &slots.hops : table[k].kind == CLOCK ? &slots.clocks : &slots.exits) += 1;
    }
  }
}

static int look_through(struct dl_phdr_info *info, size_t size, void *data) {
  uintptr_t tags[64] = {0};
  (void)size, (void)data;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    for (const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag; d++)
      if (d->d_tag > 0 && d->d_tag < 64) tags[d->d_tag] = d->d_un.d_ptr;
  }
  // The kernel's own object has offsets in the place of addresses.
  if (tags[DT_SYMTAB] < info->dlpi_addr || !tags[DT_SYMTAB] || !tags[DT_STRTAB]) return 0;
  const void *symbols = (const void *)tags[DT_SYMTAB];
  const char *strings = (const char *)tags[DT_STRTAB];
  look(info, (const void *)tags[DT_JMPREL], tags[DT_PLTRELSZ], symbols, strings);
  look(info, (const void *)tags[DT_RELA], tags[DT_RELASZ], symbols, strings);
  return 0;
}

static int read_loads(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(unsigned long long *)data = info->dlpi_adds;
  return 1;
}

caw_slots caw_install(const caw_callbacks *callbacks) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static unsigned long long seen;
  unsigned long long loads = 0;
  pthread_mutex_lock(&lock);
  dl_iterate_phdr(read_loads, &loads);
  if (loads != seen) {
    calls = *callbacks;
    bool has_all = swift_job_run && swift_job_run_on_serial_and_task_executor && swift_task_getMainExecutor
                   && swift_task_getCurrentExecutor && swift_task_suspend && swift_task_enqueueTaskOnExecutor
                   && swift_task_getJobTaskId && swift_task_cancel;
    for (int k = 0; k < COUNT; k++)
      if (!*table[k].real) __atomic_store_n(table[k].real, dlsym(RTLD_DEFAULT, table[k].name), __ATOMIC_RELEASE);
    slots = (caw_slots){0, 0, 0};
    if (!seen && has_all) handle_traps();
    if (has_all) dl_iterate_phdr(look_through, 0);
    seen = loads;
  }
  caw_slots result = slots;
  pthread_mutex_unlock(&lock);
  return result;
}
