// Contexts over Boost.Context. No other file knows Boost, and only this file and cco_switch in the header switch.
//
// It is C++ because from Boost 1.87 the shared library exports only mangled names (hazard 10). `cco_jump` compiles to
// one tail jump. A context's stack, high addresses first:
//
//     slot end ->  +--------------------------------+
//                  | cco_context (control block)    |  at an offset that differs between slots (cache colouring,
//     cco_high ->  +--------------------------------+  cco_slot_context)
//                  | trampoline's frame             |
//                  | frames of the body ...         |
//     low ------>  +--------------------------------+
//                  | guard                          |
//                  +--------------------------------+
//
// A READY context is parked inside the trampoline, so the first resume is a switch like every other. The trampoline
// never returns. Its frame owns nothing, so a READY or FINISHED stack is released as it is.
//
// The end of a stack. Boost leaves the address of its `finish`, which is code, where the trampoline's frame keeps the
// frame pointer and the return address of its caller. An unwinder would read instructions as a frame. So the
// trampoline writes 0 there, and a return address in `cco_coroutine_start`, a function that nothing calls. Its CFI says
// that its caller is undefined. Debuggers, profilers, the C++ runtime and Walk.c all end there, by either rule.
#include "CCoroutine.h"
#include "Internal.h"
#include "Layer.h"

#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>

namespace bc = boost::context::detail;
static_assert(sizeof(bc::transfer_t) == sizeof(cco_transfer), "transfer_t has changed shape");
static_assert(sizeof(cco_context) <= 128, "a parked coroutine's control block is two cache lines");

extern "C" cco_transfer cco_jump(void *to, void *data) {
  bc::transfer_t t = bc::jump_fcontext(to, data);
  return cco_transfer{t.fctx, t.data};
}

#if defined(__x86_64__)
#define UNDEFINED_CALLER ".cfi_undefined rip\n"
#define NEVER "ud2\n"
#elif defined(__aarch64__)
#define UNDEFINED_CALLER ".cfi_undefined x30\n"
#define NEVER "brk #1\n"
#endif
// One instruction, so that the address before a return address is in the function as well, and one that ends the
// process if the trampoline should return.
__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    ".globl cco_coroutine_start\n"
    ".hidden cco_coroutine_start\n"
    ".type cco_coroutine_start, %function\n"
    "cco_coroutine_start:\n"
    ".cfi_startproc\n" UNDEFINED_CALLER
    "nop\n" NEVER
    ".cfi_endproc\n"
    ".size cco_coroutine_start, . - cco_coroutine_start\n"
    ".popsection\n");

namespace {

// A thread that ends itself in the middle of a coroutine (pthread_exit, or pthread_cancel from elsewhere) drops frames
// that a language such as Swift never unwinds: what they own is not released, and their locks stay locked. There is no
// way to repair that, so the process ends with a sentence. The C library ends a thread by a forced unwinding: cleanups
// of C++ run, and nothing catches it. So this cleanup is around what must return. It runs before the frames are left,
// and before the destructors of the thread's values, among which Dispatch's would end the process without a word. An
// exception of C++ does not reach it, because without a handler nothing is unwound.
struct Whole {
  const cco_context *context;
  bool has_returned = false;
  ~Whole() {
    if (!has_returned) cco_refuse_thread_end(context);
  }
};

}  // namespace

extern "C" void cco_refuse_thread_end(const cco_context *context) {
  if (cco_report_layer != nullptr) {
    cco_report_layer->thread_end(context);
  } else {
    static const char line[] =
        "Coroutine: the body of a context has ended its thread (pthread_exit, or a pthread_cancel from elsewhere): "
        "what its frames hold is lost; return instead\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(134);
  }
  abort();
}

extern "C" void cco_call_to_its_end(void (*body)(void *), void *argument) {
  Whole whole{nullptr};
  body(argument);
  whole.has_returned = true;
}

// Continues the running flow on another stack. Nothing is exchanged, because it stays one flow: the words of other
// runtimes are those of the caller and of the body. A wait of the body parks all of them, as any wait.
static void move_to(cco_saved_context *from, cco_saved_context *to) {
  void *stack = to->stack;
  cco_thread()->running = cco_sanitizer_saved_stack(stack);
  to->stack = nullptr;
  if (cco_facts.reconciles) cco_reconcile_floating_point(cco_sanitizer_saved_stack(stack));
  cco_transfer arrival =
      cco_facts.careful ? cco_annotated_jump(stack, from, false) : cco_jump_unpredicted(stack, from);
  __atomic_store_n(&static_cast<cco_saved_context *>(arrival.data)->stack, arrival.stack, __ATOMIC_RELEASE);
}

