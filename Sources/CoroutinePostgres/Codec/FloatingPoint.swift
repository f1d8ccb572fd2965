#if Postgres
import FoundationEssentials

// A floating-point value is read from every number. A whole number that it cannot hold exactly, and a finite value that
// would become infinite, are refused; a fraction is rounded, as in every conversion.

/// What the conformances of the floating-point numbers share.
enum FloatFormat {
  static func decode(_ bytes: UnsafeRawBufferPointer, _ type: UInt32, _ isText: Bool) throws -> Double {
    if isText { return try parse(String(decoding: bytes, as: UTF8.self), type) }
    switch type {
    case PostgresType.float4: return Double(Float(bitPattern: try bytes.bigEndian(UInt32.self)))
    case PostgresType.float8: return Double(bitPattern: try bytes.bigEndian(UInt64.self))
    case PostgresType.int2, PostgresType.int4, PostgresType.int8:
      let number: Int64 = try IntegerFormat.decode(bytes, type, false)
      guard let value = Double(exactly: number) else {
        throw PostgresError.misfit("the number has no exact Double", type)
      }
      return value
    case PostgresType.numeric: return try parse(NumericFormat.text(bytes), type)
    default: throw PostgresError.misfit("it is no number", type)
    }
  }

  private static func parse(_ text: String, _ type: UInt32) throws -> Double {
    let spelled = text == "Infinity" ? "inf" : text == "-Infinity" ? "-inf" : text
    guard let value = Double(spelled), value.isFinite || spelled.hasSuffix("inf") || value.isNaN else {
      throw PostgresError.misfit("the number is out of range of Double", type)
    }
    return value
  }
}

extension Double: PostgresEncodable, PostgresDecodable {
  /// `double precision`.
  public static var postgresType: UInt32 { PostgresType.float8 }
  /// Appends 8 bytes; infinite values and NaN are values.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: bitPattern) }
  /// Reads a number.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = try FloatFormat.decode(bytes, type, isText)
  }
}

extension Float: PostgresEncodable, PostgresDecodable {
  /// `real`.
  public static var postgresType: UInt32 { PostgresType.float4 }
  /// Appends 4 bytes; infinite values and NaN are values.
  public func encode(into bytes: inout [UInt8]) { bytes.append(bigEndian: bitPattern) }
  /// Reads a number.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    let value = try FloatFormat.decode(bytes, type, isText)
    self = Float(value)
    if isInfinite, value.isFinite { throw PostgresError.misfit("the number is out of range of Float", type) }
    if type != PostgresType.float8, type != PostgresType.numeric, !isText, value.isFinite, Double(self) != value {
      throw PostgresError.misfit("the number has no exact Float", type)
    }
  }
}
#endif
