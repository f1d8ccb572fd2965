// The reports, for Reports.c, which gives them to the core.
#ifndef CCOROUTINE_REPORTS_H
#define CCOROUTINE_REPORTS_H

#include "CCoroutine.h"

CCO_NONNULL_BEGIN

// OverflowReport.c: reports that a context touched `fault` with its stack pointer at `pointer`.
void cco_write_overflow_report(const cco_context *context, const char *fault, const char *pointer);
// Notes the stack of the calling thread, whose own overflow is reported too; and reports that code on it touched
// `fault` with its stack pointer at `pointer`, if that is an overflow.
void cco_note_stack_of_thread(void);
void cco_report_fault_of_thread(const char *fault, const char *pointer);
// FatalReport.c: reports that a context got `signal` at `pc`, with these frame and stack pointers.
void cco_write_fatal_report(const cco_context *context, int signal, uintptr_t pc, uintptr_t frame, uintptr_t stack);
void cco_fatal_reports_start(void);
// Image.c: keeps the image loaded, and looks for another copy of the runtime. Called once.
void cco_settle_image(void);

CCO_NONNULL_END

#endif
