internal import CLinux
import Coroutine
import Dispatch
import Glibc

extension World {
  /// Runs an async body and all that it begins in this world: its Tasks, actors and sleeps are the world's.
  ///
  /// Blocks the calling thread, which must not be the main thread.
  func runTasks(
    _ policy: RunPolicy,
    seed: UInt64,
    isTraced: Bool,
    timeLimit: Duration? = nil,
    mostSteps: Int = 10_000_000,
    proves: Bool = false,
    _ body: @escaping @Sendable () async throws -> Void
  ) throws {
    if !proves, let reason = AsyncExecutors.install() { throw AsyncWorldError(reason: reason) }
    policy.isAsync = true
    try prepared(policy, seed, isTraced: isTraced, timeLimit, mostSteps) { core in
      let tasks = try AsyncTasks.begin(core, policy, seed, locks: true)
      core.tasks = tasks
      defer { tasks.end() }
      let outcome = AsyncOutcome()
      try core.runTasks {
        network.begin()
        // Not detached: the body sees the caller's task-locals, as a body in a coroutine does.
        Task {
          do {
            try await body()
            outcome.result = .success(())
          } catch {
            outcome.result = .failure(error)
          }
        }
      } until: {
        guard outcome.result != nil else { return false }
        if !outcome.isSeen {
          outcome.isSeen = true
          if case .success = outcome.result { network.requireHostsOfLinks() }
          network.stop()
        }
        return true
      } outcome: {
        try outcome.result?.get()
      }
      try tasks.requireNoneLeft()
    }
  }

  static func realWait(_ wait: String) -> any Error {
    RealWaitError(wait: wait, advice: "give the code under test something that the world provides in its place")
  }
}

extension World {
  /// Takes what the async code of the calling world gives to `DispatchQueue.async` into the world, from here on.
  ///
  /// For actors whose executors are on queues: without this, the first job of one fails the run with
  /// ``RealWaitError``. Each block is a step, on the world's thread. A queue runs its blocks one at a time, first in,
  /// first out; also a concurrent one. `DispatchQueue.sync` first runs what the queue has taken, in the caller's step.
  /// A block of the main queue is on the main actor. `dispatchPrecondition(condition: .onQueue(_:))` traps in blocks.
  /// `asyncAfter`, groups, and executors with threads of their own fail the run as before. Never suspends. It
  /// has no effect outside of a world, and for the coroutines of one.
  public static func includeDispatch() { AsyncTasks.current?.includesDispatch = true }
}

/// The result of the body's Task.
private final class AsyncOutcome: @unchecked Sendable {
  // Sound because the world's thread runs the Task.
  @exclusivity(unchecked) var result: Result<Void, any Error>?
  @exclusivity(unchecked) var isSeen = false
}

/// Runs the async `body` in simulated worlds, once for each schedule of `strategy`, until one fails.
///
/// The code under test needs no coroutine, and does not change: Tasks, groups, actors, the main actor, streams,
/// continuations, every sleep, Swift's clocks and `Date` are the world's. Its time is virtual, and one thread runs
/// everything.
///
/// ```swift
/// let found = explore(.random()) {
///   let account = Account(balance: 100)
///   async let first: Void = account.withdraw(60)
///   async let second: Void = account.withdraw(60)
///   _ = await (first, second)
///   let left = await account.balance
///   if left < 0 { throw Overdrawn(balance: left) }
/// }
/// ```
///
/// A Task may change places with others where it starts, suspends, is resumed, and changes its actor; code between such
/// points is one step. So a data race is not found, nor a race between two lock sections with no suspension between
/// them. A Task may be late, as on a busy machine: time then passes to the next timer although the Task can run, at
/// most four times in a run, and by at most a tenth of a second each time. Such a moment counts as a fault.
///
/// After the body, Tasks that have not ended are cancelled; those that have not ended then fail the run with
/// ``World/LeftRunningError``. Dispatch, threads, and executors of the program's own are outside of the world, and fail
/// the run with ``World/RealWaitError``.
///
/// Blocks the calling thread until the exploration has ended; any thread. `body` runs on that thread; if that is the
/// main thread, on another one. Explorations of async code in one process exclude each other. Inside of a world the
/// result is a failure with ``World/AsyncWorldError``, as it is where Swift's libraries are linked statically.
///
/// - Parameters:
///   - strategy: How schedules are chosen. The environment variable `CO_REPLAY`, if it is set, replaces it by the
///     schedule of that token.
///   - sharing: What the Tasks of `body` share, for `exhaustive`.
///   - timeLimit: The time of the world that may pass in one run; nil means no limit, and that it
///     may pass ten million times.
///   - body: The code to test. Each run calls it in a Task of a new world.
/// - Returns: The number of runs, and the first failure, shrunk.
@_disfavoredOverload
public func explore(
  _ strategy: Exploration.Strategy,
  sharing: Exploration.Sharing = .memory,
  timeLimit: Duration? = nil,
  _ body: @escaping @Sendable () async throws -> Void
) -> Exploration {
  if let reason = AsyncExecutors.install() {
    return Exploration(World.AsyncWorldError(reason: reason))
  }
  if AsyncTasks.current != nil {
    return Exploration(World.AsyncWorldError(reason: AsyncTasks.nested))
  }
  return OtherThread.run { exploreBody(strategy, sharing, timeLimit, .async(body)) }
}

extension Exploration {
  /// An exploration that could not begin.
  fileprivate init(_ error: any Error) {
    let failure = RunError(error: error, token: "", switches: 0, description: "\(error)")
    self.init(runs: 0, isComplete: false, failure: failure)
  }
}

/// Another thread than the main one.
private enum OtherThread {
  /// Calls `body` on the calling thread, or on a new one if that is the main thread: a wrong `assumeIsolated` must not
  /// pass because of the thread.
  static func run(_ body: @escaping @Sendable () -> Exploration) -> Exploration {
    guard clinux_is_main_thread() else { return body() }
    let result = Result()
    let ended = DispatchSemaphore(value: 0)
    // The caller waits, so what its Task has bound holds there too.
    let context = TaskContext.current
    let code = DetachedThread.start("world") {
      let found = context.inherit(body)
      result.found.withLock { $0 = found }
      ended.signal()
    }
    if code == 0 { ended.wait() }
    return result.found.withLock { $0 } ?? body()
  }

  private final class Result: Sendable {
    let found = Guarded<Exploration?>(nil)
  }
}
