public import Dispatch
import Glibc

// The end of a chain. A failure that no `catch` handles is reported as unhandled, with the launch site of the promise
// on which `catch` was called.

/// The rest of a chain after its last `catch`.
///
/// It can run a closure at the very end.
public struct ChainEnd: Sendable {
  fileprivate let promise: Promise<Void>

  /// Runs `body` once, after the `catch` handler, or after the value if the handler had no failure to handle.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> ChainEnd {
    ChainEnd(promise: promise.ensure(on: queue, body))
  }
}

/// The rest of a chain after a `catch` of some failures.
///
/// It can add further `catch` handlers, a handler of all other failures, and a closure to run at the end. The first
/// handler that matches gets the failure. A failure that no handler matches is reported to
/// ``CoroutineRuntime/unhandledErrorHandler``.
public struct PartialCatch: Sendable {
  fileprivate let promise: Promise<Void>

  /// Handles failures of one type.
  @discardableResult
  public func `catch`<E: Error>(
    only type: E.Type,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (E) -> Void
  ) -> PartialCatch {
    PartialCatch(promise: promise.rescue(on: queue, promise.launchSite) { (error: E) throws -> Void in body(error) })
  }

  /// Handles one failure.
  @discardableResult
  public func `catch`<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch {
    PartialCatch(promise: promise.rescue(only: error, on: queue, promise.launchSite) { () throws -> Void in body() })
  }

  /// Handles every other failure, and ends the chain.
  @discardableResult
  public func `catch`(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (any Error) -> Void
  ) -> ChainEnd { promise.catch(on: queue, body) }

  /// Runs `body` once at the end, whatever the outcome.
  ///
  /// A failure that no handler before it matched is still unhandled.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: promise.tap(on: queue, promise.launchSite) { _ in body() }) }
}

extension Promise {
  /// Handles every failure, cancellation included, and ends the chain.
  ///
  /// Never suspends. May be called anywhere.
  @discardableResult
  public final func `catch`(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (any Error) -> Void
  ) -> ChainEnd {
    let link = Link<any Error, Void, Void>(body, launchSite)
    link.link(to: self, on: queue, .failure) { promise, _, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Void, Void>.self)
      if handles { try? link.body!(link.failureForHandler()) }
      _ = link.succeed((), fromOutside: false)
    }
    return ChainEnd(promise: link)
  }

  /// Handles failures of one type, and ends the chain for them.
  ///
  /// Further `catch(only:)` handlers may follow, and a `catch` of all other failures. Never suspends. May be called
  /// anywhere.
  @discardableResult
  public final func `catch`<E: Error>(
    only type: E.Type,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (E) -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: type, on: queue, body) }

  /// Handles one failure, and ends the chain for it.
  ///
  /// Further handlers may follow, as after a `catch` of a type.
  @discardableResult
  public final func `catch`<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: error, on: queue, body) }
}

// MARK: - Callbacks

// Adapters, one for each form of callback. Each runs `body` at once, on the caller, with the callback to pass on. In
// all of them:
// - The callback may be called within `body` or later, on any thread.
// - The first call counts. A second call is ignored, and reported to `CoroutineRuntime.unhandledErrorHandler` as
//   `ResumerUsedTwiceError`.
// - If the callback is released without a call, the promise rejects with `abandoned`.
// - An error that `body` throws rejects the promise.
// - An error takes precedence over a value. If the callback gets neither, the promise rejects with `invalidCallback`.

extension Promise {
  /// Creates a promise for a callback of a value and an error.
  public static func fromCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Success?, (any Error)?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done($0, $1) } }
  }

  /// Creates a promise for a callback of an error and a value, in this order.
  public static func fromErrorFirstCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable ((any Error)?, Success?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done($1, $0) } }
  }

  /// Creates a promise for a callback of a `Result`.
  public static func fromResultCallback<Failure: Error>(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Result<Success, Failure>) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { result in done.resume(with: result.mapError { $0 }) }
    }
  }

  /// Creates a promise for a callback of a value alone.
  public static func fromValueCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Success) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done.resume($0) } }
  }
}

