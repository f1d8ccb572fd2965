#if Demo
import Dispatch
import Foundation

/// Why a job was cancelled: someone pressed Ctrl-C (SIGINT) or asked the process to end (SIGTERM).
struct Interrupted: Error, Equatable {
  var signal: Int32
}

/// Turns the first SIGINT or SIGTERM into a call of `handler`; a second one ends the process at once.
///
/// The handler runs on a dispatch queue, not in a signal handler, so it may lock, print and cancel jobs. Made on the
/// main thread before any other thread is started:
///   - Both signals are blocked in this thread, and so in all that it starts. A thread that left them unblocked would
///     take the signal instead of the sources, and the default action would end the process without its cleanup.
///   - Ignoring them (SIG_IGN) instead is not enough on Linux: libdispatch reads a signalfd, and the kernel drops an
///     ignored signal before it gets there unless the main thread happens to block it. About one Ctrl-C in twenty was
///     lost.
final class Interrupts: Sendable {
  // Sound because the array is never changed, and dispatch sources may be used from every thread.
  private nonisolated(unsafe) let sources: [any DispatchSourceSignal]

  init(_ handler: @escaping @Sendable (Interrupted) -> Void) {
    let queue = DispatchQueue(label: "interrupts")
    let isFirst = Locked(true)
    Self.mask(SIG_BLOCK)
    sources = Self.signals.map { number in
      let source = DispatchSource.makeSignalSource(signal: number, queue: queue)
      source.setEventHandler {
        // Someone who presses Ctrl-C twice does not want to wait for the cleanup.
        let wasFirst = isFirst.withLock { isFirst in
          defer { isFirst = false }
          return isFirst
        }
        guard wasFirst else { _exit(ExitStatus.signalled(number).code) }
        handler(Interrupted(signal: number))
      }
      source.activate()
      return source
    }
  }

  deinit {
    for source in sources { source.cancel() }
    Self.mask(SIG_UNBLOCK)
  }

  /// Lets both signals reach this process, whatever it has inherited.
  ///
  /// A program that starts others from a thread with blocked signals, as those of libdispatch are, hands its mask on.
  /// Called on the main thread before any other thread is started. `co_main` does not need it; a command that handles
  /// no signal could not be ended otherwise.
  static func unblock() { mask(SIG_UNBLOCK) }

  private static let signals = [SIGINT, SIGTERM]

  private static func mask(_ how: Int32) {
    var set = sigset_t()
    sigemptyset(&set)
    for number in signals { sigaddset(&set, number) }
    pthread_sigmask(how, &set, nil)
  }
}
#endif
