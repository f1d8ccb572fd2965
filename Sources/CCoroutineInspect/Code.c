// The list is made for each snapshot, because libraries come and go. It is sorted, so that a search takes a few steps;
// most searches are for the image of the address before.
#include "Code.h"

#include <link.h>
#include <stdlib.h>

typedef struct found {
  struct cco_code_range *ranges;
  uint32_t count, room;
  bool is_full;
} found;

static int add_image(struct dl_phdr_info *image, size_t size, void *list) {
  (void)size;
  found *all = list;
  for (int i = 0; i < image->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &image->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
    if (all->count == all->room) {
      uint32_t room = all->room == 0 ? 64 : 2 * all->room;
      struct cco_code_range *more = realloc(all->ranges, room * sizeof *more);
      if (more == NULL) {
        all->is_full = true;
        return 1;
      }
      all->ranges = more;
      all->room = room;
    }
    uintptr_t low = image->dlpi_addr + part->p_vaddr;
    all->ranges[all->count++] = (struct cco_code_range){low, low + part->p_memsz};
  }
  return 0;
}

static int by_address(const void *a, const void *b) {
  uintptr_t x = ((const struct cco_code_range *)a)->low, y = ((const struct cco_code_range *)b)->low;
  return x < y ? -1 : x > y;
}

bool cco_find_code(cco_walk *walk) {
  found all = {.ranges = NULL};
  dl_iterate_phdr(add_image, &all);
  if (all.is_full || all.count == 0) {
    free(all.ranges);
    return false;
  }
  qsort(all.ranges, all.count, sizeof *all.ranges, by_address);
  walk->code = all.ranges;
  walk->count = all.count;
  walk->last = 0;
  return true;
}

void cco_forget_code(cco_walk *walk) {
  free(walk->code);
  walk->code = NULL;
}

bool cco_search_code(cco_walk *walk, uintptr_t address) {
  uint32_t low = 0, high = walk->count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (walk->code[middle].low < address)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0 || address > walk->code[low - 1].high) return false;
  walk->last = low - 1;
  return true;
}
