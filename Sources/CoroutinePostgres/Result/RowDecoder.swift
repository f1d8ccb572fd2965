#if Postgres
import FoundationEssentials

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
      throw PostgresError(.decoding, "a row as \(V.self): \(error)")
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

  /// `camelCase` as `camel_case`.
  static func snakeCase(_ name: String) -> String {
    var text = ""
    for character in name {
      if character.isUppercase, !text.isEmpty { text += "_" }
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

/// One column: a value of this product, an enumeration with a raw value, or JSON.
private struct ColumnDecoder: Decoder, SingleValueDecodingContainer {
  let row: PostgresRow
  let column: Int
  var codingPath: [any CodingKey] { [] }
  var userInfo: [CodingUserInfoKey: Any] { [:] }

  func decodeNil() -> Bool { row.memory.bytes(row.index, column) == nil }

  func decode<T: Decodable>(_ type: T.Type) throws -> T {
    if let known = T.self as? any PostgresDecodable.Type {
      func read<V: PostgresDecodable>(_ type: V.Type) throws -> V { try row.memory.decode(row.index, column, as: type) }
      // The same type by its other conformance.
      if let value = try read(known) as? T { return value }
    }
    let number = row.memory.type(column)
    if number == PostgresType.jsonb || number == PostgresType.json, !(T.self is any RawRepresentable.Type) {
      let text = try row.memory.decode(row.index, column, as: String.self)
      return try JSONDecoder().decode(T.self, from: Data(text.utf8))
    }
    return try T(from: self)
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
