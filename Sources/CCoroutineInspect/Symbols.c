// Names of code addresses, read from the symbol tables of the files. dladdr would find one name in ten: specialised,
// private and local functions are in .symtab only.
//
//   image   UNKNOWN --the first address in it--> READ, or WITHOUT NAMES    (each once; under `images_lock`)
//
// Invariants
//  1. `images_lock` covers everything here. The strings that are handed out are never freed; a name is a copy.
//  2. A table is of the image that is in memory: the file's build ID is the one in memory, or both have none. A program
//     that was replaced on disk has no names, and no wrong ones.
//  3. Nothing of a file is mapped, because a file that is cut short meanwhile would end the process. Sizes and offsets
//     come from the file, so each of them is checked against its size, by `read_part`.
//  4. A library that was unloaded keeps its entry. Another one in its place has another path or build ID, and gets an
//     entry of its own: the list is searched for base address, path and build ID.
//
// Memory: 16 bytes for each function of an image that an address was in. Names are read from the file when they are
// wanted, because they are ten times as long.
#include "CCoroutineInspect.h"
#include "BuildID.h"
#include "Stack/Lock.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct function {
  uint64_t start;  // from the base of the image
  uint32_t size, name;
} function;

typedef struct image {
  struct image *next;
  uintptr_t base;
  char *path;      // as reports show it
  char *build_id;  // NULL if there is none
  bool is_program;
  function *functions;  // sorted by start
  size_t count;
  uint64_t names, names_size;  // the part of the file that holds the names
  dev_t device;                // of the file that the functions were read from
  ino_t inode;
} image;

enum { LONGEST_NAME = 16 << 10, MOST_FUNCTIONS = 16 << 20 };

static cco_lock images_lock;

// A forked child gets the lock back. A thread of the parent may have been adding an image, which is lost.
static void in_child(void) { cco_lock_free_in_child(&images_lock); }
__attribute__((constructor)) static void register_handler(void) { pthread_atfork(NULL, NULL, in_child); }

static image *images;

// ---- the images in memory

typedef struct wanted {
  uintptr_t address, base;
  const char *path;
  char build_id[CCO_BUILD_ID_TEXT];
  bool is_found, is_program;
} wanted;

static int match_image(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  wanted *w = argument;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && w->address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz) w->is_found = true;
  }
  if (!w->is_found) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type == PT_NOTE && w->build_id[0] == 0)
      cco_find_build_id((const char *)(info->dlpi_addr + part->p_vaddr), part->p_memsz, w->build_id);
  }
  w->base = info->dlpi_addr;
  w->is_program = info->dlpi_name == NULL || info->dlpi_name[0] == 0;
  w->path = w->is_program ? NULL : strdup(info->dlpi_name);
  return 1;
}

// ---- the tables in files

static bool read_part(int file, uint64_t size, uint64_t at, void *into, size_t count) {
  if (at > size || count > size - at) return false;
  size_t done = 0;
  while (done < count) {
    ssize_t got = pread(file, (char *)into + done, count - done, (off_t)(at + done));
    if (got <= 0) return false;
    done += (size_t)got;
  }
  return true;
}

static int by_start(const void *a, const void *b) {
  const function *x = a, *y = b;
  return x->start < y->start ? -1 : x->start > y->start;
}

static void read_functions(image *i, int file, uint64_t size, const ElfW(Shdr) *table, const ElfW(Shdr) *names) {
  ElfW(Sym) some[256];
  uint64_t all = table->sh_size / sizeof *some, room = 0;
  if (all > MOST_FUNCTIONS) return;
  for (uint64_t first = 0; first < all; first += 256) {
    size_t count = all - first < 256 ? (size_t)(all - first) : 256;
    if (!read_part(file, size, table->sh_offset + first * sizeof *some, some, count * sizeof *some)) break;
    for (size_t k = 0; k < count; k++) {
      unsigned type = ELF64_ST_TYPE(some[k].st_info);
      bool is_function = type == STT_FUNC || type == STT_GNU_IFUNC;
      if (!is_function || some[k].st_shndx == SHN_UNDEF || some[k].st_value == 0) continue;
      if (i->count == room) {
        function *more = realloc(i->functions, (room = room == 0 ? 1024 : 2 * room) * sizeof *more);
        if (more == NULL) return;
        i->functions = more;
      }
      uint32_t length = some[k].st_size > UINT32_MAX ? UINT32_MAX : (uint32_t)some[k].st_size;
      i->functions[i->count++] = (function){some[k].st_value, length, some[k].st_name};
    }
  }
  qsort(i->functions, i->count, sizeof *i->functions, by_start);
  i->names = names->sh_offset;
  i->names_size = names->sh_size;
}

static int open_image(const image *i, struct stat *facts) {
  int file = open(i->is_program ? "/proc/self/exe" : i->path, O_RDONLY | O_CLOEXEC);
  if (file >= 0 && fstat(file, facts) == 0 && S_ISREG(facts->st_mode)) return file;
  if (file >= 0) close(file);
  return -1;
}

