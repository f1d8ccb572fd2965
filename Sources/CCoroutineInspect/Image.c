// The image that contains this runtime: the program, or a library that it has loaded.
//
// A plug-in with the runtime inside must not be unloaded once it has a thread or a handler of a signal: they would run
// code that is gone. So the image pins itself before the first of them.
//
// Two images of one process may contain the runtime each: a plug-in that links it statically, in a program that does so
// as well. Each copy has its own workers and its own thread-local words, so a coroutine of one is no coroutine for the
// other. Whichever copy starts second finds the first by its note (Debug.c), and says so in one line.
#include "CCoroutineInspect.h"
#include "Line.h"
#include "Reports.h"

#include <dlfcn.h>
#include <link.h>

extern const cco_debug cco_debug_table __attribute__((visibility("hidden")));

static const struct link_map *own_image(void) {
  Dl_info unused;
  struct link_map *map = NULL;
  return dladdr1((const void *)own_image, &unused, (void **)&map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

static void pin(const struct link_map *image) {
  // The program has no name, and stays.
  if (image != NULL && image->l_name[0] != 0) (void)dlopen(image->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

// Whether a note is that of the runtime, whose only word is the distance to the table of a copy.
static const cco_debug *table_of(const ElfW(Nhdr) *note) {
  static const char name[] = "Coroutine";
  if (note->n_type != 1 || note->n_namesz != sizeof name || note->n_descsz != sizeof(int64_t)) return NULL;
  if (memcmp(note + 1, name, sizeof name) != 0) return NULL;
  const char *distance = (const char *)(note + 1) + ((sizeof name + 3) & ~(size_t)3);
  int64_t bytes;
  memcpy(&bytes, distance, sizeof bytes);
  return (const cco_debug *)(distance + bytes);
}

static bool is_in_use(const cco_debug *table) {
  return *(char *const *)((const char *)table->slabs + table->slab_base) != NULL;
}

static int look_at_image(struct dl_phdr_info *image, size_t size, void *found) {
  (void)size;
  for (int i = 0; i < image->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &image->dlpi_phdr[i];
    if (part->p_type != PT_NOTE) continue;
    const char *at = (const char *)(image->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
      const cco_debug *table = table_of(note);
      if (table != NULL && table != &cco_debug_table && table->version == cco_debug_table.version && is_in_use(table)) {
        *(const char **)found = image->dlpi_name[0] != 0 ? image->dlpi_name : "the program";
        return 1;
      }
      at += sizeof *note + ((note->n_namesz + 3) & ~3U) + ((note->n_descsz + 3) & ~3U);
    }
  }
  return 0;
}

void cco_settle_image(void) {
  const struct link_map *image = own_image();
  pin(image);
  const char *other = NULL;
  if (dl_iterate_phdr(look_at_image, &other) == 0) return;
  cco_line l = {.length = 0};
  cco_line_add(&l, "Coroutine: this process has two copies of the runtime, in ");
  cco_line_add_escaped(&l, other, strnlen(other, 500), 500);
  cco_line_add(&l, " and in ");
  const char *mine = image != NULL && image->l_name[0] != 0 ? image->l_name : "the program";
  cco_line_add_escaped(&l, mine, strnlen(mine, 500), 500);
  cco_line_add(&l, ". A coroutine of one cannot wait for the other's; ");
  cco_line_add(&l, "build the library as one shared library for both.");
  cco_line_write(&l);
}
