#if Postgres
extension SQL {
  /// The parts of a statement with values in it.
  public struct Interpolation: StringInterpolationProtocol, Sendable {
    var statement = SQL(stringLiteral: "")

    /// Creates an empty statement.
    public init(literalCapacity: Int, interpolationCount: Int) {
      statement.text.reserveCapacity(literalCapacity + 3 * interpolationCount)
      statement.marks.reserveCapacity(interpolationCount)
      statement.values.reserveCapacity(interpolationCount)
    }

    /// Adds text of the source code, as it is.
    public mutating func appendLiteral(_ literal: String) { statement.text += literal }

    /// Adds a parameter.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ value: V) { statement.append(Value(value)) }

    /// Adds a parameter; nil is null.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ value: V?) {
      statement.append(value.map { Value($0) } ?? Value(type: V.postgresType, bytes: nil))
    }

    /// Adds an array as one parameter: `where id = any(\(ids))`.
    ///
    /// Its elements need a type with a number (``PostgresEncodable/postgresType``); the server refuses others.
    public mutating func appendInterpolation<V: PostgresEncodable>(_ list: [V]) {
      var bytes: [UInt8] = []
      ArrayFormat.encode(list, into: &bytes)
      statement.append(Value(type: ArrayFormat.type(of: V.postgresType), bytes: bytes))
    }

    /// Adds another statement as a part of this one; its parameters come along.
    public mutating func appendInterpolation(_ part: SQL) { statement.append(part) }

    /// Adds the name of a table, a column or another object, in quotes.
    ///
    /// A name with a zero byte has no spelling in SQL: the server refuses the statement.
    public mutating func appendInterpolation(identifier: String) { statement.text += SQL.quoted(identifier) }
  }

  /// A name in double quotes.
  ///
  /// Those inside are doubled, so the name cannot end early.
  static func quoted(_ identifier: String) -> String {
    var text = "\""
    for character in identifier.unicodeScalars {
      if character == "\"" { text += "\"" }
      text.unicodeScalars.append(character)
    }
    return text + "\""
  }
}
#endif
