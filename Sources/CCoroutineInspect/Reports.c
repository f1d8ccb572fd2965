// What the core says of faults, overflows and threads that end, once this module is linked; and the report of a thread
// that ends itself in the middle of a coroutine (Context.cpp has why that ends the process).
#include "Reports.h"

#include "CCoroutineInspect.h"
#include "Layer.h"
#include "Line.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static void write_thread_end(const cco_context *context) {
  const cco_label *label = context != NULL ? context->label : NULL;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  cco_line l = {.length = 0};
  cco_line_add(&l, "Coroutine: ");
  if (label != NULL)
    cco_line_add_coroutine(&l, label);
  else
    cco_line_add(&l, context != NULL ? "the body of a coroutine" : "code");
  cco_line_add(&l, " has ended its thread ");
  cco_line_add_escaped(&l, name, strlen(name), 100);
  cco_line_add(&l,
               " (pthread_exit, or a pthread_cancel from elsewhere): what its frames hold is lost, and locks that they "
               "hold stay locked; return or throw instead");
  if (label != NULL) cco_line_add_launch_site(&l, label);
  cco_line_write(&l);
}

// A program may be started with 0, 1 or 2 closed. The next descriptor gets that number: one of Dispatch, of libpq, of a
// resolver. Then what the program prints goes into a connection. So these numbers are taken before there is anything of
// that kind.
static void take_standard_descriptors(void) {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; number++) {
    if (fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one.
    if (open("/dev/null", O_RDWR) != number) return;
  }
}

static void start_once(void) {
  take_standard_descriptors();
  cco_settle_image();
  cco_fatal_reports_start();
}

static void start(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_once);
}

static const cco_report_hooks reports = {
    .start = start,
    .guard = cco_note_stack_of_thread,
    .overflow = cco_write_overflow_report,
    .fatal = cco_write_fatal_report,
    .fault = cco_report_fault_of_thread,
    .end = cco_note_fatal_signal,
    .thread_end = write_thread_end,
};

__attribute__((constructor)) static void add_reports(void) { cco_report_layer = &reports; }
