#if NIO
public import Coroutine
public import NIOCore

// EventLoopFuture cannot conform to Awaitable, because the conformance would depend on Value being Sendable, which
// Swift does not allow. So `co_await` has an overload, and `awaitable` creates an Awaitable for combinators and
// selects.

/// Waits for a future of SwiftNIO, and returns its value or throws its error.
///
/// - Suspends. The future's callback resumes the coroutine. A coroutine of the future's own event loop continues in the
///   same tick of the loop, on the same thread, and is not suspended if the future is settled.
/// - If the coroutine is cancelled, it throws the cancellation error at once. The future is not affected, because
///   futures cannot be cancelled.
/// - Throws: The future's error; the cancellation error; `CoroutineError.abandoned` if the future's event loop was shut
///   down; `CoroutineError.notInCoroutine` outside a coroutine.
@available(*, noasync, message: "await its `get()`")
public func co_await<Value: Sendable>(_ future: EventLoopFuture<Value>) throws -> Value {
  // A callback that NIO drops releases the resumer unused, which resumes with `abandoned`.
  try co_suspend { (resumer: Resumer<Value>) in
    future.whenComplete { resumer.resume(with: $0) }
  }
}

/// Waits for a scheduled task of an event loop, as for its future.
///
/// If the coroutine is cancelled, it throws the cancellation error at once, and the task is cancelled too, unless it
/// has begun. In all other respects as for a future.
@available(*, noasync, message: "await the `get()` of its `futureResult`")
public func co_await<Value: Sendable>(_ scheduled: Scheduled<Value>) throws -> Value {
  let cancel: @Sendable () -> Void = { scheduled.cancel() }
  return try co_suspend(onCancel: cancel) { (resumer: Resumer<Value>) in
    scheduled.futureResult.whenComplete { resumer.resume(with: $0) }
  }
}

extension EventLoopFuture where Value: Sendable {
  /// The future as an Awaitable, for generic code: `wait(for: future.awaitable)`.
  ///
  /// A combinator that no longer needs the result does not affect the future.
  public var awaitable: AwaitableFuture<Value> { AwaitableFuture(future: self, scheduled: nil) }
}

extension Scheduled where T: Sendable {
  /// The task as an Awaitable, for combinators and selects.
  ///
  /// A combinator that no longer needs the result cancels the task.
  public var awaitable: AwaitableFuture<T> { AwaitableFuture(future: futureResult, scheduled: self) }
}

/// A future, or a scheduled task, of SwiftNIO.
public struct AwaitableFuture<Output: Sendable>: Awaitable {
  fileprivate let future: EventLoopFuture<Output>
  fileprivate let scheduled: Scheduled<Output>?

  /// Registers for the result.
  ///
  /// `completion` is called on the event loop. If the loop was shut down, it is called with `CoroutineError.abandoned`,
  /// on the thread that finds this out. Any thread; does not suspend.
  public func observe(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> AwaitableObservation {
    let observer = FutureObserver(completion)
    let registration = FutureRegistration(observer)
    future.whenComplete { registration.observer.complete($0) }
    return AwaitableObservation { observer.cancel() }
  }

  /// Cancels a scheduled task that has not begun; does nothing for a future.
  public func cancelAwaited() { scheduled?.cancel() }

  /// Suspends until the result is there, by one callback; as `co_await` does for the future or the task.
  @available(*, noasync, message: "await its `get()`")
  public func _awaitValue() throws -> Output {
    if let scheduled { try co_await(scheduled) } else { try co_await(future) }
  }
}
#endif
