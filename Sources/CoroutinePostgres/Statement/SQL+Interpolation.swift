#if Postgres
extension SQL {
  /// The parts of a statement with values in it.
  public struct Interpolation: StringInterpolationProtocol, Sendable {
    var statement: SQL
    /// Where a value is encoded.
    ///
    /// A conformance that assigns its bytes, in place of appending them, must not remove those of others.
    var scratch: [UInt8] = []

    /// Creates an empty statement.
    public init(literalCapacity: Int, interpolationCount: Int) {
      statement = SQL(literalCapacity: literalCapacity, valueCount: interpolationCount)
    }

    /// Adds text of the source code, as it is.
    public mutating func appendLiteral(_ literal: String) { statement.append(text: literal) }

    /// Adds a parameter.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ value: V) {
      value.encode(into: &scratch)
      appendScratch(V.postgresType)
    }

    /// Adds a parameter; nil is null.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ value: V?) {
      if let value { appendInterpolation(value) } else { appendNull(V.postgresType) }
    }

    /// Adds an array as one parameter: `where id = any(\(ids))`.
    ///
    /// Its elements need a type with a number (``PostgresEncodable/postgresType``); the server refuses others.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ list: [V]) {
      list.encode(into: &scratch)
      appendScratch([V].postgresType)
    }

    /// Adds an array with nulls as one parameter.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ list: [V?]) {
      ArrayFormat.encode(list, V.postgresType, hasNulls: list.contains { $0 == nil }, into: &scratch) { $0 }
      appendScratch(PostgresType.array(of: V.postgresType))
    }

    mutating func appendScratch(_ type: UInt32) { statement.appendParameter(type, taking: &scratch) }
    mutating func appendNull(_ type: UInt32) { statement.appendNull(type) }

    /// Adds another statement as a part of this one; its parameters come along.
    public mutating func appendInterpolation(_ part: SQL) { statement.append(part) }

    /// Adds the name of a table, a column or another object, in quotes.
    ///
    /// A name with a zero byte has no spelling in SQL: running the statement throws `.decoding`.
    public mutating func appendInterpolation(identifier: String) { statement.append(text: SQL.quoted(identifier)) }
  }

  init(literalCapacity: Int, valueCount: Int) {
    utf8 = []
    utf8.reserveCapacity(literalCapacity + 3 * valueCount)
    guard valueCount > 0 else { return }
    marks.reserveCapacity(valueCount)
    values.reserveCapacity(valueCount)
    // Of one value, the bytes are not copied. This is enough for numbers, dates and short texts.
    if valueCount > 1 { bytes.reserveCapacity(16 * valueCount) }
  }

  mutating func append(text: String) {
    // Literals are in one piece. The copy of the slow way is for texts that are not.
    let isDone: Void? = text.utf8.withContiguousStorageIfAvailable { utf8.append(contentsOf: $0) }
    if isDone == nil { utf8 += text.utf8 }
  }

  /// A name in double quotes.
  ///
  /// Those inside are doubled, so the name cannot end early. By scalars, because a quote with a combining mark behind
  /// it is a quote for the server, and another Character for Swift.
  package static func quoted(_ identifier: String) -> String {
    var text = "\""
    for character in identifier.unicodeScalars {
      if character == "\"" { text += "\"" }
      text.unicodeScalars.append(character)
    }
    return text + "\""
  }
}
#endif
