// What a layer above the core adds to it: the words of a language's runtime that a switch must take care of, and the
// texts of reports. CCoroutineRuntime and CCoroutineInspect set these, each in a constructor, so that they are there
// before the first context is made. A program of the core alone has neither, and is told what the core itself knows.
#ifndef CCOROUTINE_LAYER_H
#define CCOROUTINE_LAYER_H

#include "CCoroutine.h"

#ifdef __cplusplus
extern "C" {
#endif

CCO_NONNULL_BEGIN

/// The words of another runtime that belong to a flow of control. All of it is written once, by a constructor and
/// during cco_start.
typedef struct cco_flow_hooks {
  /// Looks for the words. Start-up calls it on two fresh threads that live at the same time, with 0 and with 1.
  void (*search)(int thread);
  /// Then, once: sets the offsets of what both threads have found.
  /// Returns whether each word has a fixed place. If not, all switches are careful, and call `exchange`.
  bool (*decide)(cco_core_facts *facts);
  /// Called once switches work, on the careful path.
  void (*prove)(void);
  /// Writes its lines of the report, terminated.
  void (*describe)(char *out, size_t room);
  /// In place of the exchange of the words at `exchanged_offset`; NULL if those have a fixed place.
  void (*_Nullable exchange)(cco_saved_context *from, cco_saved_context *to);
  /// A flow leaves whose second word of `state_offset` is set. The result comes back at its return. NULL for none.
  bool (*_Nullable leaves)(void);
  /// Such a flow has come back: on another thread than `from`, or marked by `leaves`. The words are restored. `stack`
  /// is below all frames of the flow.
  void (*returns)(bool is_marked, char *stack, const char *from);
} cco_flow_hooks;
extern const cco_flow_hooks *_Nullable cco_flow_layer;

/// Texts in place of the core's. Those about signals are async-signal-safe.
typedef struct cco_report_hooks {
  /// Before the first thread, context or handler of a signal. Called more than once.
  void (*start)(void);
  /// Once on each thread whose faults are handled.
  void (*guard)(void);
  /// A context touched `fault` with its stack pointer at `pointer`, which is an overflow.
  void (*overflow)(const cco_context *context, const char *fault, const char *pointer);
  /// A context got `signal` at `pc`, with these frame and stack pointers.
  void (*fatal)(const cco_context *context, int signal, uintptr_t pc, uintptr_t frame, uintptr_t stack);
  /// Code on the stack of the calling thread itself touched `fault`, with its stack pointer at `pointer`.
  void (*fault)(const char *fault, const char *pointer);
  /// Any thread got a fatal signal of its own; before the handler chains.
  void (*end)(void);
  /// The thread ends within the body of a context, or of a thread. The process ends afterwards.
  void (*thread_end)(const cco_context *_Nullable context);
} cco_report_hooks;
extern const cco_report_hooks *_Nullable cco_report_layer;

CCO_NONNULL_END

#ifdef __cplusplus
}
#endif

#endif
