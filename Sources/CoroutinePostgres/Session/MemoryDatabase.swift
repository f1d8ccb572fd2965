#if Postgres
internal import CPostgres
import Coroutine
import Glibc

// What takes a server's place, for programs that are tested without one. CoroutineWork has it: WorkMemory. A pool on it
// has no connection, and asks it where a pool on a server would take one; so the path of a statement to a server has
// one comparison more.

/// A database that is no server's, as one pool sees it.
package protocol MemoryDatabase: AnyObject, Sendable {
  /// Runs one statement outside of a transaction.
  func run(_ statement: SQL) throws -> PostgresRows
  func begin() throws -> any MemoryTransaction
}

/// A transaction of a ``MemoryDatabase``; `end` follows, whatever has happened.
package protocol MemoryTransaction: AnyObject, Sendable {
  func run(_ statement: SQL) throws -> PostgresRows
  /// How much has been done, for `undo(to:)`.
  func mark() throws -> Int
  func undo(to mark: Int)
  func commit() throws
  /// Forgets what was not committed, and gives back what is locked.
  func end()
}

extension PostgresPool {
  /// Creates a pool on a database that is no server's.
  ///
  /// Never suspends; any thread.
  package convenience init(on memory: any MemoryDatabase) {
    self.init(PoolCore(Server(), .init()), memory: memory)
  }

  /// Runs `body` once in a transaction of `memory`.
  func runTransaction<R>(in memory: any MemoryDatabase, _ body: (PostgresTransaction) throws -> R) throws -> R {
    let transaction = PostgresTransaction(try memory.begin())
    defer { transaction.memory?.end() }
    let value: R
    do { value = try body(transaction) } catch {
      transaction.end()
      throw error
    }
    transaction.end()
    try transaction.memory?.commit()
    for hook in transaction.hooks.withLock({ $0 }) { hook() }
    return value
  }

  /// What needs a connection of its own.
  static func needsServer(_ what: String) -> PostgresError {
    PostgresError(.ended, "a database in memory has no \(what); it runs statements and transactions")
  }
}

extension PostgresRows {
  /// Makes rows, for a program that answers statements itself: see `WorkMemory` of CoroutineWork.
  ///
  /// Never suspends; any thread.
  ///
  /// Traps if a row has another number of values than there are columns, and for a name with a zero byte.
  /// - Parameters:
  ///   - columns: The names of the columns. The type of a column is that of its first value.
  ///   - rows: The values; nil is null.
  ///   - affected: What ``affected`` says; nil for the number of rows.
  public init(columns: [String] = [], rows: [[(any PostgresEncodable)?]] = [], affected: Int? = nil) {
    guard let result = PQmakeEmptyPGresult(nil, PGRES_TUPLES_OK) else { misuse("there is no memory for a result") }
    memory = ResultMemory(result, isUTC: true, affected: affected)
    for row in rows where row.count != columns.count {
      misuse(
        "a row of \(row.count) values does not fit \(columns.count) columns; give each row a value for each column"
      )
    }
    for column in columns where column.utf8.contains(0) {
      misuse("the name of a column has a zero byte; no column of a server has one")
    }
    // A type that only the server would know is read as text.
    let types = columns.indices.map { column in
      rows.lazy.compactMap { $0[column] }.first.map { type(of: $0).postgresType } ?? 0
    }
    var isDone = true
    if !columns.isEmpty {
      let names = columns.map { strdup($0) }
      defer { for name in names { free(name) } }
      var attributes = zip(names, types).map { name, type in
        PGresAttDesc(
          name: name,
          tableid: 0,
          columnid: 0,
          format: type == 0 ? 0 : 1,
          typid: type == 0 ? 25 : type,
          typlen: -1,
          atttypmod: -1
        )
      }
      isDone = PQsetResultAttrs(result, Int32(attributes.count), &attributes) != 0
    }
    for (row, values) in rows.enumerated() {
      for (column, value) in values.enumerated() {
        var bytes: [UInt8] = []
        value?.encode(into: &bytes)
        let length = value == nil ? -1 : Int32(bytes.count)
        isDone =
          bytes.withUnsafeMutableBytes { bytes in
            let start = bytes.baseAddress?.assumingMemoryBound(to: CChar.self)
            return PQsetvalue(result, Int32(row), Int32(column), start, length) != 0
          } && isDone
      }
    }
    if !isDone { misuse("there is no memory for a result of \(rows.count) rows") }
  }
}

extension SQL {
  /// Throws what is refused in front of a server, so that a test without one finds it too.
  func checkedForMemory() throws -> SQL {
    try checkValues()
    _ = try changesSession()
    return self
  }

  /// Decodes the first values of the statement's parameters, in order: for a program that answers statements itself.
  ///
  /// ```swift
  /// let (order) = try statement.decode(String.self)
  /// ```
  /// Never suspends; any thread. An Optional for one that may be null.
  /// - Throws: `.decoding` for a null or a type that does not fit, and if there are fewer values.
  public func decode<each V: PostgresDecodable>(_ t: (repeat each V).Type) throws -> (repeat each V) {
    var next = 0
    func value<T: PostgresDecodable>(_ type: T.Type) throws -> T {
      defer { next += 1 }
      guard next < values.count else {
        throw PostgresError(.decoding, "the statement has \(values.count) values, so there is no value \(next + 1)")
      }
      let value = values[next]
      guard let bytes = bytes(of: value) else {
        if let nullable = T.self as? any Nullable.Type, let null = nullable.null as? T { return null }
        throw PostgresError(.decoding, "value \(next + 1) is null, and \(T.self) is no Optional")
      }
      return try bytes.withUnsafeBytes { try T(postgres: $0, type: value.type, isText: value.type == 0) }
    }
    return (repeat try value((each V).self))
  }
}
#endif
