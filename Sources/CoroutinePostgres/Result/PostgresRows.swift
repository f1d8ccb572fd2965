#if Postgres
import Coroutine
internal import CPostgres
import FoundationEssentials
import Glibc

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
    if index < 0 || index >= memory.count { misuse("A result of \(memory.count) rows has no row \(index).") }
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
  /// A property that is Codable, and no value of a column, is read from a column of JSON. A column that is not there is
  /// an error, for an Optional as well. Of several columns of one name the first counts, as for ``get(_:as:)``: name
  /// those of a join by `as`.
  /// - Throws: As ``decode(_:)``.
  @_disfavoredOverload
  public func decode<V: Decodable>(as type: V.Type) throws -> V { try RowDecoder(row: self).value(type) }
}

// MARK: - Memory

/// A result of libpq.
///
/// Values are read where they lie, in libpq's memory.
@usableFromInline final class ResultMemory: @unchecked Sendable {
  // Sound because nothing changes a PGresult after its creation, and libpq allows threads to read one at the same time.
  let result: OpaquePointer
  /// Whether the session's zone was UTC: the server converts a `timestamp` by it where a Date is written.
  private let isUTC: Bool

  /// The number of changed rows, where the command tag does not tell it: of a result that the program has made.
  private let madeAffected: Int?

  /// Takes the result over.
  init(_ result: OpaquePointer, isUTC: Bool, affected: Int? = nil) {
    (self.result, self.isUTC, madeAffected) = (result, isUTC, affected)
  }
  deinit { PQclear(result) }

  var status: ExecStatusType { PQresultStatus(result) }
  var count: Int { Int(PQntuples(result)) }
  var columnCount: Int { Int(PQnfields(result)) }
  /// The first word of the command tag and what follows: "COMMIT", "INSERT 0 1".
  var tag: String { String(cString: PQcmdStatus(result)) }
  /// Whether the statement has removed all that are prepared, so that those of the cache are gone.
  var hasRemovedStatements: Bool {
    // Most statements are seen to be others by their first letter.
    guard let tag = PQcmdStatus(result), UInt8(bitPattern: tag[0]) == UInt8(ascii: "D") else { return false }
    return strcmp(tag, "DISCARD ALL") == 0 || strcmp(tag, "DEALLOCATE ALL") == 0
  }
  var affected: Int { madeAffected ?? Int(String(cString: PQcmdTuples(result))) ?? count }

  func name(_ column: Int) -> String { PQfname(result, Int32(column)).map { String(cString: $0) } ?? "" }
  func type(_ column: Int) -> UInt32 { PQftype(result, Int32(column)) }
  func isText(_ column: Int) -> Bool { PQfformat(result, Int32(column)) == 0 }

  /// The first column of this name.
  func column(named name: String) -> Int? {
    // No column has such a name, and the comparison would end there.
    if name.utf8.contains(0) { return nil }
    return (0..<columnCount).first { strcmp(PQfname(result, Int32($0)), name) == 0 }
  }

  /// The bytes of a value; nil is null.
  ///
  /// Valid as long as the result.
  func bytes(_ row: Int, _ column: Int) -> UnsafeRawBufferPointer? {
    if PQgetisnull(result, Int32(row), Int32(column)) == 1 { return nil }
    let length = Int(PQgetlength(result, Int32(row), Int32(column)))
    return UnsafeRawBufferPointer(start: PQgetvalue(result, Int32(row), Int32(column)), count: length)
  }

  /// The text of a value, for results of statements of this product.
  func string(_ row: Int, _ column: Int) -> String? { bytes(row, column).map { String(decoding: $0, as: UTF8.self) } }

  // MARK: Decoding

  /// A value that is not null.
  @usableFromInline struct Cell {
    /// Valid as long as the result.
    @usableFromInline let bytes: UnsafeRawBufferPointer
    @usableFromInline let type: UInt32
    @usableFromInline let isText: Bool
  }

  /// Decodes a value; the error names the column.
  @inlinable func decode<V: PostgresDecodable>(_ row: Int, _ column: Int, as type: V.Type) throws -> V {
    guard let cell = try cell(row, column) else { return try null(column, as: type) }
    // The bytes are in the memory of this object, which the caller may have used for the last time.
    return try withExtendedLifetime(self) {
      do { return try V(postgres: cell.bytes, type: cell.type, isText: cell.isText) } catch let error as PostgresError {
        throw misfit(column, error, "\(V.self)")
      }
    }
  }

