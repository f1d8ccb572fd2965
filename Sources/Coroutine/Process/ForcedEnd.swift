internal import CLinux
import Dispatch
import Glibc
import Synchronization

// The end of a program whose main coroutine does not react to signals. It computes or blocks without a wait, so neither
// a stop nor a cancellation reaches it, and perhaps every worker is kept in this way.
//
// The thread that takes signals (SignalHub) counts them, and needs no worker, no queue and not the main thread for
// that. The report takes locks of the library, may release a user's object, and writes into a pipe that may be full.
// So a thread of its own makes it, and the process ends when the report is written, or after two seconds without it.

/// Ends the process at the third signal.
final class ForcedEnd: Sendable {
  private let count = Atomic<Int>(0)
  private static var patience: DispatchTimeInterval { .seconds(2) }

  /// Counts one arrival, on the signals' thread.
  func arrived(_ signal: Int32) {
    guard count.wrappingAdd(1, ordering: .relaxed).newValue == 3 else { return }
    let isWritten = DispatchSemaphore(value: 0)
    let code = DetachedThread.start("co-end") {
      let name = Self.name(of: signal)
      writeToStandardError("Coroutine: the third signal, \(name), ends the process. \(Dump.running())\n")
      isWritten.signal()
    }
    if code == 0 { _ = isWritten.wait(timeout: .now() + Self.patience) }
    clinux_end_by_signal(signal)
  }

  private static func name(of signal: Int32) -> String {
    switch signal {
    case SIGTERM: "SIGTERM"
    case SIGINT: "SIGINT"
    case SIGHUP: "SIGHUP"
    case SIGQUIT: "SIGQUIT"
    default: "number \(signal)"
    }
  }
}
