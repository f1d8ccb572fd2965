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
/// - From the call on, the signals lose their usual effect. If several channels are for one signal, each receives it.
/// - Closing the channel restores the former effect, from the first signal on that arrives after no channel is left for
///   it.
/// - The channel buffers 64 signals and drops further ones, as the kernel drops a signal that is pending already.
/// - A signal handler writes to an eventfd, so no thread's signal mask changes.
///
/// Never suspends; any thread. Traps if a signal cannot be handled (`SIGKILL`, `SIGSTOP`, an unknown number), if it
/// reports an error of the running instruction (`SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`), or if no descriptor is left.
public func co_signals(_ signals: [Int32]) -> Channel<Int32> {
  let channel = Channel<Int32>(.dropNewest(64))
  for signal in Set(signals) {
    if [SIGSEGV, SIGBUS, SIGFPE, SIGILL].contains(signal) {
      misuse("co_signals: signal \(signal) reports an error of the running instruction, which waits for no channel")
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
