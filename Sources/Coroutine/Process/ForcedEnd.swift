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
    let report = Report(signal)
    let code = SignalMask.whileBlocked {
      clinux_start_thread(Report.stackBytes, { Report.main($0) }, Unmanaged.passRetained(report).toOpaque())
    }
    if code == 0 { _ = report.isWritten.wait(timeout: .now() + Self.patience) }
    clinux_end_by_signal(signal)
  }

  /// The line that names what runs, and the thread that writes it.
  private final class Report: Sendable {
    let isWritten = DispatchSemaphore(value: 0)
    private let signal: Int32

    /// The standard stack of a coroutine: descriptions of users' types may run here.
    static var stackBytes: Int { 512 << 10 }

    init(_ signal: Int32) { self.signal = signal }

    static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
      guard let argument else { return nil }
      let report = Unmanaged<Report>.fromOpaque(argument).takeRetainedValue()
      writeToStandardError(
        "Coroutine: the third signal, \(name(of: report.signal)), ends the process. \(Dump.running())\n"
      )
      report.isWritten.signal()
      return nil
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
}
