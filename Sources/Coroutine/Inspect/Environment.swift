internal import CCoroutine
import Glibc

/// Applies the environment variables of this folder; called when the first scheduler is made (SchedulerRegistry).
///
/// The kernel calls it through the C core, because it names no folder but its own.
@_cdecl("cco_apply_environment")
func applyEnvironment() {
  guard let setting = getenv("COROUTINE_DUMP").map({ String(cString: $0) }), !setting.isEmpty else { return }
  guard setting == "SIGUSR2" else {
    misuse("COROUTINE_DUMP is '\(setting.asWord)'. Set it to SIGUSR2, or leave it unset.")
  }
  CoroutineRuntime.dumpOnSignal(.stacks)
}
