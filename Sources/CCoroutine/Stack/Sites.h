// Launch sites whose stacks are measured: what the report of an overflow asks for, and what Sites.c measures with.
#ifndef CCOROUTINE_STACK_SITES_H
#define CCOROUTINE_STACK_SITES_H

#include "Internal.h"

// Returns whether the coroutine that uses a context was launched with a measured stack, and the numbers of its site.
// Async-signal-safe.
bool cco_site_of_context(const cco_context *context, cco_site_use *use);

// Touched.c: the number of bytes from the lowest page in memory to `high`; 0 if there is none, or if the kernel does
// not say. Swapped pages do not count.
size_t cco_touched(char *low, char *high, size_t page);
// Whether the kernel says which pages were touched.
bool cco_knows_touched(void);

#endif
