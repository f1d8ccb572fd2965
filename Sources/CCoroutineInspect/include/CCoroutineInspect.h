// Looking at coroutines from outside: their frames, the names of code addresses, what debuggers and reports read.
//
// Linking this module makes the process say more about overflows and fatal signals (Reports.c).
#ifndef CCOROUTINE_INSPECT_H
#define CCOROUTINE_INSPECT_H

// By its place: a compiler that is given the maps of the modules alone need not know the folder.
#include "../../CCoroutine/include/CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

// ------------------------------------------------------------------------------------------------------ the walk

/// Whether stacks can be walked in this process.
typedef enum cco_walk_status CCO_IS(uint32_t) {
  CCO_WALK_READY = 0,
  CCO_WALK_SANITIZED = 1,  ///< the build has a sanitizer, which would report the reads
  CCO_WALK_UNPROVEN = 2,   ///< a walk of a known stack has given other frames than it has
  CCO_WALK_NO_MEMORY = 3,  ///< there was no memory or no stack to find out, or for the list of images
} cco_walk_status;

/// One English sentence about a status. Static storage.
const char *cco_walk_message(cco_walk_status status);

typedef enum cco_walk_outcome CCO_IS(uint32_t) {
  CCO_WALK_WALKED = 0,
  CCO_WALK_MOVED = 1,  ///< the coroutine ran meanwhile, or has not left its stack yet: nothing is known
  CCO_WALK_NONE = 2,   ///< it has no stack
} cco_walk_outcome;

/// The most frames that a walk returns: the innermost ones.
enum { CCO_MOST_FRAMES = 256 };

/// A coroutine whose stack is wanted. The caller holds the record of which `context`, `wait` and `since` are words.
typedef struct cco_walk_target {
  const void *context;     ///< the word that holds the address of the coroutine's context, or NULL
  const uint64_t *wait;    ///< the word that changes at the beginning and at the end of each wait
  const uint64_t *since;   ///< the word that changes at each yield
  uint64_t wait_word;      ///< what the two were when the coroutine was seen parked
  uint64_t since_word;
  uintptr_t *frames;       ///< room for `most` addresses
  uint32_t most;
  uint32_t count;          ///< out: the number of frames
  cco_walk_outcome outcome;
  bool is_whole;           ///< out: whether the last frame is the first function of the coroutine
  const cco_context *_Nullable own;
  const void *_Nullable stack;
} cco_walk_target;

/// What is found out once for many walks.
typedef struct cco_walk {
  struct cco_code_range *_Nullable code;
  uint32_t count;
  uint32_t last;
} cco_walk;

/// Begins walks: until cco_walk_end no memory of stacks is unmapped. If the status is not CCO_WALK_READY, nothing has
/// begun. Any thread, several at a time.
cco_walk_status cco_walk_begin(cco_walk *walk);
void cco_walk_end(cco_walk *walk);

/// Walks `count` stacks. Stops and wakes nothing, takes no lock. About a microsecond a stack that is not in the cache.
void cco_walk_stacks(cco_walk *walk, cco_walk_target *targets, size_t count);

/// Walks the frames of the calling thread's interrupted coroutine, from a signal handler: the return addresses from
/// `pc` and `frame` on, as long as they lie between `stack` and the top of the stack of `context`, then those of the
/// flows that have stepped it. `is_whole`: whether the last frame is the first function of the coroutine.
/// Async-signal-safe.
size_t cco_walk_interrupted(const cco_context *context, uintptr_t pc, uintptr_t frame, uintptr_t stack,
                            uintptr_t *frames, size_t most, bool *is_whole);

