// Finds words of another library's thread-local block on the calling thread.
//
// The offset of such a word is not documented, so start-up searches for it: it compares the block before, inside and
// after a piece of work that sets the word for its duration. The single word that is nil, non-nil, nil is the result.
// Its distance from the thread pointer is the same on every thread if the block lies in static thread-local storage;
// start-up checks it on two fresh threads that live at the same time.
#include "SwiftWords.h"

#include <elf.h>
#include <link.h>
#include <string.h>

static int find_block(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  cco_thread_block *wanted = context;
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
  // The program itself has no name here; its libraries have one.
  wanted->is_library = info->dlpi_name != NULL && info->dlpi_name[0] != '\0';
  return 1;
}

bool cco_find_thread_block(cco_thread_block *block) {
  return dl_iterate_phdr(find_block, block) != 0 && block->count != 0;
}

enum { MOST_WORDS = 512 };

struct cco_piece {
  cco_thread_block block;
  void *inside[MOST_WORDS];
};

void cco_note_inside(cco_piece *search) {
  if (search->block.count != 0) memcpy(search->inside, search->block.words, search->block.count * sizeof(void *));
}

intptr_t cco_find_head(const void *symbol, void (*piece)(cco_piece *)) {
  void *before[MOST_WORDS];
  cco_piece search = {.block = {.symbol = symbol}};
  piece(&search);  // makes the library allocate its block
  if (!cco_find_thread_block(&search.block) || search.block.count > MOST_WORDS) return 0;
  void **words = search.block.words;
  memcpy(before, words, search.block.count * sizeof(void *));
  piece(&search);
  intptr_t offset = 0;
  for (size_t i = 0; i < search.block.count; i++) {
    if (before[i] != NULL || search.inside[i] == NULL || words[i] != NULL) continue;
    if (offset != 0) return 0;
    offset = (char *)&words[i] - cco_thread_pointer();
  }
  return offset;
}
