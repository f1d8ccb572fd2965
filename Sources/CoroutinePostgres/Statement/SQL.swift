#if Postgres
/// A statement with its parameters.
///
/// An interpolated value is a parameter, never text, so it cannot be SQL.
///
/// ```swift
/// try db.run("update stock set left = left - \(count) where item = \(item)")
/// ```
///
/// A `String` is no `SQL`, so a string that was put together elsewhere does not compile as a statement.
/// `"select \(a), \(b)"` has one text for all values, so it is prepared once on each connection.
public struct SQL: ExpressibleByStringInterpolation, Sendable, CustomStringConvertible {
  // Invariants
  //  1. `marks` are the parameters of `text` in the order of their offsets; they do not overlap.
  //  2. The digits of a mark are its `value` plus one, and `value` is an index of `values`.
  // So a statement can be made part of another one by renumbering its marks, without reading its text.
  struct Mark: Sendable {
    /// The offset of the dollar sign in the UTF-8 of the text.
    var offset: Int
    /// The bytes of the dollar sign and the digits.
    var length: Int
    var value: Int
  }

  /// A parameter as the server gets it.
  struct Value: Sendable {
    var type: UInt32
    /// The binary format; nil is null.
    var bytes: [UInt8]?
  }

  var text = ""
  var marks: [Mark] = []
  var values: [Value] = []

  /// Creates a statement without parameters.
  public init(stringLiteral text: String) { self.text = text }

  /// Creates a statement from text and values.
  public init(stringInterpolation: Interpolation) { self = stringInterpolation.statement }

  /// Takes the text as it is, for tools.
  ///
  /// More than one statement is an error.
  ///
  /// - Parameters:
  ///   - text: The statement, with `$1`, `$2` and so on for the values.
  ///   - values: The values of the parameters.
  public init(unchecked text: String, _ values: [any PostgresEncodable] = []) {
    self.text = text
    self.values = values.map { Value($0) }
    if !values.isEmpty { marks = Self.marks(in: text, count: values.count) }
  }

  /// The text, with `$1`, `$2` and so on; without the values, so logs hold no secrets.
  public var description: String { text }

  /// Adds a parameter at the end.
  mutating func append(_ value: Value) {
    values.append(value)
    mark(values.count - 1)
  }

  private mutating func mark(_ value: Int) {
    let offset = text.utf8.count
    text += "$"
    if value < 9 {
      // Most are: an interpolation would cost more than the rest.
      text.unicodeScalars.append(Unicode.Scalar(UInt8(ascii: "1") + UInt8(truncatingIfNeeded: value)))
    } else {
      text += String(value + 1)
    }
    marks.append(Mark(offset: offset, length: text.utf8.count - offset, value: value))
  }

  /// Adds a statement at the end; its parameters get the next numbers.
  mutating func append(_ part: SQL) {
    let first = values.count
    var copied = part.text.startIndex
    for next in part.marks {
      let start = part.text.utf8.index(part.text.startIndex, offsetBy: next.offset)
      text += part.text[copied..<start]
      mark(first + next.value)
      copied = part.text.utf8.index(start, offsetBy: next.length)
    }
    text += part.text[copied...]
    values += part.values
  }
}

extension SQL.Value {
  init<V: PostgresEncodable>(_ value: V) {
    var bytes: [UInt8] = []
    value.encode(into: &bytes)
    self.init(type: V.postgresType, bytes: bytes)
  }
}
#endif
