// Launch sites whose coroutines' stacks are measured (Stack/Sites.c).
#ifndef CCOROUTINE_SITES_H
#define CCOROUTINE_SITES_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// What the measured coroutines of one launch site have used. Lives as long as the process.
typedef struct cco_site cco_site;

/// The site of a label, which is made at the first call. NULL if the table is full. Any thread; takes no lock.
cco_site *_Nullable cco_site_of(const cco_label *label);

/// The size of the stack to ask for: four times the most that a coroutine of the site has used, at least `least`, and
/// at most the largest class unless `least` is more. The standard size, at least `least`, as long as too few have been
/// measured, or if `site` is NULL.
size_t cco_site_stack(const cco_site *_Nullable site, size_t least);

/// Whether the coroutine with this number is to be measured: the first ones of a site, and few later ones. Always false
/// where the kernel does not say which pages a process has touched.
bool cco_site_samples(const cco_site *site, uint64_t id);

/// Makes a READY context one of `site`, by its argument. If it is a sample, the memory below its frames goes back to
/// the kernel, so that its pages show at the end what one body has used. It is no sample if the kernel refuses that.
void cco_site_begin(cco_context *context, cco_site *site, bool is_sample);

/// Ends what cco_site_begin has begun, and counts a sample. Called on the stack itself, behind the body.
void cco_site_end(cco_context *context);

/// Notes what a sample has used so far; nothing for other contexts. For code that frees memory below its frames. The
/// caller may use the context, or knows that it is parked.
void cco_site_note(const cco_context *context);

/// A site in numbers.
typedef struct cco_site_use {
  const char *_Nullable file;  ///< `file_length` bytes, not terminated
  uint32_t file_length;
  uint32_t line;
  size_t deepest;   ///< bytes in whole pages
  size_t stack;     ///< what cco_site_stack returns for `least` 1
  uint32_t ended;   ///< the number of coroutines that were measured and have ended
} cco_site_use;

enum { CCO_MOST_SITES = 1024 };

/// The site at an index below CCO_MOST_SITES. Returns false if no coroutine of it has been measured.
bool cco_site_at(uint32_t index, cco_site_use *use);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
