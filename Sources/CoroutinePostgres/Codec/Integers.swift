#if Postgres
import FoundationEssentials

// A whole number of any width is read from whole numbers of all widths, and from `numeric` and floating-point values
// without a fraction: `sum` of a bigint is a numeric. A number that is out of range is refused.

/// What the conformances of the whole numbers share.
enum IntegerFormat {
  static func decode<Number: FixedWidthInteger>(
    _ bytes: UnsafeRawBufferPointer,
    _ type: UInt32,
    _ isText: Bool
  ) throws -> Number {
    if isText {
      let text = String(decoding: bytes, as: UTF8.self)
      guard let number = Number(text) else { throw PostgresError.misfit("the text is no \(Number.self)", type) }
      return number
    }
    switch type {
    case PostgresType.int2: return try exactly(bytes.bigEndian(Int16.self), type)
    case PostgresType.int4: return try exactly(bytes.bigEndian(Int32.self), type)
    case PostgresType.int8: return try exactly(bytes.bigEndian(Int64.self), type)
    case PostgresType.oid: return try exactly(bytes.bigEndian(UInt32.self), type)
    case PostgresType.float4: return try whole(Double(Float(bitPattern: bytes.bigEndian(UInt32.self))), type)
    case PostgresType.float8: return try whole(Double(bitPattern: bytes.bigEndian(UInt64.self)), type)
    case PostgresType.numeric:
      let text = try NumericFormat.text(bytes)
      guard let number = Number(text) else { throw PostgresError.misfit("the number is no \(Number.self)", type) }
      return number
    default: throw PostgresError.misfit("it is no number", type)
    }
  }

  private static func exactly<Number: FixedWidthInteger>(_ value: some BinaryInteger, _ type: UInt32) throws -> Number {
    guard let number = Number(exactly: value) else {
      throw PostgresError.misfit("the number is out of range of \(Number.self)", type)
    }
    return number
  }

  private static func whole<Number: FixedWidthInteger>(_ value: Double, _ type: UInt32) throws -> Number {
    guard let number = Number(exactly: value) else {
      throw PostgresError.misfit("the number is no \(Number.self)", type)
    }
    return number
  }
}

extension UInt8: PostgresEncodable, PostgresDecodable {
  /// `smallint`; a list of bytes is `bytea`.
  public static var postgresType: UInt32 { PostgresType.int2 }
  /// Appends 2 bytes.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: Int16(self)) }
  /// Reads a number without a fraction that is in range.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try IntegerFormat.decode(bytes, type, isText)
  }
}

extension Int16: PostgresEncodable, PostgresDecodable {
  /// `smallint`.
  public static var postgresType: UInt32 { PostgresType.int2 }
  /// Appends 2 bytes.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: self) }
  /// Reads a number without a fraction that is in range.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try IntegerFormat.decode(bytes, type, isText)
  }
}

extension Int32: PostgresEncodable, PostgresDecodable {
  /// `integer`.
  public static var postgresType: UInt32 { PostgresType.int4 }
  /// Appends 4 bytes.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: self) }
  /// Reads a number without a fraction that is in range.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try IntegerFormat.decode(bytes, type, isText)
  }
}

extension Int64: PostgresEncodable, PostgresDecodable {
  /// `bigint`.
  public static var postgresType: UInt32 { PostgresType.int8 }
  /// Appends 8 bytes.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: self) }
  /// Reads a number without a fraction that is in range.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try IntegerFormat.decode(bytes, type, isText)
  }
}

extension Int: PostgresEncodable, PostgresDecodable {
  /// `bigint`.
  public static var postgresType: UInt32 { PostgresType.int8 }
  /// Appends 8 bytes.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: Int64(self)) }
  /// Reads a number without a fraction that is in range.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try IntegerFormat.decode(bytes, type, isText)
  }
}
#endif
