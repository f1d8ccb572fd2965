#if Postgres
/// A statement with its parameters.
///
/// An interpolated value is a parameter, never text, so it cannot be SQL.
///
/// ```swift
/// try db.run("update stock set left = left - \(count) where item = \(item)")
/// ```
///
/// A value stands beside quotes, never inside of them: `like '%' || \(part) || '%'`. A statement whose text does not
/// use one of its values is refused.
///
/// A `String` is no `SQL`, so a string that was put together elsewhere does not compile as a statement.
/// `"select \(a), \(b)"` has one text for all values, so it is prepared once on each connection.
public struct SQL: ExpressibleByStringInterpolation, Sendable, CustomStringConvertible {
  // Bytes in arrays, and not strings and an array for each value: most statements are short, and live for one call. So
  // making them would cost more than sending them.
  //
  // Invariants
  //  1. `marks` are the parameters of the text in the order of their offsets; they do not overlap.
  //  2. The digits of a mark are its `value` plus one, and `value` is an index of `values`.
  //  3. The values lie in `bytes` one after the other, in their order.
  // So a statement can be made part of another one by renumbering its marks, without reading its text.
  struct Mark: Sendable {
    /// The offset of the dollar sign in the text.
    var offset: Int
    /// The bytes of the dollar sign and the digits.
    var length: Int
    var value: Int
  }

  /// A parameter as the server gets it.
  struct Value: Sendable {
    var type: UInt32
    /// Its first byte in `bytes`.
    var start: Int
    /// How many bytes of the binary format it has; -1 is null.
    var count: Int
  }

  /// The text in UTF-8.
  var utf8: [UInt8]
  var marks: [Mark] = []
  var values: [Value] = []
  var bytes: [UInt8] = []

  /// Creates a statement without parameters.
  public init(stringLiteral text: String) { utf8 = Array(text.utf8) }

  /// Creates a statement from text and values.
  public init(stringInterpolation: Interpolation) { self = stringInterpolation.statement }

  /// Takes the text as it is, for tools.
  ///
  /// More than one statement is an error, and so is a zero byte: running it throws then, and nothing was sent.
  ///
  /// - Parameters:
  ///   - text: The statement, with `$1`, `$2` and so on for the values.
  ///   - values: The values of the parameters.
  public init(unchecked text: String, _ values: [any PostgresEncodable] = []) {
    self.init(stringLiteral: text)
    for value in values {
      var encoded: [UInt8] = []
      value.encode(into: &encoded)
      addValue(type(of: value).postgresType, taking: &encoded)
    }
    if !values.isEmpty { marks = Self.marks(in: utf8, count: values.count) }
  }

  /// The text, with `$1`, `$2` and so on; without the values, so logs hold no secrets.
  public var description: String { text }

  var text: String { String(decoding: utf8, as: UTF8.self) }

  /// The bytes of a value; nil is null.
  func bytes(of value: Value) -> ArraySlice<UInt8>? {
    value.count < 0 ? nil : bytes[value.start..<value.start + value.count]
  }

  /// Adds a parameter and its mark, and empties `encoded`.
  mutating func appendParameter(_ type: UInt32, taking encoded: inout [UInt8]) {
    addValue(type, taking: &encoded)
    mark(values.count - 1)
  }

  mutating func appendNull(_ type: UInt32) {
    values.append(Value(type: type, start: bytes.count, count: -1))
    mark(values.count - 1)
  }

  private mutating func addValue(_ type: UInt32, taking encoded: inout [UInt8]) {
    values.append(Value(type: type, start: bytes.count, count: encoded.count))
    if bytes.capacity == 0 {
      // Without a copy: many statements have one value.
      swap(&bytes, &encoded)
    } else {
      encoded.withUnsafeBufferPointer { bytes.append(contentsOf: $0) }
      encoded.removeAll(keepingCapacity: true)
    }
  }

  private mutating func mark(_ value: Int) {
    let offset = utf8.count
    utf8.append(UInt8(ascii: "$"))
    if value < 9 {
      utf8.append(UInt8(ascii: "1") + UInt8(truncatingIfNeeded: value))
    } else {
      utf8 += String(value + 1).utf8
    }
    marks.append(Mark(offset: offset, length: utf8.count - offset, value: value))
  }

  /// Adds a statement at the end; its parameters get the next numbers.
  mutating func append(_ part: SQL) {
    let (first, start) = (values.count, bytes.count)
    var copied = 0
    for next in part.marks {
      utf8 += part.utf8[copied..<next.offset]
      mark(first + next.value)
      copied = next.offset + next.length
    }
    utf8 += part.utf8[copied...]
    bytes += part.bytes
    values += part.values.lazy.map { Value(type: $0.type, start: start + $0.start, count: $0.count) }
  }
}
#endif
