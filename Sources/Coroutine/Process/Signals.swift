import Glibc

/// Returns a channel that receives each of `signals` that the process gets.
///
/// ```swift
/// let quit = co_signals([SIGTERM, SIGINT])
/// try co_select {
///   quit.onReceive { number in … }
///   …
/// }
/// ```
///
/// From now on these signals do not have their usual effect. Several channels may be for one signal: each gets it.
/// Close the channel to give the signals their former effect back: it takes place again from the next arrival on that
/// no channel takes. Signals that come faster than they are received are kept up to 64, then dropped, as the kernel does
/// with one that is still pending. Implemented by handlers that mark an eventfd, so the mask of no thread changes.
///
/// Never suspends; any thread. Traps if a signal cannot be handled (`SIGKILL`, `SIGSTOP`, a number that is none), if it
/// is the processor's own report of an error (`SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`), or if no descriptor is left.
public func co_signals(_ signals: [Int32]) -> Channel<Int32> {
  let channel = Channel<Int32>(.dropNewest(64))
  for signal in Set(signals) {
    if [SIGSEGV, SIGBUS, SIGFPE, SIGILL].contains(signal) {
      misuse("co_signals: signal \(signal) reports an error of the running instruction, which cannot wait for a channel")
    }
    let code = SignalHub.add(signal) {
      guard !channel.isClosed else { return false }
      _ = channel.trySend(signal)
      return true
    }
    switch code {
    case 0: continue
    case EINVAL: misuse("co_signals: signal \(signal) cannot be handled by a process")
    default: misuse("co_signals: no descriptor is left for signal \(signal) (errno \(code))")
    }
  }
  return channel
}
