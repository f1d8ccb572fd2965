internal import CLinux
import Glibc
import Synchronization

// The end of a program whose main coroutine does not react to signals. It computes or blocks without a wait, so neither
// a stop nor a cancellation reaches it, and perhaps every worker is kept in this way.
//
// Everything here runs on the thread that takes signals (SignalHub), which needs no worker, no queue and not the main
// thread. Before the report is put together, the signals have their default effect again: a further one ends the
// process at once, whatever the report waits for.

/// Ends the process at the third signal.
final class ForcedEnd: Sendable {
  private let signals: [Int32]
  private let count = Atomic<Int>(0)

  init(_ signals: [Int32]) { self.signals = signals }

  /// Counts one arrival, on the signals' thread.
  func arrived(_ signal: Int32) {
    guard count.wrappingAdd(1, ordering: .relaxed).newValue == 3 else { return }
    for signal in signals { clinux_default_signal(signal) }
    writeToStandardError(
      "Coroutine: the third signal, \(Self.name(of: signal)), ends the process. \(Dump.running())\n"
    )
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
