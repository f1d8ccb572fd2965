import Dispatch
import Glibc
import Synchronization

extension CoroutineRuntime {
  private static let dumpsOnSignal = Atomic<Bool>(false)

  /// Makes SIGUSR2 write ``dump()`` to standard error, even while every queue is stuck.
  ///
  /// Signals that arrive while a dump is being written cause one more dump. The signal is noticed also if the process
  /// was started with it blocked.
  public static func dumpOnSignal() {
    if dumpsOnSignal.exchange(true, ordering: .relaxed) { return }
    let refusal = SignalHub.add(SIGUSR2) {
      // On a thread of its own: writing may block, and other signals must not wait for that.
      dumps.async { writeToStandardError(dump()) }
      return true
    }
    if let refusal { misuse("CoroutineRuntime.dumpOnSignal: \(refusal.sentence)") }
  }

  private static let dumps = DispatchQueue(label: "coroutine.dump", qos: .userInitiated)
}
