// Counts every allocation of the program that links this target, of all its libraries and threads.
#ifndef CMALLOC_COUNT_H
#define CMALLOC_COUNT_H

#include <stdint.h>

/// How many blocks malloc and its kin have handed out since the start. A realloc counts, because it may copy; a free
/// does not, because what was never allocated is never freed.
uint64_t cmalloc_count(void);

#endif
