/// Anything that a coroutine can wait for once: ``Job``, ``Promise``, and your own conforming types.
///
/// A conformance provides a function that registers for the end, and one that cancels the registration:
///
/// ```swift
/// extension Download: Awaitable {
///   func observe(_ completion: @escaping @Sendable (Result<Data, any Error>) -> Void) -> AwaitableObservation {
///     let number = addListener { completion($0) }
///     return AwaitableObservation { removeListener(number) }
///   }
/// }
/// ```
///
/// <doc:WritingAnAwaitable> says what each of them promises, and what happens when a cancellation meets a result.
public protocol Awaitable<Output>: Sendable {
  /// The type of the result.
  associatedtype Output: Sendable

  /// Registers `completion`, to be called exactly once with the result.
  ///
  /// `completion` may be called on any thread, and also when the result is known already. It is not called if the
  /// observation is cancelled first. Must neither block nor suspend.
  ///
  /// - Parameter completion: Receives the result.
  /// - Returns: The way to remove the registration.
  func observe(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> AwaitableObservation

  /// Asks the underlying work to stop, because a combinator no longer needs its result. Does nothing by default.
  func cancelAwaited()

  /// Suspends the calling coroutine until the result is known. The default uses `observe`; the runtime's own types have
  /// a faster implementation.
  @available(*, noasync, message: "await `value`")
  func _awaitValue() throws -> Output
}

/// A registration that can be cancelled.
public struct AwaitableObservation: Sendable {
  private let onCancel: @Sendable () -> Void
  /// Creates an observation; `onCancel` removes the registration, and may be called too late and more than once.
  public init(_ onCancel: @escaping @Sendable () -> Void) { self.onCancel = onCancel }
  /// Removes the registration: the completion will not be called, unless it is too late.
  public func cancel() { onCancel() }
}

extension Awaitable {
  /// Does nothing.
  public func cancelAwaited() {}

  /// Waits through `observe`.
  @available(*, noasync, message: "await `value`")
  public func _awaitValue() throws -> Output {
    let registration = SetOnce<AwaitableObservation>()
    let cancel: @Sendable () -> Void = { registration.value?.cancel() }
    return try co_suspend(onCancel: cancel) { (done: Resumer<Output>) in
      registration.set(observe { done.resume(with: $0) })
    }
  }
}

/// An awaitable type of the runtime itself, whose outcome is stored in a completion.
protocol CompletionBacked {
  var completion: CompletionRef { get }

  /// Called by a coroutine that was cancelled while it waited for this, and does not wait any more.
  func consumerWasCancelled()
}

extension AnyJob: CompletionBacked {
  /// Does nothing: a job that a coroutine joins runs for its scope or its launcher.
  func consumerWasCancelled() {}
}

extension Awaitable {
  /// Observes for a coroutine that waits for several awaitables: if the result is known, `completion` is called at
  /// once.
  ///
  /// `observe` keeps the order of callbacks: called in a callback, it would call `completion` only after that callback
  /// has returned.
  func observeToWait(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> AwaitableObservation {
    guard let known = knownOutcome else {
      // No code of users: told at once, also where the job is cancelled before it has begun.
      return (self as? Job<Output>)?.observe(isForeign: false, completion) ?? observe(completion)
    }
    completion(known)
    return AwaitableObservation {}
  }

  private var knownOutcome: Result<Output, any Error>? {
    guard let completion = (self as? any CompletionBacked)?.completion, completion.isSettled else { return nil }
    return completion.seenOutcome(as: Output.self)
  }
}

/// Waits until `awaitable` has ended, and returns its value or throws its error.
///
/// If the result is known it returns at once, but lets other coroutines run when the time slice is over. If the
/// coroutine is cancelled, it throws its own cancellation error. A ``Promise`` whose last consumer is cancelled that
/// way is cancelled too if it has work to cancel, unless the coroutine awaits ``Promise/uncancelled``; a ``Job`` and
/// other types are not affected. Throws ``CoroutineError/notInCoroutine`` outside a coroutine.
@inlinable
@available(*, noasync, message: "await its `value`")
public func co_await<Output>(_ awaitable: some Awaitable<Output>) throws -> Output {
  try awaitable._awaitValue()
}

extension Job: Awaitable {
  /// Registers for the job's end.
  ///
  /// `completion` is called by the thread on which the job ends; at once if it has ended. If the job is cancelled
  /// before it has begun, it is called after ``AnyJob/cancel(_:)``, on another thread: never inside that call. Starts a
  /// lazy job.
  @_implements(Awaitable,observe(_:))
  public func _observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> AwaitableObservation {
    observe(isForeign: true, completion)
  }

  func observe(
    isForeign: Bool,
    _ completion: @escaping @Sendable (Result<Success, any Error>) -> Void
  ) -> AwaitableObservation {
    start()
    let callback = ClosureCallback(isForeign: isForeign) {
      completion(self.completion.settledOutcome(as: Success.self))
    }
    self.completion.touch()
    guard self.completion.add(callback) else {
      completion(self.completion.settledOutcome(as: Success.self))
      return AwaitableObservation {}
    }
    return AwaitableObservation { _ = self.completion.remove(callback) }
  }

  /// Cancels the job.
  @_implements(Awaitable,cancelAwaited())
  public func _cancelAwaited() { cancel() }

  /// Waits for the job as ``join()`` does.
  @available(*, noasync, message: "await `value`")
  @inlinable
  public func _awaitValue() throws -> Success { try join() }
}

/// A value that is set once and read later, from any thread.
final class SetOnce<Value: Sendable>: @unchecked Sendable {
  // Sound because the value is accessed under the lock.
  // Not shared: it is set by the call that makes it.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var stored: Value?
  init() {}
  var value: Value? { lock.withLock { stored } }
  func set(_ value: Value) { lock.withLock { if stored == nil { stored = value } } }
}
