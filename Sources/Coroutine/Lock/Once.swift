import Synchronization

/// Does something once, for all who need it done, and keeps the result.
///
/// ```swift
/// let configuration = Once<Configuration>()
/// let settings = try configuration.run { try load() }     // anywhere, any number of times
/// ```
///
/// The first who comes runs its body, on its own stack; who comes meanwhile waits, and gets the result. What a body that throws
/// means is said at the creation.
public final class Once<Value: Sendable>: @unchecked Sendable {
  // Sound because of the first invariant.

  /// What happens after a body that throws.
  public enum Failure: Sendable {
    /// Its caller gets the error; the next one, in the order of coming, runs its own body.
    case retries
    /// It is the result: all get the error, now and ever after.
    case isKept
  }

  // A mutex around the result.
  //
  //   EMPTY --the first has the mutex--> RUNNING --returns--> DONE for ever
  //     ^                                   |------throws, isKept--> DONE for ever
  //     +-----------------------------------+------throws, retries, or cancelled
  //
  // Invariants
  //  1. `outcome` is written once, with the mutex held, before `isDone` is set (release); it is read by who has seen `isDone`
  //     (acquire), or holds the mutex.
  //  2. A body runs with the mutex held. So at most one runs at a time, those who wait come in order, one that is cancelled
  //     leaves the queue, and a body that asks its own Once is told wouldDeadlock by the mutex.
  private let mutex = FairMutex()
  private let isDone = Atomic<Bool>(false)
  @exclusivity(unchecked) private var outcome: Result<Value, any Error>?
  private let failure: Failure

  /// Creates one that has not run.
  public init(afterFailure failure: Failure = .retries) { self.failure = failure }

  /// The result, if there is one: nil before the end of the first run, and where a kept failure is the result.
  public var value: Value? { isDone.load(ordering: .acquiring) ? try? outcome?.get() : nil }

  /// Runs `body` unless it has been done; answers the result.
  ///
  /// Suspends while another caller's body runs; `body` itself may suspend. Cancelled, before or while it waits, it throws. A
  /// body that ends because its caller is cancelled has not run: the next one runs its own, also where failures are kept. Asked
  /// by its own body it throws ``CoroutineError/wouldDeadlock``; off a coroutine ``CoroutineError/notInCoroutine``.
  public func run(_ body: () throws -> Value) throws -> Value {
    _ = try Carrier.beginWaiting()
    if isDone.load(ordering: .acquiring), let outcome { return try outcome.get() }
    return try mutex.withLock {
      if let outcome { return try outcome.get() }
      do {
        let value = try body()
        settle(.success(value))
        return value
      } catch {
        if failure == .isKept, !(error is CancellationError), !co_isCancelled { settle(.failure(error)) }
        throw error
      }
    }
  }

  private func settle(_ result: Result<Value, any Error>) {
    outcome = result
    isDone.store(true, ordering: .releasing)
  }
}
