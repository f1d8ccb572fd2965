import CCoroutine

/// Whether a sanitizer is linked in, which makes each step ten times slower.
let isSanitized = cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) != 0

/// Whether ThreadSanitizer is, which ends a process itself where a coroutine calls `pthread_exit`.
let isThreadSanitized = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// Whether memory that is lost at the end of the process fails the run.
let countsLeaks = cco_compiled_sanitizers() & CCO_ADDRESS_SANITIZER.rawValue != 0
