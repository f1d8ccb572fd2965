import Glibc

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
