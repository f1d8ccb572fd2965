public import Dispatch

/// A promise that is never rejected by anyone: the same chain without the error path.
///
/// It has no cancel and no reject. What waits for one can still end otherwise: a coroutine by its own cancellation; with
/// ``CoroutineError/abandoned`` where the resolver is released unused; with a `CancellationError` where a promise derived from it was
/// cancelled, or timed out, and had been the last to wait for it; and with ``AggregateError`` where it is a ``race(_:file:line:)``
/// of none. It is a promise underneath, at no cost: ``promise`` is that promise.
public struct Guarantee<Success: Sendable>: Awaitable {
  /// What it is fulfilled with.
  public typealias Output = Success

  /// The same as a promise, for what takes promises.
  public let promise: Promise<Success>

  @inlinable
  init(_ promise: Promise<Success>) { self.promise = promise }

  /// Settles a guarantee, once.
  public struct Resolver: Sendable {
    private let resumer: Resumer<Success>
    fileprivate init(_ resumer: Resumer<Success>) { self.resumer = resumer }
    /// Fulfils the guarantee; a second call is reported and ignored.
    public func callAsFunction(_ value: Success) { resumer.resume(value) }
  }

  /// Creates a guarantee and runs `body` at once, on the caller.
  public init(file: StaticString = #fileID, line: UInt = #line, _ body: (Resolver) -> Void) {
    promise = Promise(file: file, line: line) { body(Resolver($0)) }
  }

  /// A fulfilled guarantee.
  public static func value(_ value: Success) -> Guarantee { Guarantee(Promise.value(value)) }

  /// The value; nil while pending.
  public var current: Success? { try? promise.result?.get() }

  /// The value, for async code.
  ///
  /// Throws only what is no failure of the guarantee: the Task's own cancellation, or that the resolver was released unused.
  public var value: Success { get async throws { try await promise.value } }

  /// A guarantee for what `body` makes of the value.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> U
  ) -> Guarantee<U> {
    Guarantee<U>(promise.then(on: queue, file: file, line: line) { value throws -> U in body(value) })
  }

  /// A guarantee that settles as the one that `body` makes of the value.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> Guarantee<U>
  ) -> Guarantee<U> {
    Guarantee<U>(promise.then(on: queue, file: file, line: line) { value throws -> Promise<U> in body(value).promise })
  }

  /// A promise that settles as the one that `body` makes of the value: from here on there is an error path.
  public func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) -> Promise<U>
  ) -> Promise<U> {
    promise.then(on: queue, file: file, line: line) { value throws -> Promise<U> in body(value) }
  }

  /// A promise for what `body` makes of the value: from here on there is an error path.
  public func thenTry<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U
  ) -> Promise<U> {
    promise.then(on: queue, file: file, line: line) { value throws -> U in try body(value) }
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

  /// Runs `body` at the end, also where there is no value because the resolver was released unused.
  public func ensure(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Void
  ) -> Guarantee {
    Guarantee(promise.ensure(on: queue, file: file, line: line, body))
  }

  /// The value, `duration` after it is there.
  public func delay(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Guarantee {
    Guarantee(promise.delay(duration, file: file, line: line))
  }

  /// A promise of the value that rejects with ``TimeoutError`` if there is none after `duration`: from here on there is an error
  /// path.
  public func timeout(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise<Success> {
    promise.timeout(duration, file: file, line: line)
  }

  /// The same guarantee without the value.
  public func asVoid(file: StaticString = #fileID, line: UInt = #line) -> Guarantee<Void> {
    Guarantee<Void>(promise.asVoid(file: file, line: line))
  }

  /// Runs `body` as a block of `queue`, where it may block, for a guarantee of what it returns.
  public static func running(
    on queue: DispatchQueue,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Success
  ) -> Guarantee {
    Guarantee(Promise.running(on: queue, file: file, line: line) { () throws -> Success in body() })
  }

  /// The values of all, in their order.
  public static func all(
    _ guarantees: [Guarantee],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Guarantee<[Success]> {
    Guarantee<[Success]>(Promise.all(guarantees.map(\.promise), file: file, line: line))
  }

  /// The value of the first.
  ///
  /// Of none there is never one: who waits gets ``AggregateError``, and it is reported as unhandled if nobody does.
  public static func race(
    _ guarantees: [Guarantee],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Guarantee {
    Guarantee(Promise.race(guarantees.map(\.promise), file: file, line: line))
  }

  /// Tells of the value, as the promise does.
  public func observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> Observation {
    promise.observe(completion)
  }

  /// Suspends until there is a value, as co_await does.
  @inlinable
  public func awaitValue() throws -> Success { try promise.awaitValue() }
}

extension Guarantee: PromiseBacked {
  var anyPromise: AnyPromise { promise }
}

extension Promise {
  /// Handles every failure with a value that is always there.
  public final func recovered(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) -> Success
  ) -> Guarantee<Success> {
    Guarantee(recover(on: queue, file: file, line: line) { error throws -> Success in body(error) })
  }
}
