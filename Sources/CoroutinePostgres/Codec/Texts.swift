#if Postgres
public import FoundationEssentials

extension Bool: PostgresEncodable, PostgresDecodable {
  /// `boolean`.
  public static var postgresType: UInt32 { PostgresType.bool }
  /// Appends one byte.
  public func encode(into bytes: inout [UInt8]) { bytes.append(self ? 1 : 0) }
  /// Reads a `boolean`.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    guard bytes.count == 1, isText || type == PostgresType.bool else {
      throw PostgresError.misfit("it is no Bool", type)
    }
    self = isText ? bytes[0] == UInt8(ascii: "t") : bytes[0] != 0
  }
}

extension String: PostgresEncodable, PostgresDecodable {
  /// `text`.
  public static var postgresType: UInt32 { PostgresType.text }
  /// Appends the UTF-8.
  ///
  /// The server refuses a text with a zero byte (22021).
  public func encode(into bytes: inout [UInt8]) { bytes += utf8 }
  /// Reads a text, JSON, or a value of an enumeration; refuses bytes that are no UTF-8, and the type `bytea`.
  ///
  /// Values of other types are texts after a cast: `select place::text`.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    var bytes = bytes[...]
    if !isText {
      switch type {
      case PostgresType.text, PostgresType.varchar, PostgresType.bpchar, PostgresType.name, PostgresType.json,
        PostgresType.xml, PostgresType.unknown, PostgresType.char:
        break
      case PostgresType.jsonb:
        // The version of the format.
        guard bytes.first == 1 else { throw PostgresError.misfit("this version of jsonb is unknown", type) }
        bytes = bytes.dropFirst()
      // No text has a zero byte, and nearly every binary format has one.
      case PostgresType.firstAdded... where !bytes.contains(0): break
      default: throw PostgresError.misfit("it is no text; cast it to text", type)
      }
    }
    guard let text = String(validating: bytes, as: UTF8.self) else {
      throw PostgresError.misfit("the text is no UTF-8", type)
    }
    self = text
  }
}

extension [UInt8]: PostgresEncodable, PostgresDecodable {
  /// `bytea`.
  public static var postgresType: UInt32 { PostgresType.bytea }
  /// Appends the bytes.
  public func encode(into bytes: inout [UInt8]) { bytes += self }
  /// Reads a `bytea`.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    guard type == PostgresType.bytea else { throw PostgresError.misfit("it is no bytea", type) }
    guard isText else {
      self = Array(bytes)
      return
    }
    let digits = bytes.dropFirst(2)
    guard bytes.starts(with: [UInt8(ascii: "\\"), UInt8(ascii: "x")]), digits.count.isMultiple(of: 2) else {
      throw PostgresError.misfit("it is no bytea in hexadecimal digits", type)
    }
    self = try stride(from: digits.startIndex, to: digits.endIndex, by: 2).map { index in
      let pair = String(decoding: digits[index..<index + 2], as: UTF8.self)
      guard let byte = UInt8(pair, radix: 16) else { throw PostgresError.misfit("'\(pair)' is no byte", type) }
      return byte
    }
  }
}

extension UUID: PostgresEncodable, PostgresDecodable {
  /// `uuid`.
  public static var postgresType: UInt32 { PostgresType.uuid }
  /// Appends 16 bytes.
  public func encode(into bytes: inout [UInt8]) { withUnsafeBytes(of: uuid) { bytes.append(contentsOf: $0) } }
  /// Reads a `uuid`.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    if isText, let value = UUID(uuidString: String(decoding: bytes, as: UTF8.self)) {
      self = value
    } else if !isText, type == PostgresType.uuid, bytes.count == 16 {
      self.init(uuid: bytes.loadUnaligned(as: uuid_t.self))
    } else {
      throw PostgresError.misfit("it is no UUID", type)
    }
  }
}
#endif
