#if NIO
public import Coroutine
public import NIOCore

// The combinators and the case of a select for futures, which cannot be Awaitables themselves (see
// EventLoopFuture+Await.swift). Each is the same as with `awaitable`.

/// Waits until all futures have succeeded, and returns their values in the order of the input.
///
/// Suspends. No future is affected.
/// - Throws: The first failure, at once; the cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "await the `get()` of `EventLoopFuture.whenAllSucceed`")
public func co_all<Value: Sendable>(_ futures: [EventLoopFuture<Value>]) throws -> [Value] {
  try co_all(futures.map(\.awaitable))
}

/// Waits until all futures are settled, and returns their outcomes in the order of the input.
///
/// Suspends. No future is affected.
/// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "await the `get()` of `EventLoopFuture.whenAllComplete`")
public func co_allSettled<Value: Sendable>(_ futures: [EventLoopFuture<Value>]) throws -> [Result<Value, any Error>] {
  try co_allSettled(futures.map(\.awaitable))
}

/// Waits for the first future that succeeds.
///
/// Suspends. No future is affected.
/// - Throws: ``AggregateError`` if all have failed, and for no futures; the cancellation error;
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use a task group")
public func co_any<Value: Sendable>(_ futures: [EventLoopFuture<Value>]) throws -> Value {
  try co_any(futures.map(\.awaitable))
}

/// Waits for the first future that is settled, and returns its value or throws its error.
///
/// Suspends. No future is affected.
/// - Throws: ``AggregateError`` for no futures; the cancellation error; ``CoroutineError/notInCoroutine`` outside a
///   coroutine.
@available(*, noasync, message: "use a task group")
public func co_race<Value: Sendable>(_ futures: [EventLoopFuture<Value>]) throws -> Value {
  try co_race(futures.map(\.awaitable))
}

extension EventLoopFuture where Value: Sendable {
  /// Returns a case for `co_select` that waits until the future is settled; `body` gets the outcome.
  ///
  /// If another case is selected, the future is unchanged. Any thread; does not suspend.
  public func onAwait<R>(_ body: @escaping (sending Result<Value, any Error>) throws -> R) -> SelectCase<R> {
    awaitable.onAwait(body)
  }
}
#endif
