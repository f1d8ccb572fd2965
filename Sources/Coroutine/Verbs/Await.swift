/// Anything a coroutine can wait for once: ``Job``, ``Promise``, and what you conform.
///
/// A conformance says how to be told of the end, and how to call that off:
///
/// ```swift
/// extension Download: Awaitable {
///   func observe(_ completion: @escaping @Sendable (Result<Data, any Error>) -> Void) -> Observation {
///     let number = addListener { completion($0) }
///     return Observation { removeListener(number) }
///   }
/// }
/// ```
public protocol Awaitable<Output>: Sendable {
  /// What it ends with.
  associatedtype Output: Sendable

  /// Calls `completion` exactly once, when the end is known, from any thread, also when it is known already; unless the
  /// observation is cancelled first. Must not block and must not suspend.
  func observe(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> Observation

  /// Asks the work behind it to stop, because a combinator that waited for it needs it no more. Does nothing by default.
  func cancelAwaited()

  /// Suspends the calling coroutine until the end. The default builds on `observe`; the runtime's own types have a faster way.
  func awaitValue() throws -> Output
}

/// A registration that can be called off.
public struct Observation: Sendable {
  private let onCancel: @Sendable () -> Void
  /// `onCancel` calls the registration off; it may come too late, and more than once.
  public init(_ onCancel: @escaping @Sendable () -> Void) { self.onCancel = onCancel }
  /// Calls the registration off: unless it is too late, the completion will not be called.
  public func cancel() { onCancel() }
}

extension Awaitable {
  /// Does nothing.
  public func cancelAwaited() {}

  /// Waits through `observe`.
  public func awaitValue() throws -> Output {
    let registration = SetOnce<Observation>()
    let cancel: @Sendable () -> Void = { registration.value?.cancel() }
    return try co_suspend(onCancel: cancel) { (done: Resumer<Output>) in
      registration.set(observe { done.resume(with: $0) })
    }
  }
}

/// An awaitable of the runtime's own, whose outcome lies in a completion.
protocol CompletionBacked {
  var completion: CompletionRef { get }
}

extension AnyJob: CompletionBacked {}

extension Awaitable {
  /// As observe, for a coroutine that waits for several: it is told at once of an end that is known.
  ///
  /// `observe` keeps the order of callbacks. To the coroutine that one of them runs on it would tell after that one's return.
  func observeToWait(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> Observation {
    guard let known = knownOutcome else { return observe(completion) }
    completion(known)
    return Observation {}
  }

  private var knownOutcome: Result<Output, any Error>? {
    guard let completion = (self as? any CompletionBacked)?.completion, completion.isSettled else { return nil }
    return completion.seenOutcome(as: Output.self)
  }
}

/// Suspends until `awaitable` has ended and returns its value or throws its error.
///
/// Where the end is known it returns at once, except that it lets others run when the time slice is over. Cancelled, it throws its
/// own cancellation and leaves what it waited for alone. Off a coroutine ``CoroutineError/notInCoroutine``.
@inlinable
public func co_await<Output>(_ awaitable: some Awaitable<Output>) throws -> Output {
  try awaitable.awaitValue()
}

extension Job: Awaitable {
  /// What joining the job returns.
  public typealias Output = Success

  /// Tells of the job's end.
  ///
  /// Starts a lazy job.
  public func observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> Observation {
    start()
    let callback = ClosureCallback { completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped) }
    guard self.completion.add(callback) else {
      completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped)
      return Observation {}
    }
    return Observation { _ = self.completion.remove(callback) }
  }

  /// Cancels the job.
  public func cancelAwaited() { cancel() }

  /// As ``join()``.
  @inlinable
  public func awaitValue() throws -> Success { try join() }
}

/// A value that is set once and read later, from any thread.
final class SetOnce<Value: Sendable>: @unchecked Sendable {
  // Sound because the value is under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var stored: Value?
  init() {}
  var value: Value? { lock.withLock { stored } }
  func set(_ value: Value) { lock.withLock { if stored == nil { stored = value } } }
}