/// Interrupts a thread of this process by SIGURG, and writes the frames of the coroutine that it runs into `frames`:
/// the interrupted address, then return addresses, `most` at most. Returns their number; 0 if the thread runs no
/// coroutine or does not answer within `nanoseconds`, if another thread asks meanwhile, if the program handles the
/// signal, and in builds with a sanitizer. `is_whole` as cco_walk_interrupted sets it. Blocks the caller until then.
/// Any thread but that one (AskThread.c).
size_t cco_ask_thread(int thread, uintptr_t *frames, size_t most, uint64_t nanoseconds, bool *is_whole);

/// Whether the thread with these frames, as cco_ask_thread gives them, waits for the initial value of a `static let` or
/// a global of Swift. Takes locks of the loader; any thread (Once.c).
bool cco_waits_for_initial_value(const uintptr_t *frames, size_t count);

// --------------------------------------------------------------------------------------------------------- symbols

/// What is known of a code address. The strings belong to the table, and live as long as the process.
typedef struct cco_symbol {
  const char *_Nullable image;     ///< the path of the program or library
  const char *_Nullable build_id;  ///< in hexadecimal digits
  char *_Nullable name;            ///< mangled; the caller frees it
} cco_symbol;

/// Finds the function that contains `address`: in the symbol table of its image, which is read from the file at the
/// first address in it, else in its dynamic one. A file that is not the one in memory any more gives no name. Any
/// thread; takes a lock, and reads files.
void cco_find_symbol(uintptr_t address, cco_symbol *symbol);

/// How many libraries have been unloaded so far: what was found before may be of one of them. Takes the loader's lock.
uint64_t cco_unloaded_images(void);

/// The name as a program would write it, for names of Swift and of C++; NULL for others. The caller frees it.
char *_Nullable cco_demangle_cxx(const char *name);
extern char *_Nullable swift_demangle(const char *name, size_t length, char *_Nullable buffer,
                                      size_t *_Nullable buffer_size, uint32_t flags);
static inline char *_Nullable cco_demangle_swift(const char *name, size_t length) {
  return swift_demangle(name, length, 0, 0, 0);
}

// ------------------------------------------------------------------------------------------------------- incidents

/// What the flight recorder writes files about (Incident.c).
typedef enum cco_incident CCO_IS(uint32_t) {
  CCO_INCIDENT_STALL = 0,
  CCO_INCIDENT_DEADLOCK = 1,
  CCO_INCIDENT_SIGNAL = 2,
} cco_incident;

/// Notes an incident for the writer; nothing without one. Any thread. Async-signal-safe.
void cco_note_incident(cco_incident incident);

/// Notes a fatal signal, and waits until the writer has written, for some seconds at most; nothing without a writer.
/// Called by the handler of a fatal signal.
void cco_note_fatal_signal(void);

/// From now on incidents are noted. Called once in a process, before the writer's thread starts; the second one if that
/// has failed.
void cco_begin_incidents(void);
void cco_forget_incidents(void);

/// Waits for incidents, and returns a bit for each of them: 1 << CCO_INCIDENT_STALL and so on. Called by the writer.
uint32_t cco_take_incidents(void);

/// Says that the writer has written about these.
void cco_end_incidents(uint32_t taken);

// ------------------------------------------------------------------------------------------------------- debuggers

/// The table for debuggers (Debug.c). All words of 64 bits.
typedef struct cco_debug {
  uint64_t version;
  uint64_t count;  ///< of the words that follow
  const void *slabs;
  uint64_t slab_bytes, most_slabs, slab_base, slab_class, slab_fresh;
  const void *classes;
  uint64_t class_bytes, class_stride, block_bytes, colours;
  uint64_t context_bytes, context_stack, context_caller, context_phase, context_low, context_label, phase_running;
  uint64_t label_id, label_name, label_file, label_length, label_line;
  uint64_t record_label, record_wait, record_flags, record_kind, record_since, record_source, flag_cancelled;
  const void *root;  ///< the return address of the last frame of each stack
  const char *kinds;  ///< the names of the kinds of waits, with spaces between them
  uint64_t slab_length;
} cco_debug;
extern const cco_debug cco_debug_v1;

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
