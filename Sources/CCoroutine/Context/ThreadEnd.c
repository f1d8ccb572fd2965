// A thread that ends itself in the middle of a coroutine (pthread_exit, or pthread_cancel from elsewhere) drops frames
// that Swift code never unwinds: their objects are never released, and their locks stay locked. There is no way to
// repair that, so the process ends with this sentence.
//
// The C library ends a thread by a forced unwinding: cleanups of C++ run, and nothing catches it. So the function that
// calls what must return has a cleanup (Context.cpp): the trampoline around a coroutine's body, and
// cco_call_to_its_end around a thread of the library. The cleanup runs before the frames are left, and before the
// destructors of the thread's values, among which Dispatch's would end the process without a word.
#include "Hazards/Line.h"
#include "Internal.h"

#include <pthread.h>
#include <stdlib.h>

void cco_refuse_thread_end(const cco_context *context) {
  const cco_label *label = context != NULL ? context->label : NULL;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  line l = {.length = 0};
  add(&l, "Coroutine: ");
  if (label != NULL)
    add_coroutine(&l, label);
  else
    add(&l, context != NULL ? "the body of a coroutine" : "code");
  add(&l, " has ended its thread ");
  add_escaped(&l, name, strlen(name), 100);
  add(&l, " (pthread_exit, or a pthread_cancel from elsewhere): what its frames hold is lost, and locks that they hold "
          "stay locked; return or throw instead");
  if (label != NULL) add_launch_site(&l, label);
  write_line(&l);
  abort();
}
