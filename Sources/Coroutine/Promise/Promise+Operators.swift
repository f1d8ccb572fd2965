// Two promises, by an operator. Neither cancels anything when it is decided.

infix operator &&& : LogicalConjunctionPrecedence
infix operator ||| : LogicalDisjunctionPrecedence

/// Both values; the first failure rejects at once and leaves the other running.
public func &&& <A: Sendable, B: Sendable>(a: Promise<A>, b: Promise<B>) -> Promise<(A, B)> {
  let both = Promise<(A, B)>(launchSite: a.launchSite)
  var (first, second): (A?, B?) = (nil, nil)
  var failure: (any Error)?
  both.wait(for: [a, b], .leftRunning) { member, index, isLast in
    if member.isRejected {
      failure = member.completion.pointee.failure
      return true
    }
    if index == 0 {
      first = member.completion.value(as: A.self)
    } else {
      second = member.completion.value(as: B.self)
    }
    return isLast
  } finish: { both in
    let both = unsafeDowncast(both, to: Promise<(A, B)>.self)
    both.settle(failure.map { .failure($0) } ?? .success((first.unsafelyUnwrapped, second.unsafelyUnwrapped)))
  }
  return both
}

/// A plain value beside a promise's.
public func &&& <A: Sendable, B: Sendable>(a: Promise<A>, b: B) -> Promise<(A, B)> { a &&& Promise<B>.value(b) }

/// A plain value beside a promise's.
public func &&& <A: Sendable, B: Sendable>(a: A, b: Promise<B>) -> Promise<(A, B)> { Promise<A>.value(a) &&& b }

/// The first value; when both fail, ``AggregateError`` with both failures.
public func ||| <A: Sendable>(a: Promise<A>, b: Promise<A>) -> Promise<A> { Promise.any([a, b]) }

/// The promise's value, or else a plain one.
public func ||| <A: Sendable>(a: Promise<A>, b: A) -> Promise<A> { a.recover { _ -> A in b } }

/// The plain value, which is there first.
///
/// The promise goes on; nobody needs to see a failure of it.
public func ||| <A: Sendable>(a: A, b: Promise<A>) -> Promise<A> { Promise<A>.value(a) ||| b }

/// The first value, which may be of either type; when both fail, ``AggregateError`` with both failures.
public func ||| <A: Sendable, B: Sendable>(a: Promise<A>, b: Promise<B>) -> Promise<Either<A, B>> {
  Promise.any([a.mapped { .first($0) }, b.mapped { .second($0) }])
}

/// A value of one of two types.
public enum Either<First: Sendable, Second: Sendable>: Sendable {
  /// Of the first.
  case first(First)
  /// Of the second.
  case second(Second)
}

extension Either: Equatable where First: Equatable, Second: Equatable {}

extension Promise {
  /// As `then`, for code of ours: on no queue, and in the settling call.
  fileprivate final func mapped<U: Sendable>(_ make: @escaping @Sendable (Success) -> U) -> Promise<U> {
    link(Link<Success, U, U>({ make($0) }, launchSite), nil, []) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Success, U, U>.self)
      if let source, let made = try? link.body!(source.completion.value(as: Success.self)) {
        _ = link.succeed(made, fromOutside: false)
      }
    }
  }
}
