internal import CCoroutine
import Synchronization

/// Runs a body once for all callers, and keeps the result.
///
/// ```swift
/// let configuration = Once<Configuration>()
/// let settings = try configuration.run { try load() }     // anywhere, any number of times
/// ```
///
/// The first caller runs its body on its own stack. Callers that come meanwhile wait, and get the result. The effect of
/// a body that throws is chosen at the creation. All callers get the same value, so values are Sendable.
public final class Once<Value: Sendable>: @unchecked Sendable {
  // Sound because of the first invariant.

  /// The effect of a body that throws.
  public struct Failure: Sendable, Hashable, CustomStringConvertible {
    let isResult: Bool

    /// The caller gets the error; the next caller, first come, first served, runs its own body.
    public static var retries: Failure { Failure(isResult: false) }
    /// The error is the result: all callers get it, now and later.
    public static var isKept: Failure { Failure(isResult: true) }

    /// `retries` or `isKept`.
    public var description: String { isResult ? "isKept" : "retries" }
  }

  // A mutex around the result.
  //
  //   EMPTY --the first caller locks the mutex--> RUNNING --returns--> DONE for ever
  //     ^                                            |------throws, isKept--> DONE for ever
  //     +--------------------------------------------+------throws, retries, or cancelled
  //
  // Invariants
  //  1. `outcome` is written once, with the mutex held, before `isDone` is set (release). It is read after `isDone` was
  //     seen (acquire), or with the mutex held.
  //  2. A body runs with the mutex held. So at most one body runs at a time, waiters are served in order, a cancelled
  //     waiter leaves the queue, and a body that calls its own Once holds the mutex already.
  private let mutex = FairMutex()
  private let isDone = Shared(Atomic<Bool>(false))
  @exclusivity(unchecked) private var outcome: Result<Value, any Error>?
  private let failure: Failure

  /// Creates a Once that has not run.
  public init(afterFailure failure: Failure = .retries) {
    self.failure = failure
    mutex.permit.pointee.isOfOnce = true
  }

  /// Gives the Once a name, which dumps show: `Once "configuration" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The Once.
  @discardableResult
  public func named(_ name: String) -> Once {
    mutex.named(name)
    return self
  }

  /// The result; nil before the end of the first run, and if the result is a kept error.
  public var value: Value? { isDone.touched.load(ordering: .acquiring) ? try? outcome?.get() : nil }

  /// Runs `body` unless there is a result already, and returns the result.
  ///
  /// Suspends while another caller's body runs; `body` itself may suspend. If the coroutine is cancelled, before or
  /// during the wait, it throws. A body that ends because its caller is cancelled does not count: the next caller runs
  /// its own, also with `isKept`.
  ///
  /// Bodies that wait for one another in a circle, directly or through joins and scopes, wait until one is cancelled.
  /// ``CoroutineRuntime/onDeadlock(_:)`` and ``CoroutineRuntime/deadlocks()`` report the circle.
  /// - Throws: The error of the body; the cancellation error; ``CoroutineError/wouldDeadlock`` if called by its own
  ///   body; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ body: () throws -> Value) throws -> Value {
    _ = try Carrier.beginWaiting()
    // Known: a wait for an unknown source depends on every other step.
    if isDone.known.load(ordering: .acquiring), let outcome { return try outcome.get() }
    if !mutex.tryLock() { try lockContended() }
    defer { mutex.unlock() }
    if let outcome { return try outcome.get() }
    do {
      let value = try body()
      settle(.success(value))
      return value
    } catch {
      if failure.isResult, !(error is CancellationError), !co_isCancelled { settle(.failure(error)) }
      throw error
    }
  }

  /// Waits for the coroutine that runs its body.
  private func lockContended() throws {
    if mutex.isHeldByCaller { throw CoroutineError.wouldDeadlock(because: .runsOnce) }
    try mutex.lock()
  }

  private func settle(_ result: Result<Value, any Error>) {
    outcome = result
    cco_order_retains()
    isDone.touched.store(true, ordering: .releasing)
  }
}
