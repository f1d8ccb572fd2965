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
