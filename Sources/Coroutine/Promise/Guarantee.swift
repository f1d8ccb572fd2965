public import Dispatch

/// A promise that is never rejected by its creator: the same chain without the error path.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// private func answer(to question: String) -> Guarantee<Int> {
///   Guarantee { resolve in ask(question) { resolve($0) } }
/// }
/// ```
///
/// It has no `cancel` and no `reject`. Waiting for a guarantee can still fail:
/// - in a cancelled coroutine, with the coroutine's own cancellation;
/// - with ``CoroutineError/abandoned``, if the resolver was released unused;
/// - with a `CancellationError`, if a derived promise was cancelled or timed out, and was the last to wait for the
///   guarantee;
/// - with ``AggregateError``, if it is a ``race(_:file:line:)`` of no guarantees.
///
/// A guarantee wraps a promise at no cost; ``promise`` is that promise, and has the error path.
public struct Guarantee<Success: Sendable>: Awaitable {
  /// The wrapped promise, for functions that take promises.
  public let promise: Promise<Success>

  @inlinable
  init(_ promise: Promise<Success>) { self.promise = promise }

  /// Settles a guarantee, once.
  public struct Resolver: Sendable {
    private let resumer: Resumer<Success>
    fileprivate init(_ resumer: Resumer<Success>) { self.resumer = resumer }
    /// Fulfils the guarantee.
    ///
    /// A second call is reported and ignored.
    public func callAsFunction(_ value: Success) { resumer.resume(value) }
  }

  /// Creates a guarantee, and runs `body` at once, on the caller.
  public init(file: StaticString = #fileID, line: UInt = #line, _ body: (Resolver) -> Void) {
    promise = Promise(file: file, line: line) { body(Resolver($0)) }
  }

  /// Returns a fulfilled guarantee.
  public static func value(_ value: Success) -> Guarantee { Guarantee(Promise.value(value)) }

  /// The value, or nil while the guarantee is pending.
  public var current: Success? { try? promise.result?.get() }

  /// The value, for async code.
  ///
  /// Throws if the Task is cancelled, or if the resolver was released unused. Neither is a failure of the guarantee.
  public var value: Success { get async throws { try await promise.value } }

  /// Returns a guarantee for the result of `body`, which gets the value.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> U
  ) -> Guarantee<U> {
    Guarantee<U>(promise.then(on: queue, file: file, line: line) { value throws -> U in body(value) })
  }

  /// Returns a guarantee that settles as the guarantee that `body` returns, which gets the value.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> Guarantee<U>
  ) -> Guarantee<U> {
    Guarantee<U>(promise.then(on: queue, file: file, line: line) { value throws -> Promise<U> in body(value).promise })
  }

  /// Returns a promise that settles as the promise that `body` returns.
  ///
  /// From here on there is an error path.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> Promise<U>
  ) -> Promise<U> {
    promise.then(on: queue, file: file, line: line) { value throws -> Promise<U> in body(value) }
  }

  /// Runs `body` with the value, and passes the value on.
  public func tap(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> Void
  ) -> Guarantee {
    Guarantee(promise.get(on: queue, file: file, line: line) { body($0) })
  }

  /// Runs `body` at the end, even if there is no value because the resolver was released unused.
  public func ensure(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Void
  ) -> Guarantee {
    Guarantee(promise.ensure(on: queue, file: file, line: line, body))
  }

  /// Returns a guarantee for the value, which is fulfilled `duration` after this one.
  public func delay(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Guarantee {
    Guarantee(promise.delay(duration, file: file, line: line))
  }

  /// Returns a guarantee that settles as this one does, without the value.
  public func asVoid(file: StaticString = #fileID, line: UInt = #line) -> Guarantee<Void> {
    Guarantee<Void>(promise.asVoid(file: file, line: line))
  }

  /// Runs `body` as a block of `queue`, where it may block, and returns a guarantee for its result.
  public static func running(
    on queue: DispatchQueue,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Success
  ) -> Guarantee {
    Guarantee(Promise.running(on: queue, file: file, line: line) { () throws -> Success in body() })
  }

  /// Returns a guarantee for the values of all guarantees, in their order.
  public static func all(
    _ guarantees: [Guarantee],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Guarantee<[Success]> {
    Guarantee<[Success]>(Promise.all(guarantees.map(\.promise), file: file, line: line))
  }

  /// Returns a guarantee for the first value.
  ///
  /// Without guarantees there is never a value: its waiters get ``AggregateError``. If it has no waiters, the error is
  /// reported as unhandled.
  public static func race(
    _ guarantees: [Guarantee],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Guarantee {
    Guarantee(Promise.race(guarantees.map(\.promise), file: file, line: line))
  }

  /// Calls `completion` once with the outcome, as the promise does.
  @_implements(Awaitable,observe(_:))
  public func _observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> AwaitableObservation {
    promise.observe(completion)
  }

  /// Suspends until there is a value, as co_await does.
  @available(*, noasync, message: "await `value`")
  @inlinable
  public func _awaitValue() throws -> Success { try promise._awaitValue() }
}

extension Guarantee: CompletionBacked {
  var completion: CompletionRef { promise.completion }
  func consumerWasCancelled() { promise.consumerWasCancelled() }
}

extension Promise {
  /// Handles every failure by returning a value.
  public final func recovered(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) -> Success
  ) -> Guarantee<Success> {
    Guarantee(recover(on: queue, file: file, line: line) { error throws -> Success in body(error) })
  }
}
