internal import CLinux

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
