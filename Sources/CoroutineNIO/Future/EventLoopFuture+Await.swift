#if NIO
public import Coroutine
public import NIOCore

// Swift allows no conformance of EventLoopFuture to Awaitable: it would depend on Value being Sendable, and a
// conformance must not depend on that. So `co_await` has an overload, and `awaitable` makes an Awaitable for
// combinators and selects.

/// Waits for a future of SwiftNIO, and returns its value or throws its error.
///
/// - The future's callback wakes the coroutine. A coroutine of the future's own event loop continues in the same tick
///   of the loop, without a change of threads. A settled future of that loop does not suspend it.
/// - Futures cannot be cancelled: if the coroutine is cancelled, it throws the cancellation error at once, and the
///   future is not affected.
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
/// Unlike a future, the task can be cancelled: if the coroutine is cancelled, the task is cancelled too, unless it has
/// begun.
@available(*, noasync, message: "await the `get()` of its `futureResult`")
public func co_await<Value: Sendable>(_ scheduled: Scheduled<Value>) throws -> Value {
  let cancel: @Sendable () -> Void = { scheduled.cancel() }
  return try co_suspend(onCancel: cancel) { (resumer: Resumer<Value>) in
    scheduled.futureResult.whenComplete { resumer.resume(with: $0) }
  }
}

extension EventLoopFuture where Value: Sendable {
  /// The future as a combinator or a select takes it: `on(await: future.awaitable) { … }`.
  ///
  /// A combinator that no longer needs the result does not affect the future.
  public var awaitable: AwaitableFuture<Value> { AwaitableFuture(future: self, scheduled: nil) }
}

extension Scheduled where T: Sendable {
  /// The task as a combinator or a select takes it.
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
  /// `completion` is called on the event loop. If that was shut down, it is called where the loop refuses the callback,
  /// with `CoroutineError.abandoned`.
  public func observe(_ completion: @escaping @Sendable (Result<Output, any Error>) -> Void) -> Observation {
    let observer = FutureObserver(completion)
    let registration = FutureRegistration(observer)
    future.whenComplete { registration.observer.complete($0) }
    return Observation { observer.cancel() }
  }

  /// Cancels a scheduled task that has not begun; does nothing for a future.
  public func cancelAwaited() { scheduled?.cancel() }

  /// Waits by one callback.
  public func awaitValue() throws -> Output {
    if let scheduled { try co_await(scheduled) } else { try co_await(future) }
  }
}
#endif
