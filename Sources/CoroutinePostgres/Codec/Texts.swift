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
      // An enumeration, citext. Nearly every binary format has a zero byte or begins with a small number, as ltree.
      case PostgresType.firstAdded... where !bytes.contains(where: Self.isControl): break
      default: throw PostgresError.misfit("it is no text; cast it to text", type)
      }
    }
    guard let text = String(validating: bytes, as: UTF8.self) else {
      throw PostgresError.misfit("the text is no UTF-8", type)
    }
    self = text
  }

  /// Whether a byte is a control character other than a tab and the ends of lines.
  private static func isControl(_ byte: UInt8) -> Bool { byte < 32 && byte != 9 && byte != 10 && byte != 13 }
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
