public import Dispatch

// Links that make something else of a value, or of an outcome.

extension Promise {
  /// A link in the callback style: `body` gets the value and a resumer that settles the result.
  ///
  /// A failure passes by; a throw of `body` rejects; a resumer released unused rejects with ``CoroutineError/abandoned``.
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

  /// A promise for what `body` makes of the outcome, be it a value or a failure.
  ///
  /// A throw of `body` rejects. Never suspends; may be called anywhere.
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

  /// As thenResult, with a promise: the result settles as that one does.
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
      link.adopt(byHandlerOf: link.outcomeOfUpstream(source))
    }
  }

  /// The value made into another; nil rejects with ``ValueMissing``.
  public final func compactMap<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U?
  ) -> Promise<U> {
    then(on: queue, file: file, line: line) { value throws -> U in
      guard let mapped = try body(value) else { throw ValueMissing(value: value, wanted: U.self) }
      return mapped
    }
  }

  /// Each element made into a promise; the results in their order.
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

  /// Rejects a value for which `predicate` is false with ``ValidationFailed``, or with `error`.
  public final func validate(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    else error: (any Error)? = nil,
    _ predicate: @escaping @Sendable (Success) throws -> Bool
  ) -> Promise {
    then(on: queue, file: file, line: line) { value throws -> Success in
      guard try predicate(value) else { throw error ?? ValidationFailed(value: value) }
      return value
    }
  }
}

extension AnyPromise {
  /// In a handler of this link: how its upstream, the promise of a `Success`, has ended.
  @inlinable
  final func outcomeOfUpstream<Success: Sendable>(_ source: AnyPromise?) -> Result<Success, any Error> {
    source.map { .success($0.completion.value(as: Success.self)) } ?? .failure(failureForHandler())
  }
}

/// A `compactMap` had no value to go on with.
public struct ValueMissing: Error, CustomStringConvertible {
  /// What was to be made into another value.
  public var value: any Sendable
  /// The type that was wanted.
  public var wanted: any Any.Type
  /// Creates the error.
  public init(value: any Sendable, wanted: any Any.Type) { (self.value, self.wanted) = (value, wanted) }
  /// One sentence.
  public var description: String {
    "no \(wanted) can be made of \(value); return one, or throw an error that says why not"
  }
}

/// A value did not pass `validate`.
public struct ValidationFailed: Error, CustomStringConvertible {
  /// The value.
  public var value: any Sendable
  /// Creates the error.
  public init(value: any Sendable) { self.value = value }
  /// One sentence.
  public var description: String { "the value \(value) did not pass validate; give it an error to say why" }
}
