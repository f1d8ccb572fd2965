internal import CLinux
import Dispatch
public import Glibc
import Synchronization

/// Runs `body` as the main coroutine of a program, and ends the process after it.
///
/// ```swift
/// @main struct Program {
///   static func main() {
///     co_main { try Server.run(.any(port: 8080)) { try serve($0) } }
///   }
/// }
/// ```
///
/// The first of `signals` asks `body`, and every coroutine that it has launched in scopes, to finish: ``co_isStopping``
/// becomes true, and ``co_stopping`` is settled. Coroutines that have not ended after `duration` are cancelled. A
/// second signal cancels them at once. A third ends the process, whatever runs. The process ends when `body` has ended:
///
/// - with 0, if `body` returned;
/// - with 1, if it threw: the error is written to standard error;
/// - with 128 plus the signal's number, if it was cancelled, as a shell reports a process that a signal ended.
///
/// A third signal is for a `body` that neither returns nor waits: it computes, or a call blocks its thread. A line on
/// standard error names the coroutines that run, with their launch sites. Then the process ends by that signal, as if
/// it did not handle it: no `defer` and no `atexit` runs. It needs no worker, no queue and not the main thread.
///
/// Signals count also if the process was started with them blocked. A `SIGHUP` among `signals` that is ignored when
/// `co_main` is called, as `nohup` does it, stays ignored.
///
/// With `tasksOnWorkers`, Tasks share the workers with coroutines (``CoroutineRuntime/runTasksOnWorkers()``); if that
/// is refused, a line on standard error says why, and the program runs without it.
///
/// Never returns. Called on the program's main thread, which then serves the main queue. On another thread it blocks
/// that thread. `body` runs on the shared workers. Coroutines that `body` has not launched in a scope do not keep the
/// process alive.
@available(*, noasync, message: "call it from a synchronous main function")
public func co_main(
  stoppingOn signals: [Int32] = [SIGTERM, SIGINT],
  within duration: Duration = .seconds(10),
  tasksOnWorkers: Bool = false,
  _ body: @escaping @Sendable () throws -> Void
) -> Never {
  if tasksOnWorkers { TasksOnWorkers.sayIfRefused() }
  let signals = signals.filter { $0 != SIGHUP || !clinux_is_ignored($0) }
  let arrivals = co_signals(signals)
  let forced = ForcedEnd()
  for signal in Set(signals).sorted() {
    // co_signals has handled it just now, so that is no refusal.
    _ = SignalHub.add(signal) {
      forced.arrived(signal)
      return true
    }
  }
  let main = co_launch(name: "co_main") { try MainRun(arrivals, duration).run(body) }
  if clinux_is_main_thread() {
    co_launch { () -> Void in endProcess(main) }
    dispatchMain()
  }
  endProcess(main)
}

private func endProcess(_ main: Job<Int32>) -> Never {
  do {
    exit(try Carrier.current == nil ? main.blockingWait() : main.join())
  } catch {
    writeToStandardError("Coroutine: the program has ended with an error: \(asLine(error))\n")
    exit(1)
  }
}

/// One run of a main coroutine: passes signals on until the body has ended.
struct MainRun {
  private let arrivals: Channel<Int32>
  private let duration: Duration

  init(_ arrivals: Channel<Int32>, _ duration: Duration) {
    self.arrivals = arrivals
    self.duration = duration
  }

  /// Returns the exit code.
  func run(_ body: @escaping @Sendable () throws -> Void) throws -> Int32 {
    var stopped: Int32?
    var main: Job<Void>?
    do {
      try co_scope { scope in
        let work = scope.launch(name: "main", body)
        main = work
        while !work.isFinished {
          try co_select {
            work.onAwait { _ in }
            arrivals.onReceive { signal in
              guard let signal else { return }
              if stopped == nil { scope.stop(within: duration) } else { scope.cancel() }
              stopped = signal
            }
          }
        }
      }
    } catch let error as CancellationError {
      guard stopped != nil else { throw error }
    }
    // The job, not the scope, says whether the body has returned. A scope that was cancelled ends with that
    // cancellation, or without an error if this coroutine has seen the end of `main` before it.
    guard let stopped, let main else { return 0 }
    do {
      try main.join()
      return 0
    } catch {
      // A cancellation of something that the body has joined is a failure of the body.
      guard main.isOwnCancellation(error) else { throw error }
      return 128 + stopped
    }
  }
}

// MARK: - The third signal

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
      writeToStandardError("Coroutine: the third signal, \(name), ends the process. \(Dump.running())\n", mayWait: true)
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

// MARK: - Signals as channels

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
/// - A handler of other code, of a `DispatchSource` or of a library, is called as well, in whatever order the two were
///   installed. One that is installed later may have the signal to itself for some time: ten milliseconds in
///   the first second after a call or a signal, up to ten seconds after a long time without. Beside a
///   `DispatchSource`, signals come by way of Dispatch, which needs a thread for them as the source does.
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
  for signal in Set(signals).sorted() {
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