extension Promise where Success == Void {
  /// Creates a promise for a callback of an error alone.
  ///
  /// Nil means success.
  public static func fromErrorCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable ((any Error)?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { error in done.resume(with: error.map { .failure($0) } ?? .success(())) }
    }
  }

  /// Creates a promise for a callback without parameters.
  public static func fromPlainCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable () -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done.resume(()) } }
  }
}

extension Promise where Success == Int {
  /// Creates a promise for a callback of one number, as a Linux system call returns it.
  ///
  /// The number is a count or a negated error number. A negative number rejects with ``ErrnoError``.
  public static func fromErrnoCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Int) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { answer in
        done.resume(with: answer < 0 ? .failure(ErrnoError(Int32(truncatingIfNeeded: -answer))) : .success(answer))
      }
    }
  }
}

/// The error number of a failed system call.
public struct ErrnoError: Error, Equatable, CustomStringConvertible {
  /// The number, as in `errno`.
  public var code: Int32
  /// Creates the error.
  public init(_ code: Int32) { self.code = code }
  /// The system's description of the error, and the number.
  public var description: String { "\(String(cString: strerror(code))) (error number \(code))" }
}

// MARK: - Operators

// Operators on two promises. None of them cancels a promise when the result is decided.

infix operator &&& : LogicalConjunctionPrecedence
infix operator ||| : LogicalDisjunctionPrecedence

/// Returns a promise for both values; the first failure rejects it at once and leaves the other promise running.
public func &&& <A: Sendable, B: Sendable>(a: Promise<A>, b: Promise<B>) -> Promise<(A, B)> {
  Promise<Void>.collectingTypes(a, b, losers: .leftRunning, a.launchSite)
}

/// Returns a promise for the promise's value and a plain value.
public func &&& <A: Sendable, B: Sendable>(a: Promise<A>, b: B) -> Promise<(A, B)> { a &&& Promise<B>.value(b) }

/// Returns a promise for a plain value and the promise's value.
public func &&& <A: Sendable, B: Sendable>(a: A, b: Promise<B>) -> Promise<(A, B)> { Promise<A>.value(a) &&& b }

/// Returns a promise for the first value; if both fail, it rejects with ``AggregateError`` of both failures.
public func ||| <A: Sendable>(a: Promise<A>, b: Promise<A>) -> Promise<A> { Promise.any([a, b]) }

/// Returns a promise for the value of `a`, or for `b` if `a` fails.
public func ||| <A: Sendable>(a: Promise<A>, b: A) -> Promise<A> { a.recover { _ -> A in b } }

/// Returns a promise for the plain value, which is known first.
///
/// The promise continues. A failure of it is not reported.
public func ||| <A: Sendable>(a: A, b: Promise<A>) -> Promise<A> { Promise<A>.value(a) ||| b }

/// Returns a promise for the first value, of either type; if both fail, it rejects with ``AggregateError``.
public func ||| <A: Sendable, B: Sendable>(a: Promise<A>, b: Promise<B>) -> Promise<AnyPromise.Either<A, B>> {
  Promise.any([a.mapped { .first($0) }, b.mapped { .second($0) }])
}

extension AnyPromise {
  /// The value of one of two promises of different types.
  public enum Either<First: Sendable, Second: Sendable>: Sendable {
    /// A value of the first type.
    case first(First)
    /// A value of the second type.
    case second(Second)
  }
}

extension AnyPromise.Either: Equatable where First: Equatable, Second: Equatable {}

extension Promise {
  /// Does the same as `then` for a closure of the library, which runs on no queue but in the settling call.
  fileprivate final func mapped<U: Sendable>(_ make: @escaping @Sendable (Success) -> U) -> Promise<U> {
    let made = Link<Success, U, U>({ make($0) }, launchSite)
    made.isPassive = true
    return link(made, nil, []) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Success, U, U>.self)
      if let source, let made = try? link.body!(source.completion.value(as: Success.self)) {
        _ = link.succeed(made, fromOutside: false)
      }
    }
  }
}
