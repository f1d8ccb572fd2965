// C++ functions that suspend while the C++ runtime has state in the thread: inside of a catch block, and in a
// destructor while an exception unwinds the stack. No exception leaves them.
#ifndef CEXCEPTIONS_H
#define CEXCEPTIONS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma clang assume_nonnull begin

/// Suspends the coroutine that calls it; the test chooses the meaning of `context`.
typedef void (*cexceptions_suspend)(void *_Nullable context);

/// Throws `number`, catches it, suspends `times` times inside of the catch block and throws it again from there.
/// Returns the number that is caught last.
int cexceptions_rethrown(int number, int times, cexceptions_suspend suspend, void *_Nullable context);

/// The same for an exception that is caught while another one is being handled. Returns the sum of both numbers.
int cexceptions_nested(int outer, int inner, cexceptions_suspend suspend, void *_Nullable context);

/// Throws through a frame whose destructor suspends `times` times. Returns how often std::uncaught_exceptions was
/// wrong: it must be 1 in the destructor, and 0 before and afterwards.
int cexceptions_miscounted(int times, cexceptions_suspend suspend, void *_Nullable context);

/// What std::uncaught_exceptions returns here.
int cexceptions_uncaught(void);

/// Whether an exception is being handled here.
bool cexceptions_is_handling(void);

#pragma clang assume_nonnull end

#ifdef __cplusplus
}
#endif

#endif
