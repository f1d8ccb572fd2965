import Glibc

/// The signal mask of threads that the library creates.
///
/// As for Dispatch's workers, all signals are blocked that may be sent to the process as a whole. So a handler never
/// interrupts a body, and programs that wait for signals on their own threads get them. Signals that the thread's own
/// instructions raise are not blocked: otherwise a fault would end the process without the handlers that report it.
/// SIGPIPE is one of these. SIGPROF is not blocked either: otherwise a profiler would not see these threads.
enum SignalMask {
  static let left: [Int32] = [SIGILL, SIGTRAP, SIGFPE, SIGBUS, SIGSEGV, SIGSYS, SIGPIPE, SIGPROF]

  /// Runs `body` with that mask; a thread inherits its creator's mask, so the mask is in force from the thread's start.
  static func whileBlocked<Output>(_ body: () -> Output) -> Output {
    var blocked = sigset_t()
    sigfillset(&blocked)
    for signal in left { sigdelset(&blocked, signal) }
    var old = sigset_t()
    pthread_sigmask(SIG_SETMASK, &blocked, &old)
    defer { pthread_sigmask(SIG_SETMASK, &old, nil) }
    return body()
  }
}