  /// A value; nil is null.
  @usableFromInline func cell(_ row: Int, _ column: Int) throws -> Cell? {
    guard column < columnCount else {
      throw PostgresError(.decoding, "the row has \(columnCount) columns, so there is none for value \(column + 1)")
    }
    if !isUTC, PostgresType.isWithoutZone(type(column)) {
      let rule = "the session's time zone is not UTC, so this is no moment: select it as a timestamptz, by at time zone"
      throw named(column, PostgresError(.decoding, "column '\(name(column))': \(rule)"))
    }
    return bytes(row, column).map { Cell(bytes: $0, type: type(column), isText: isText(column)) }
  }

  @usableFromInline func null<V: PostgresDecodable>(_ column: Int, as type: V.Type) throws -> V {
    if let nullable = V.self as? any Nullable.Type, let null = nullable.null as? V { return null }
    throw named(
      column,
      PostgresError(.decoding, "the value of column '\(name(column))' is null, and \(V.self) is no Optional")
    )
  }

  @usableFromInline func misfit(_ column: Int, _ error: PostgresError, _ type: String) -> PostgresError {
    var error = error
    error.message = "column '\(name(column))' as \(type): \(error.message)"
    return named(column, error)
  }

  private func named(_ column: Int, _ error: PostgresError) -> PostgresError {
    var error = error
    error.column = name(column)
    return error
  }
}

// MARK: - Decoding by names

/// Reads a Decodable structure from a row, each property from the column of its name.
struct RowDecoder: Decoder {
  let row: PostgresRow
  var codingPath: [any CodingKey] { [] }
  var userInfo: [CodingUserInfoKey: Any] { [:] }

  /// The whole row; `.decoding` also for what the structure itself throws.
  func value<V: Decodable>(_ type: V.Type) throws -> V {
    // A single value of a column, also where the compiler has chosen the overload for structures.
    if V.self is any PostgresDecodable.Type { return try ColumnDecoder(row: row, column: 0).decode(type) }
    do { return try V(from: self) } catch let error as DecodingError {
      throw PostgresError(.decoding, "the row is no \(V.self)\(JSONFormat.path(to: error))")
    }
  }

  func container<Key: CodingKey>(keyedBy type: Key.Type) throws -> KeyedDecodingContainer<Key> {
    KeyedDecodingContainer(RowContainer(row: row))
  }
  func unkeyedContainer() throws -> any UnkeyedDecodingContainer {
    throw PostgresError(.decoding, "a row is no list: decode(_:) reads columns in their order")
  }
  /// A single value is the first column.
  func singleValueContainer() throws -> any SingleValueDecodingContainer { ColumnDecoder(row: row, column: 0) }

  /// `camelCase` as `camel_case`, and `customerID` as `customer_id`: capitals beside each other are one word, but the
  /// last one if a small letter follows.
  static func snakeCase(_ name: String) -> String {
    var text = ""
    let characters = Array(name)
    for (index, character) in characters.enumerated() {
      if character.isUppercase, index > 0, characters[index - 1] != "_" {
        let isEnd = index + 1 < characters.count && characters[index + 1].isLowercase
        if !characters[index - 1].isUppercase || isEnd { text += "_" }
      }
      text += character.lowercased()
    }
    return text
  }
}

private struct RowContainer<Key: CodingKey>: KeyedDecodingContainerProtocol {
  let row: PostgresRow
  var codingPath: [any CodingKey] { [] }
  var allKeys: [Key] { (0..<row.memory.columnCount).compactMap { Key(stringValue: row.memory.name($0)) } }

  private func column(_ key: Key) -> Int? {
    row.memory.column(named: key.stringValue)
      ?? row.memory.column(named: RowDecoder.snakeCase(key.stringValue))
  }
  private func required(_ key: Key) throws -> ColumnDecoder {
    guard let column = column(key) else {
      throw PostgresError(
        .decoding,
        "there is no column '\(key.stringValue)' or '\(RowDecoder.snakeCase(key.stringValue))'"
      )
    }
    return ColumnDecoder(row: row, column: column)
  }

  func contains(_ key: Key) -> Bool { column(key) != nil }
  func decodeNil(forKey key: Key) throws -> Bool { try required(key).decodeNil() }
  func decode<T: Decodable>(_ type: T.Type, forKey key: Key) throws -> T { try required(key).decode(type) }

  func nestedContainer<Nested: CodingKey>(
    keyedBy type: Nested.Type,
    forKey key: Key
  ) throws -> KeyedDecodingContainer<Nested> {
    throw PostgresError(.decoding, "column '\(key.stringValue)' has no columns of its own")
  }
  func nestedUnkeyedContainer(forKey key: Key) throws -> any UnkeyedDecodingContainer {
    throw PostgresError(.decoding, "column '\(key.stringValue)' is no list")
  }
  func superDecoder() throws -> any Decoder { RowDecoder(row: row) }
  func superDecoder(forKey key: Key) throws -> any Decoder { try required(key) }
}

