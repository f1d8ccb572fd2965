import Dispatch
import Glibc
import Synchronization

extension CoroutineRuntime {
  private static let dumpsOnSignal = Atomic<Bool>(false)

  /// Makes SIGUSR2 write ``dump()`` to standard error, even while every queue is stuck.
  ///
  /// Signals that arrive while a dump is being written cause one more dump.
  public static func dumpOnSignal() {
    if dumpsOnSignal.exchange(true, ordering: .relaxed) { return }
    let code = SignalHub.add(SIGUSR2) {
      // On a thread of its own: writing may block, and other signals must not wait for that.
      dumps.async { writeToStandardError(dump()) }
      return true
    }
    if code != 0 { misuse("CoroutineRuntime.dumpOnSignal: no descriptor is left (errno \(code))") }
  }

  private static let dumps = DispatchQueue(label: "coroutine.dump", qos: .userInitiated)
}
