#if Postgres
/// What a pool, a connection and a transaction have in common.
///
/// "Asks the server", in the documentation of a function, means all of this:
/// - It suspends the coroutine, no thread; the server's answer resumes it. Outside a coroutine it throws
///   `CoroutineError.notInCoroutine`.
/// - If the coroutine is cancelled, also by a deadline of `co_timeout`, the server is told to stop the statement, and
///   the coroutine waits until it has, at most `cancelTimeout`. Then the call throws the cancellation error. If the
///   server has not answered by then, the connection is closed. A statement that was faster than its cancellation has
///   taken effect.
/// - A lost connection: throws a ``PostgresError`` of kind `.lost`. Outside a transaction the statement may have taken
///   effect. Nothing is repeated by itself, but a transaction with `retries`.
/// - A statement that begins or ends a transaction, or a part of one, is refused with 25000, and one that has a value
///   inside of quotes, or a zero byte in its text, with `.decoding`. Nothing was sent then.
/// - Texts are sent and read in UTF-8. After a statement that sets `client_encoding` otherwise, also by a function, the
///   connection is closed, and the call throws `.lost`.
/// - Errors of the server are ``PostgresError``s of kind `.server`, with a `sqlState`.
public protocol PostgresSession {
  /// Runs one statement, and returns all its rows. Asks the server.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  func run(_ statement: SQL) throws -> PostgresRows
}

extension PostgresSession {
  /// Returns all rows, decoded.
  ///
  /// Asks the server.
  ///
  /// ```swift
  /// let ages = try db.all("select age from people", as: Int.self)
  /// for (name, age) in try db.all("select name, age from people", as: (String, Int?).self) { … }
  /// ```
  /// - Throws: As ``PostgresRow/decode(_:)``, too.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  @inlinable public func all<each V: PostgresDecodable>(_ statement: SQL, as type: (repeat each V).Type) throws -> [(
    repeat each V
  )] {
    try run(statement).map { try $0.decode(type) }
  }

  /// Returns all rows as structures whose properties are columns by name.
  ///
  /// Asks the server.
  ///
  /// - Throws: As ``PostgresRow/decode(as:)``, too.
  @_disfavoredOverload  // so that `as: Int.self` is a single column
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func all<V: Decodable>(_ statement: SQL, as type: V.Type) throws -> [V] {
    try run(statement).map { try $0.decode(as: type) }
  }

  /// Returns the first row, decoded, or nil if there is none.
  ///
  /// Asks the server.
  ///
  /// - Throws: As ``PostgresRow/decode(_:)``, too.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  @inlinable public func first<each V: PostgresDecodable>(_ statement: SQL, as type: (repeat each V).Type) throws -> (
    repeat each V
  )? {
    try run(statement).first?.decode(type)
  }

  /// Returns the first row as a structure whose properties are columns by name, or nil.
  ///
  /// Asks the server.
  ///
  /// - Throws: As ``PostgresRow/decode(as:)``, too.
  @_disfavoredOverload
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func first<V: Decodable>(_ statement: SQL, as type: V.Type) throws -> V? {
    try run(statement).first?.decode(as: type)
  }
}
#endif
