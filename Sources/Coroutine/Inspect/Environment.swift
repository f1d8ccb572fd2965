internal import CCoroutine
import Glibc

/// Puts what this folder has into the kernel's tables, and applies its environment variables; called when the first
/// scheduler is made (SchedulerRegistry).
///
/// The kernel calls it through the C core, because it names no folder but its own.
@_cdecl("cco_apply_environment")
func applyEnvironment() {
  Recorder.listen()
  CoroutineRuntime.Stall.listen()
  func setting(_ name: String) -> String? {
    getenv(name).map { String(cString: $0) }.flatMap { $0.isEmpty ? nil : $0 }
  }
  if let dump = setting("COROUTINE_DUMP") {
    guard dump == "SIGUSR2" else {
      misuse("COROUTINE_DUMP is '\(dump.asWord)'. Set it to SIGUSR2, or leave it unset.")
    }
    CoroutineRuntime.dumpOnSignal(.stacks)
  }
  guard let record = setting("COROUTINE_RECORD"), record != "0" else { return }
  guard record == "1" || record.hasPrefix("/") else {
    misuse("COROUTINE_RECORD is '\(record.asWord)'. Set it to 1, or to the path of a folder, or leave it unset.")
  }
  CoroutineRuntime.startRecording(filesIn: record == "1" ? nil : record)
}
