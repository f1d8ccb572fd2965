internal import CCoroutine
internal import CLinux
import Glibc

/// A thread that runs one closure and ends.
///
/// For what must need no worker and no queue, and may block its thread: waiting for events and signals, or a report
/// that takes locks, runs descriptions of users' types, and writes into a pipe that may be full.
package enum DetachedThread {
  /// The standard stack of a coroutine.
  private static var stackBytes: Int { 512 << 10 }

  /// Starts a thread that runs `body`, and returns 0 or an error number.
  ///
  /// The kernel keeps the first 15 bytes of `name`.
  package static func start(_ name: String, _ body: @escaping @Sendable () -> Void) -> Int32 {
    // It may be the first use of the runtime, whose image must not be unloaded under the thread.
    cco_start()
    let start = Unmanaged.passRetained(Start(name, body))
    let code = SignalMask.whileBlocked {
      clinux_start_thread(stackBytes, { DetachedThread.run($0) }, start.toOpaque())
    }
    if code != 0 { start.release() }
    return code
  }

  /// Suspends the calling thread, which runs no coroutine.
  static func sleep(_ nanoseconds: UInt64) {
    var left = timespec(tv_sec: Int(nanoseconds / 1_000_000_000), tv_nsec: Int(nanoseconds % 1_000_000_000))
    var asked = left
    repeat { asked = left } while nanosleep(&asked, &left) != 0 && errno == EINTR
  }

  private static func run(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    let start = Unmanaged<Start>.fromOpaque(argument).takeRetainedValue()
    // Not by an implicit conversion, which allocates: a report may be asked for where there is no memory.
    start.name.withCString { clinux_name_thread($0) }
    start.body()
    return nil
  }

  private final class Start: Sendable {
    let name: String
    let body: @Sendable () -> Void

    init(_ name: String, _ body: @escaping @Sendable () -> Void) {
      self.name = name
      self.body = body
    }
  }
}

// MARK: - Its signals

/// The signal mask of threads that the library creates.
///
/// As for Dispatch's workers, all signals are blocked that may be sent to the process as a whole. So a handler never
/// interrupts a body, and programs that wait for signals on their own threads get them. Signals that the thread's own
/// instructions raise are not blocked. `Sources/CLinux/Children.c` has the list, and says what it means for child
/// processes.
enum SignalMask {
  /// Runs `body` with that mask; a thread inherits its creator's mask, so the mask is in force from the thread's start.
  static func whileBlocked<Output>(_ body: () -> Output) -> Output {
    let former = clinux_block_signals()
    defer { clinux_set_blocked_signals(former) }
    return body()
  }
}
