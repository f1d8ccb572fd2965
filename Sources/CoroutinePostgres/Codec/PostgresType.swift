#if Postgres
/// The numbers of the types that are part of every server (`pg_type.dat`), and of their arrays.
enum PostgresType {
  static let bool: UInt32 = 16
  static let bytea: UInt32 = 17
  static let char: UInt32 = 18
  static let name: UInt32 = 19
  static let int8: UInt32 = 20
  static let int2: UInt32 = 21
  static let int4: UInt32 = 23
  static let text: UInt32 = 25
  static let oid: UInt32 = 26
  static let json: UInt32 = 114
  static let xml: UInt32 = 142
  static let float4: UInt32 = 700
  static let float8: UInt32 = 701
  static let unknown: UInt32 = 705
  static let bpchar: UInt32 = 1042
  static let varchar: UInt32 = 1043
  static let date: UInt32 = 1082
  static let timestamp: UInt32 = 1114
  static let timestamptz: UInt32 = 1184
  static let interval: UInt32 = 1186
  static let numeric: UInt32 = 1700
  static let uuid: UInt32 = 2950
  static let jsonb: UInt32 = 3802
  /// The first number of a type that a database has added: an enumeration, an extension's type.
  static let firstAdded: UInt32 = 16_384

  /// The type of an array of `element`; 0, so that the server decides, for a type that a database has added.
  static func array(of element: UInt32) -> UInt32 {
    switch element {
    case bool: 1000
    case bytea: 1001
    case int8: 1016
    case int2: 1005
    case int4: 1007
    case text: 1009
    case json: 199
    case float4: 1021
    case float8: 1022
    case date: 1182
    case timestamp: 1115
    case timestamptz: 1185
    case interval: 1187
    case numeric: 1231
    case uuid: 2951
    case jsonb: 3807
    default: 0
    }
  }

  /// The arrays that `array(of:)` returns, and others whose elements can be read.
  ///
  /// Those are char, name, bpchar, varchar, oid, xml, and the two vectors.
  private static let arrays: Set<UInt32> = [
    1000, 1001, 1016, 1005, 1007, 1009, 199, 1021, 1022, 1182, 1115, 1185, 1187, 1231, 2951, 3807,
    1002, 1003, 1014, 1015, 1028, 143, 22, 30,
  ]

  /// Whether it is an array; of a type that a database has added, only the bytes tell.
  static func mayBeArray(_ type: UInt32) -> Bool { type >= firstAdded || arrays.contains(type) }

  /// Whether a value is a date or a time without a zone, or an array of these.
  static func isWithoutZone(_ type: UInt32) -> Bool {
    type == timestamp || type == date || type == array(of: timestamp) || type == array(of: date)
  }
}

extension [UInt8] {
  mutating func append<Number: FixedWidthInteger>(bigEndian number: Number) {
    Swift.withUnsafeBytes(of: number.bigEndian) { append(contentsOf: $0) }
  }
}

extension UnsafeRawBufferPointer {
  /// The number at `offset`; throws if there are fewer bytes.
  func bigEndian<Number: FixedWidthInteger>(_: Number.Type, at offset: Int = 0) throws -> Number {
    guard offset + MemoryLayout<Number>.size <= count else { throw PostgresError.misfit("the value is too short", 0) }
    return Number(bigEndian: loadUnaligned(fromByteOffset: offset, as: Number.self))
  }
}
#endif