// Whether the file has the build ID of the image in memory.
static bool is_same(const image *i, int file, uint64_t size, const ElfW(Shdr) *sections, size_t count) {
  char found[CCO_BUILD_ID_TEXT] = "";
  for (size_t k = 0; k < count && found[0] == 0; k++) {
    char notes[1024];
    size_t bytes = sections[k].sh_size < sizeof notes ? (size_t)sections[k].sh_size : sizeof notes;
    if (sections[k].sh_type == SHT_NOTE && read_part(file, size, sections[k].sh_offset, notes, bytes))
      cco_find_build_id(notes, bytes, found);
  }
  return strcmp(found, i->build_id != NULL ? i->build_id : "") == 0;
}

static void read_image(image *i) {
  struct stat facts;
  int file = open_image(i, &facts);
  if (file < 0) return;
  uint64_t size = (uint64_t)facts.st_size;
  i->device = facts.st_dev;
  i->inode = facts.st_ino;
  ElfW(Ehdr) head;
  ElfW(Shdr) *sections = NULL;
  const ElfW(Shdr) *table = NULL;
  if (read_part(file, size, 0, &head, sizeof head) && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
      head.e_shentsize == sizeof *sections && head.e_shnum > 0) {
    sections = malloc(head.e_shnum * sizeof *sections);
    if (sections != NULL && read_part(file, size, head.e_shoff, sections, head.e_shnum * sizeof *sections) &&
        is_same(i, file, size, sections, head.e_shnum)) {
      for (int k = 0; k < head.e_shnum; k++) {
        if (sections[k].sh_type == SHT_SYMTAB || (sections[k].sh_type == SHT_DYNSYM && table == NULL))
          table = &sections[k];
      }
      if (table != NULL && table->sh_link < head.e_shnum)
        read_functions(i, file, size, table, &sections[table->sh_link]);
    }
  }
  free(sections);
  close(file);
}

// ---- the search

static char *copy_program_path(void) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return strndup(path, length > 0 ? (size_t)length : 0);
}

// Returns the entry of the image that contains `address`; NULL if there is none, or no memory.
static image *image_at(uintptr_t address) {
  wanted w = {.address = address};
  dl_iterate_phdr(match_image, &w);
  if (!w.is_found) return NULL;
  for (image *i = images; i != NULL; i = i->next) {
    bool is_it = i->base == w.base && i->is_program == w.is_program &&
                 strcmp(i->build_id != NULL ? i->build_id : "", w.build_id) == 0 &&
                 (w.path == NULL || strcmp(i->path, w.path) == 0);
    if (!is_it) continue;
    free((void *)w.path);
    return i;
  }
  image *made = calloc(1, sizeof *made);
  if (made == NULL) return NULL;
  made->base = w.base;
  made->is_program = w.is_program;
  made->path = w.is_program ? copy_program_path() : (char *)w.path;
  made->build_id = w.build_id[0] != 0 ? strdup(w.build_id) : NULL;
  if (made->path == NULL) made->path = strdup("");
  read_image(made);
  made->next = images;
  images = made;
  return made;
}

// The last function that begins at or before `offset`. One without a size reaches to the next one.
static const function *function_at(const image *i, uint64_t offset) {
  size_t low = 0, high = i->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (i->functions[middle].start <= offset)
      low = middle + 1;
    else
      high = middle;
  }
  // Of several that begin there, one that contains the address.
  for (size_t k = low; k > 0 && k + 8 > low; k--) {
    const function *f = &i->functions[k - 1];
    if (f->size == 0 ? f->start == i->functions[low - 1].start : offset - f->start < f->size) return f;
  }
  return NULL;
}

static char *copy_name(const image *i, const function *f) {
  if (f->name >= i->names_size) return NULL;
  struct stat facts;
  int file = open_image(i, &facts);
  if (file < 0) return NULL;
  uint64_t size = (uint64_t)facts.st_size, rest = i->names_size - f->name;
  size_t room = rest < LONGEST_NAME ? (size_t)rest : LONGEST_NAME;
  char *name = malloc(room + 1);
  // Most names are short.
  for (size_t count = 256; name != NULL; count = room) {
    if (count > room) count = room;
    // Another file, if the library was replaced since its functions were read.
    if (facts.st_dev != i->device || facts.st_ino != i->inode ||
        !read_part(file, size, i->names + f->name, name, count)) {
      free(name);
      name = NULL;
      break;
    }
    name[count] = 0;
    if (memchr(name, 0, count) != NULL || count == room) break;
  }
  close(file);
  return name;
}

void cco_find_symbol(uintptr_t address, cco_symbol *symbol) {
  *symbol = (cco_symbol){.image = NULL};
  cco_lock_take(&images_lock);
  image *i = image_at(address);
  if (i != NULL) {
    symbol->image = i->path;
    symbol->build_id = i->build_id;
    const function *f = function_at(i, address - i->base);
    if (f != NULL) symbol->name = copy_name(i, f);
  }
  cco_lock_leave(&images_lock);
}

static int read_removals(struct dl_phdr_info *info, size_t size, void *count) {
  if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) *(uint64_t *)count = info->dlpi_subs;
  return 1;
}

uint64_t cco_unloaded_images(void) {
  uint64_t count = 0;
  dl_iterate_phdr(read_removals, &count);
  return count;
}

extern char *__cxa_demangle(const char *name, char *buffer, size_t *length, int *status);
char *cco_demangle_cxx(const char *name) {
  int status = 0;
  return strncmp(name, "_Z", 2) == 0 ? __cxa_demangle(name, NULL, NULL, &status) : NULL;
}
