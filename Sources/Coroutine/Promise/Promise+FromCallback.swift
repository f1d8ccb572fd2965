import Glibc

// The shapes that callbacks come in. Each adapter runs `body` at once, on the caller, with the callback to hand over. In all of
// them: called within `body` or later, from any thread; the first call counts, a second one is reported to
// `CoroutineRuntime.onUnhandledError` as `ResumedTwice` and ignored; never called and released, the promise rejects with
// `abandoned`; a throw of `body` rejects. An error wins over a value; where there is neither, `invalidCallback`.

extension Promise {
  /// For callbacks of a value and an error.
  public static func fromCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Success?, (any Error)?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done($0, $1) } }
  }

  /// For callbacks of an error and a value, in this order.
  public static func fromErrorFirstCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable ((any Error)?, Success?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done($1, $0) } }
  }

  /// For callbacks of a `Result`.
  public static func fromResultCallback<Failure: Error>(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Result<Success, Failure>) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { result in done.resume(with: result.mapError { $0 }) }
    }
  }

  /// For callbacks of a value alone.
  public static func fromValueCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Success) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done.resume($0) } }
  }
}

extension Promise where Success == Void {
  /// For callbacks of an error alone: nil is success.
  public static func fromErrorCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable ((any Error)?) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { error in done.resume(with: error.map { .failure($0) } ?? .success(())) }
    }
  }

  /// For callbacks of nothing.
  public static func fromPlainCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable () -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in try body { done.resume(()) } }
  }
}

extension Promise where Success == Int {
  /// For callbacks of one number, in the way of Linux's own calls: a count, or an error number made negative.
  ///
  /// A negative number rejects with ``ErrorNumber``.
  public static func fromErrnoCallback(
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (@escaping @Sendable (Int) -> Void) throws -> Void
  ) -> Promise {
    Promise(file: file, line: line) { done in
      try body { answer in
        done.resume(with: answer < 0 ? .failure(ErrorNumber(Int32(truncatingIfNeeded: -answer))) : .success(answer))
      }
    }
  }
}

/// What a call of the system failed with.
public struct ErrorNumber: Error, Equatable, CustomStringConvertible {
  /// As in `errno`.
  public var code: Int32
  /// Creates the error.
  public init(_ code: Int32) { self.code = code }
  /// The system's own words, and the number.
  public var description: String { "\(String(cString: strerror(code))) (error number \(code))" }
}
