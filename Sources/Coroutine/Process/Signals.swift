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
/// - It does not matter whether the process was started with a signal blocked or ignored, or whether all workers and
///   queues are busy: a thread of its own takes the signals. A program that leaves to its starter whether a signal
///   counts, as `nohup` says it of `SIGHUP`, asks for that signal only if it is not ignored.
/// - Closing the channel restores the former effect, from the first signal on that arrives after no channel is left for
///   it.
/// - The channel buffers 64 signals and drops further ones, as the kernel drops a signal that is pending already.
/// - No thread's signal mask changes. Threads of the program, and the main thread, may run the signal handler, which
///   only leaves a mark.
///
/// Never suspends; any thread. Traps if a signal cannot be handled (`SIGKILL`, `SIGSTOP`, an unknown number), if it
/// reports an error of the running instruction (`SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`), or if the process has met a
/// limit on threads.
public func co_signals(_ signals: [Int32]) -> Channel<Int32> {
  let channel = Channel<Int32>(.dropNewest(64))
  for signal in Set(signals) {
    if [SIGSEGV, SIGBUS, SIGFPE, SIGILL].contains(signal) {
      misuse("co_signals: signal \(signal) reports an error of the running instruction, which waits for no channel")
    }
    let isWanted: SignalHub.Handler = { !channel.isClosed }
    let refusal = SignalHub.add(signal, isWanted: isWanted) {
      guard isWanted() else { return false }
      _ = channel.trySend(signal)
      return true
    }
    if let refusal { misuse("co_signals: \(refusal.sentence)") }
  }
  return channel
}
