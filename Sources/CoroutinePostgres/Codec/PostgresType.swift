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
    case numeric: 1231
    case uuid: 2951
    case jsonb: 3807
    default: 0
    }
  }
}

/// The binary format of an array with one dimension.
enum ArrayFormat {
  static func type(of element: UInt32) -> UInt32 { PostgresType.array(of: element) }

  static func encode<V: PostgresEncodable>(_ list: [V], into bytes: inout [UInt8]) {
    bytes.append(bigEndian: Int32(list.isEmpty ? 0 : 1))  // dimensions
    bytes.append(bigEndian: Int32(0))  // no nulls
    bytes.append(bigEndian: V.postgresType)
    if list.isEmpty { return }
    bytes.append(bigEndian: Int32(truncatingIfNeeded: list.count))
    bytes.append(bigEndian: Int32(1))  // the first index
    for value in list {
      let start = bytes.count
      bytes.append(bigEndian: Int32(0))
      value.encode(into: &bytes)
      let length = Int32(truncatingIfNeeded: bytes.count - start - 4)
      withUnsafeBytes(of: length.bigEndian) { bytes.replaceSubrange(start..<start + 4, with: $0) }
    }
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
