// What ThreadSanitizer is told of the Swift layer's synchronisation (hazard 9). In other builds each function is empty.
#include "CCoroutineRuntime.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CCO_TSAN 1
#endif
#endif

#ifdef CCO_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
void cco_publish(const void *address) { __tsan_release((void *)address); }
void cco_observe(const void *address) { __tsan_acquire((void *)address); }
void cco_unrecorded_begin(void) { __tsan_ignore_thread_begin(); }
void cco_unrecorded_end(void) { __tsan_ignore_thread_end(); }
#else
void cco_publish(const void *address) { (void)address; }
void cco_observe(const void *address) { (void)address; }
void cco_unrecorded_begin(void) {}
void cco_unrecorded_end(void) {}
#endif
