public import Dispatch

// Links that convert a value or an outcome.

extension Promise {
  /// Returns a promise that `body` settles through a resumer.
  ///
  /// `body` gets the value. A failure is passed on without calling `body`. An error that `body` throws rejects the new
  /// promise. If the resumer is released unused, the new promise rejects with ``CoroutineError/abandoned``.
  public final func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success, Resumer<U>) throws -> Void
  ) -> Promise<U> {
    then(on: queue, file: file, line: line) { value throws -> Promise<U> in
      Promise<U>(file: file, line: line) { try body(value, $0) }
    }
  }

  /// Returns a promise for the result of `body`, which gets the outcome: a value or a failure.
  ///
  /// An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func thenResult<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) throws -> U
  ) -> Promise<U> {
    let made = Link<Result<Success, any Error>, U, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .either) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, U, U>.self)
      link.settle(byHandlerOf: link.outcomeOfUpstream(source))
    }
  }

  /// Returns a promise that settles as the promise that `body` returns, which gets the outcome.
  ///
  /// An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func thenResult<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) throws -> Promise<U>
  ) -> Promise<U> {
    let made = Link<Result<Success, any Error>, Promise<U>, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .either) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, Promise<U>, U>.self)
      link.follow(byHandlerOf: link.outcomeOfUpstream(source))
    }
  }

  /// Returns a promise for the result of `body`, which gets the value.
  ///
  /// A nil result rejects with ``PromiseValueMissingError``.
  public final func compactMap<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U?
  ) -> Promise<U> {
    then(on: queue, file: file, line: line) { value throws -> U in
      guard let mapped = try body(value) else { throw PromiseValueMissingError(value: value, wanted: U.self) }
      return mapped
    }
  }

  /// Makes each element into a promise, and returns a promise for their values, in the order of the elements.
  public final func thenMap<Element: Sendable, U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Element) throws -> Promise<U>
  ) -> Promise<[U]> where Success == [Element] {
    then(on: queue, file: file, line: line) { elements throws -> Promise<[U]> in
      Promise<U>.all(try elements.map(body), file: file, line: line)
    }
  }

  /// Passes the value on, or rejects with `error` or ``PromiseValidationError`` if `predicate` is false for the value.
  public final func validate(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    else error: (any Error)? = nil,
    _ predicate: @escaping @Sendable (Success) throws -> Bool
  ) -> Promise {
    then(on: queue, file: file, line: line) { value throws -> Success in
      guard try predicate(value) else { throw error ?? PromiseValidationError(value: value) }
      return value
    }
  }
}

extension AnyPromise {
  /// Returns the outcome of the upstream, a promise of a `Success`.
  ///
  /// Called in a handler of this link.
  @inlinable
  final func outcomeOfUpstream<Success: Sendable>(_ source: AnyPromise?) -> Result<Success, any Error> {
    source.map { .success($0.completion.value(as: Success.self)) } ?? .failure(failureForHandler())
  }
}

/// The error of a `compactMap` whose closure returned nil.
public struct PromiseValueMissingError: Error, CustomStringConvertible {
  /// The value that the closure got.
  public var value: any Sendable
  /// The type that the closure should have returned.
  public var wanted: any Any.Type
  /// Creates the error.
  public init(value: any Sendable, wanted: any Any.Type) { (self.value, self.wanted) = (value, wanted) }
  /// A sentence that describes the error.
  public var description: String {
    "no \(asWord(wanted)) can be made of \(asLine(value)); return one, or throw an error that says why not"
  }
}

/// The error of a value that `validate` has rejected.
public struct PromiseValidationError: Error, CustomStringConvertible {
  /// The value.
  public var value: any Sendable
  /// Creates the error.
  public init(value: any Sendable) { self.value = value }
  /// A sentence that describes the error.
  public var description: String { "the value \(asLine(value)) did not pass validate; give it an error to say why" }
}