/// Properties that are Optionals: null is nil, and a column that is not there is an error, as it is for a property that
/// is none, because its name may be misspelt.
///
/// One for each type that the protocol names: it has implementations of its own for these, for which a column that is
/// not there is nil.
extension RowContainer {
  private func optional<T: Decodable>(_ key: Key) throws -> T? {
    let column = try required(key)
    return column.decodeNil() ? nil : try column.decode(T.self)
  }
  func decodeIfPresent<T: Decodable>(_ type: T.Type, forKey key: Key) throws -> T? { try optional(key) }
  func decodeIfPresent(_ type: Bool.Type, forKey key: Key) throws -> Bool? { try optional(key) }
  func decodeIfPresent(_ type: String.Type, forKey key: Key) throws -> String? { try optional(key) }
  func decodeIfPresent(_ type: Double.Type, forKey key: Key) throws -> Double? { try optional(key) }
  func decodeIfPresent(_ type: Float.Type, forKey key: Key) throws -> Float? { try optional(key) }
  func decodeIfPresent(_ type: Int.Type, forKey key: Key) throws -> Int? { try optional(key) }
  func decodeIfPresent(_ type: Int8.Type, forKey key: Key) throws -> Int8? { try optional(key) }
  func decodeIfPresent(_ type: Int16.Type, forKey key: Key) throws -> Int16? { try optional(key) }
  func decodeIfPresent(_ type: Int32.Type, forKey key: Key) throws -> Int32? { try optional(key) }
  func decodeIfPresent(_ type: Int64.Type, forKey key: Key) throws -> Int64? { try optional(key) }
  func decodeIfPresent(_ type: UInt.Type, forKey key: Key) throws -> UInt? { try optional(key) }
  func decodeIfPresent(_ type: UInt8.Type, forKey key: Key) throws -> UInt8? { try optional(key) }
  func decodeIfPresent(_ type: UInt16.Type, forKey key: Key) throws -> UInt16? { try optional(key) }
  func decodeIfPresent(_ type: UInt32.Type, forKey key: Key) throws -> UInt32? { try optional(key) }
  func decodeIfPresent(_ type: UInt64.Type, forKey key: Key) throws -> UInt64? { try optional(key) }
}

/// An Array, whatever its elements.
private protocol ListOfColumn {}
extension Array: ListOfColumn {}

/// One column: a value of this product, an enumeration with a raw value, or JSON.
private struct ColumnDecoder: Decoder, SingleValueDecodingContainer {
  let row: PostgresRow
  let column: Int
  var codingPath: [any CodingKey] { [] }
  var userInfo: [CodingUserInfoKey: Any] { [:] }

  func decodeNil() -> Bool { row.memory.bytes(row.index, column) == nil }

  func decode<T: Decodable>(_ type: T.Type) throws -> T {
    let number = row.memory.type(column)
    let isJSON = number == PostgresType.jsonb || number == PostgresType.json
    // A list is a value of a column as well, but not of this one.
    if let known = T.self as? any PostgresDecodable.Type, !(isJSON && T.self is any ListOfColumn.Type) {
      func read<V: PostgresDecodable>(_ type: V.Type) throws -> V { try row.memory.decode(row.index, column, as: type) }
      // The same type by its other conformance.
      if let value = try read(known) as? T { return value }
    }
    // These would ask for themselves again and again.
    if let whole = T.self as? any FixedWidthInteger.Type, let value = try self.whole(whole) as? T { return value }
    if isJSON, !(T.self is any RawRepresentable.Type) {
      let text = try row.memory.decode(row.index, column, as: String.self)
      return try JSONFormat.decode(text)
    }
    return try T(from: self)
  }

  private func whole<Number: FixedWidthInteger>(_ type: Number.Type) throws -> Number {
    guard let cell = try row.memory.cell(row.index, column) else {
      return try Number(exactly: row.memory.null(column, as: Int64.self)) ?? 0
    }
    do { return try IntegerFormat.decode(cell.bytes, cell.type, cell.isText) } catch let error as PostgresError {
      throw row.memory.misfit(column, error, "\(Number.self)")
    }
  }

  func singleValueContainer() throws -> any SingleValueDecodingContainer { self }
  func container<Key: CodingKey>(keyedBy type: Key.Type) throws -> KeyedDecodingContainer<Key> {
    throw PostgresError(.decoding, "column '\(row.memory.name(column))' is no JSON, so it has no properties")
  }
  func unkeyedContainer() throws -> any UnkeyedDecodingContainer {
    throw PostgresError(.decoding, "column '\(row.memory.name(column))' is no JSON, so it is no list")
  }
}
#endif
