// The line about a coroutine whose thread got a fatal signal: the coroutine's number, name and launch site, and the
// frames with the build IDs of their images. Swift's backtracer is off in most deployments, takes seconds where it is
// on, and knows no coroutine; so this line comes first, and in stripped programs too. `llvm-symbolizer` makes names and
// lines of it later, elsewhere:
//
//     coroutine "fetch" (id 7) got SIGILL at 0x55d0c0ffee12; launched at Server/main.swift:12; frames Server+0x1a2b
//     Server+0x2c3d libc.so.6+0x4e5f; images Server 3fa8…, libc.so.6 c048…
//
// Async-signal-safe. The frames are walked on the thread's own stack (cco_walk_interrupted). Images are found by
// _dl_find_object, which takes no lock; the C library has it from 2.35 on, and before that the addresses stay as they
// are. A build ID is read in the image's memory.
#include "Line.h"
#include "BuildID.h"
#include "CCoroutineInspect.h"
#include "Reports.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>

// FRAMES: the innermost frames of a line. IMAGES: the images whose build IDs it has.
enum { FRAMES = 40, IMAGES = 8, MOST_LINES = 16 };

// A program may have a handler that repairs faults and goes on. It gets a few of these lines, and not one a fault.
static atomic_uint written;

// Declared here, because older headers do not have it; weak, because older libraries do not.
struct found_object {
  unsigned long long flags;
  void *low, *high;
  struct link_map *map;
  void *frames;
  unsigned long long reserved[7];
};
extern int find_object(void *address, struct found_object *result) __asm__("_dl_find_object") __attribute__((weak));

static char program[256];

void cco_fatal_reports_start(void) {
  char path[1024];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = 0;
  const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
  strncpy(program, name, sizeof program - 1);
}

static const char *name_of(const struct link_map *map) {
  if (map->l_name == NULL || map->l_name[0] == 0) return program;
  const char *slash = strrchr(map->l_name, '/');
  return slash != NULL ? slash + 1 : map->l_name;
}

static void add_name(cco_line *l, const char *name) { cco_line_add_escaped(l, name, strnlen(name, 256), 100); }

typedef struct image_list {
  struct found_object objects[IMAGES];
  size_t count;
} image_list;

static void add_frame(cco_line *l, uintptr_t address, image_list *images) {
  struct found_object object;
  cco_line_add(l, " ");
  if (find_object == NULL || find_object((void *)address, &object) != 0) return cco_line_add_hexadecimal(l, address);
  add_name(l, name_of(object.map));
  cco_line_add(l, "+");
  cco_line_add_hexadecimal(l, address - object.map->l_addr);
  for (size_t i = 0; i < images->count; i++)
    if (images->objects[i].map == object.map) return;
  if (images->count < IMAGES) images->objects[images->count++] = object;
}

static void add_build_id(cco_line *l, const struct found_object *object) {
  char id[CCO_BUILD_ID_TEXT] = "";
  const ElfW(Ehdr) *head = object->low;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG) == 0) {
    const ElfW(Phdr) *parts = (const ElfW(Phdr) *)((const char *)head + head->e_phoff);
    for (int i = 0; i < head->e_phnum && id[0] == 0; i++) {
      if (parts[i].p_type == PT_NOTE)
        cco_find_build_id((const char *)(object->map->l_addr + parts[i].p_vaddr), parts[i].p_memsz, id);
    }
  }
  cco_line_add(l, " ");
  add_name(l, name_of(object->map));
  cco_line_add(l, " ");
  cco_line_add(l, id[0] != 0 ? id : "without build ID");
}

// libdispatch traps where a lock of its thread is given by another one. That is in the coroutine that has waited, or in
// one that runs on the thread later.
static void add_rule_of_dispatch(cco_line *l, int signal, uintptr_t pc) {
  struct found_object object;
  if ((signal != SIGILL && signal != SIGTRAP) || find_object == NULL || find_object((void *)pc, &object) != 0) return;
  if (strncmp(name_of(object.map), "libdispatch.so", strlen("libdispatch.so")) != 0) return;
  cco_line_add(l,
               "; this is a trap of libdispatch: did this coroutine or another one wait inside of DispatchQueue.sync? "
               "Use co_launch(on:) and join in its place");
}

static const char *name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGILL: return "SIGILL";
    case SIGFPE: return "SIGFPE";
    case SIGABRT: return "SIGABRT";
    case SIGTRAP: return "SIGTRAP";
  }
  return "a signal";
}

void cco_write_fatal_report(const cco_context *context, int signal, uintptr_t pc, uintptr_t frame, uintptr_t stack) {
  const cco_label *label = context->label;
  if (label == NULL || atomic_fetch_add_explicit(&written, 1, memory_order_relaxed) >= MOST_LINES) return;
  cco_line l = {.length = 0};
  image_list images = {.count = 0};
  uintptr_t frames[FRAMES];
  // The interrupted instruction is no return address. Its frame may not exist yet, or no more: then its caller is left
  // out, or there twice, and the rest is right.
  bool is_whole;
  size_t count = cco_walk_interrupted(context, pc, frame, stack, frames, FRAMES, &is_whole);
  cco_line_add_coroutine(&l, label);
  cco_line_add(&l, " got ");
  cco_line_add(&l, name_of_signal(signal));
  cco_line_add(&l, " at ");
  cco_line_add_hexadecimal(&l, pc);
  cco_line_add_launch_site(&l, label);
  add_rule_of_dispatch(&l, signal, pc);
  cco_line_add(&l, "; frames");
  for (size_t i = 0; i < count; i++) add_frame(&l, frames[i], &images);
  if (images.count > 0) cco_line_add(&l, "; images");
  for (size_t i = 0; i < images.count; i++) {
    if (i > 0) cco_line_add(&l, ",");
    add_build_id(&l, &images.objects[i]);
  }
  cco_line_write(&l);
}