namespace {

struct Call {
  void (*body)(void *);
  void *argument;
};

}  // namespace

static cco_saved_context *run_call(cco_context *context, void *) {
  const Call *call = static_cast<const Call *>(context->value);
  call->body(call->argument);
  return nullptr;
}

extern "C" bool cco_is_call(const cco_context *context) { return context->entry == run_call; }

extern "C" cco_status cco_call_on_stack(size_t stack_size, void (*body)(void *), void *argument, const cco_label *label,
                                        void *flow) {
  cco_context *context = nullptr;
  cco_status status = cco_create(stack_size, run_call, flow, &context);
  if (status != CCO_OK) return status;
  Call call{body, argument};
  cco_saved_context here{};
  context->value = &call;
  context->caller = &here;
  context->label = label;
  move_to(&here, &context->parked);
  return cco_destroy(context);
}

// Runs one body after the other: parks READY, runs a body when switched to, parks FINISHED; until the entry is null.
static void trampoline(bc::transfer_t birth) {
  // The frame record, on both architectures: the caller's frame pointer, and the return address.
  void **frame = static_cast<void **>(__builtin_frame_address(0));
  frame[0] = nullptr;
  frame[1] = reinterpret_cast<char *>(&cco_coroutine_start) + CCO_ROOT_OFFSET;
  cco_transfer arrival = cco_sanitizer_entered(cco_transfer{birth.fctx, birth.data});
  cco_restore_floating_point();  // before, those of the thread that makes the stack, which a body may have set
  cco_context *context = static_cast<cco_context *>(arrival.data);
  // The first jump exchanged no words, so the jump back exchanges none either.
  arrival = cco_annotated_jump(arrival.stack, &context->parked, false);
  static_cast<cco_saved_context *>(arrival.data)->stack = arrival.stack;
  while (context->entry != nullptr) {
    context->phase = CCO_RUNNING;
    Whole whole{context};
    cco_saved_context *next = context->entry(context, context->argument);
    whole.has_returned = true;
    cco_restore_floating_point();
    if (next == &context->parked) continue;
    context->value = nullptr;
    context->phase = CCO_FINISHED;
    if (context->entry == run_call)
      move_to(&context->parked, context->caller);
    else
      cco_switch(&context->parked, next != nullptr ? next : context->caller);
  }
  cco_exchange(&context->parked, context->caller);
  cco_thread()->running = cco_sanitizer_saved_stack(context->caller->stack);
  cco_annotated_jump(context->caller->stack, &context->parked, true);
}

// Lets a new stack run as far as the trampoline's first park. Its values of the exchanged words start empty.
static void enter_trampoline(cco_context *context) {
  context->parked = cco_saved_context{};
  void *stack = bc::make_fcontext(cco_high(context), static_cast<size_t>(cco_high(context) - context->low), trampoline);
  cco_transfer arrival = cco_sanitizer_enter(context, stack);
  static_cast<cco_saved_context *>(arrival.data)->stack = arrival.stack;
}

extern "C" cco_status cco_create(size_t stack_size, cco_entry entry, void *argument, cco_context **result) {
  if (!cco_start()) return CCO_OUT_OF_THREADS;
  cco_context *context = nullptr;
  cco_status status = cco_stack_acquire(stack_size, &context);
  if (status != CCO_OK) return status;
  // A stack from the pool is still parked in the trampoline. The values of its last body are cleared.
  const bool is_warm = context->parked.stack != nullptr;
  context->entry = entry;
  context->argument = argument;
  context->value = nullptr;
  context->label = nullptr;
  // A walk goes on in the caller of a context that has one. That of the last body is gone.
  context->caller = nullptr;
  if (!is_warm)
    enter_trampoline(context);
  else
    context->parked.exchanged[0] = context->parked.exchanged[1] = context->parked.spare = nullptr;
  context->phase = CCO_READY;
  *result = context;
  return CCO_OK;
}

extern "C" cco_state cco_state_of(const cco_context *context) {
  if (context->phase != CCO_RUNNING) return context->phase;
  return cco_is_parked(&context->parked) ? CCO_SUSPENDED : CCO_RUNNING;
}

extern "C" cco_status cco_destroy(cco_context *context) {
  if (context->phase != CCO_READY && context->phase != CCO_FINISHED) return CCO_HAS_LIVE_FRAMES;
  cco_sanitizer_forget(context);
  cco_stack_release(context);
  return CCO_OK;
}
