#if Postgres
/// All rows of a result, in memory.
///
/// Never suspends; any thread.
public struct PostgresRows: RandomAccessCollection, Sendable {
  let memory: ResultMemory

  init(_ memory: ResultMemory) { self.memory = memory }

  /// 0.
  public var startIndex: Int { 0 }
  /// The number of rows.
  public var endIndex: Int { memory.count }
  /// A row.
  ///
  /// Traps if there is none of this index.
  public subscript(index: Int) -> PostgresRow {
    precondition(index >= 0 && index < memory.count, "A result of \(memory.count) rows has no row \(index).")
    return PostgresRow(memory: memory, index: index)
  }
  /// The names of the columns.
  public var columns: [String] { (0..<memory.columnCount).map { memory.name($0) } }
  /// The rows that were inserted, changed or deleted; of other statements, the number of rows.
  public var affected: Int { memory.affected }
}

/// A row; holds the memory of its whole result.
///
/// Never suspends; any thread.
public struct PostgresRow: Sendable {
  @usableFromInline let memory: ResultMemory
  @usableFromInline let index: Int

  /// Decodes the first columns, in order; an Optional for one that may be null.
  ///
  /// ```swift
  /// let (name, age) = try row.decode((String, Int?).self)
  /// ```
  ///
  /// - Throws: `.decoding`, with the column, for a null or a type that does not fit, and if there are fewer columns.
  @inlinable public func decode<each V: PostgresDecodable>(_ t: (repeat each V).Type) throws -> (repeat each V) {
    var next = 0
    func value<T: PostgresDecodable>(_ type: T.Type) throws -> T {
      defer { next += 1 }
      return try memory.decode(index, next, as: type)
    }
    return (repeat try value((each V).self))
  }

  /// Decodes the first column of this name.
  ///
  /// - Throws: `.decoding`, with the column, for a null or a type that does not fit, and if there is no such column.
  public func get<V: PostgresDecodable>(_ column: String, as type: V.Type = V.self) throws -> V {
    guard let number = memory.column(named: column) else {
      throw PostgresError(.decoding, "there is no column '\(column)'")
    }
    return try memory.decode(index, number, as: type)
  }

  /// Decodes a structure whose properties are columns by name; `camelCase` finds `camel_case`.
  ///
  /// A property that is Codable, and no value of a column, is read from a column of JSON.
  /// - Throws: As ``decode(_:)``.
  @_disfavoredOverload
  public func decode<V: Decodable>(as type: V.Type) throws -> V { try RowDecoder(row: self).value(type) }
}
#endif
