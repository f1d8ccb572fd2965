#if Postgres
extension Array: PostgresEncodable where Element: PostgresEncodable {
  /// An array of the elements' type; `bytea` for bytes.
  public static var postgresType: UInt32 {
    Element.self == UInt8.self ? PostgresType.bytea : PostgresType.array(of: Element.postgresType)
  }

  /// Appends one dimension; bytes as they are.
  ///
  /// The elements need a type with a number (``PostgresEncodable/postgresType``); the server refuses others.
  public func encode(into bytes: inout [UInt8]) {
    // The first comparison, because a cast of other elements looks at each of them.
    if Element.self == UInt8.self, let raw = self as? [UInt8] {
      bytes += raw
    } else {
      ArrayFormat.encode(self, Element.postgresType, hasNulls: false, into: &bytes) { $0 }
    }
  }
}

extension Array: PostgresDecodable where Element: PostgresDecodable {
  /// Reads an array of one dimension, with Optionals for elements that may be null; bytes from a `bytea`.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    if Element.self == UInt8.self, type == PostgresType.bytea,
      let raw = try ByteaFormat.decode(bytes, type, isText) as? [Element]
    {
      self = raw
    } else {
      self = try ArrayFormat.decode(bytes, type, isText)
    }
  }
}

/// The binary format of an array with one dimension.
///
///   dimensions: Int32, nulls: Int32, element's type: UInt32, then if there are some count: Int32, first index: Int32,
///   then for each length: Int32 (-1: null), bytes
enum ArrayFormat {
  private static let header = 12

  /// Appends the elements; `element` returns nil for a null.
  ///
  /// A count or a length that does not fit belongs to a value of more than 2 GiB, which is refused when it is sent.
  static func encode<V, E: PostgresEncodable>(
    _ list: [V],
    _ type: UInt32,
    hasNulls: Bool,
    into bytes: inout [UInt8],
    _ element: (V) -> E?
  ) {
    bytes.append(bigEndian: Int32(list.isEmpty ? 0 : 1))  // dimensions
    bytes.append(bigEndian: Int32(hasNulls ? 1 : 0))
    bytes.append(bigEndian: type)
    if list.isEmpty { return }
    bytes.append(bigEndian: Int32(truncatingIfNeeded: list.count))
    bytes.append(bigEndian: Int32(1))  // the first index
    for next in list {
      guard let value = element(next) else {
        bytes.append(bigEndian: Int32(-1))
        continue
      }
      let start = bytes.count
      bytes.append(bigEndian: Int32(0))
      value.encode(into: &bytes)
      let length = Int32(truncatingIfNeeded: bytes.count - start - 4)
      withUnsafeBytes(of: length.bigEndian) { bytes.replaceSubrange(start..<start + 4, with: $0) }
    }
  }

  static func decode<Element: PostgresDecodable>(
    _ bytes: UnsafeRawBufferPointer,
    _ type: UInt32,
    _ isText: Bool
  ) throws -> [Element] {
    guard !isText, PostgresType.mayBeArray(type) else { throw PostgresError.misfit("it is no array", type) }
    let dimensions = try bytes.bigEndian(Int32.self)
    let elementType = try bytes.bigEndian(UInt32.self, at: 8)
    if dimensions == 0 { return [] }
    guard dimensions == 1 else { throw PostgresError.misfit("an array of \(dimensions) dimensions is no list", type) }
    let count = try Int(bytes.bigEndian(Int32.self, at: header))
    var at = header + 8
    // A length of each is there.
    guard count >= 0, count <= (bytes.count - at) / 4 else { throw PostgresError.misfit("it is no array", type) }
    var list: [Element] = []
    list.reserveCapacity(count)
    for _ in 0..<count {
      let length = try Int(bytes.bigEndian(Int32.self, at: at))
      at += 4
      if length == -1 {
        guard let nullable = Element.self as? any Nullable.Type, let null = nullable.null as? Element else {
          throw PostgresError.misfit("an element is null, and \(Element.self) is no Optional", type)
        }
        list.append(null)
        continue
      }
      guard length >= 0, length <= bytes.count - at else { throw PostgresError.misfit("it is no array", type) }
      let element = UnsafeRawBufferPointer(rebasing: bytes[at..<at + length])
      list.append(try Element(postgres: element, type: elementType, isText: false))
      at += length
    }
    guard at == bytes.count else { throw PostgresError.misfit("it is no array", type) }
    return list
  }
}

enum ByteaFormat {
  static func decode(_ bytes: UnsafeRawBufferPointer, _ type: UInt32, _ isText: Bool) throws -> [UInt8] {
    guard isText else { return Array(bytes) }
    let digits = bytes.dropFirst(2)
    guard bytes.starts(with: [UInt8(ascii: "\\"), UInt8(ascii: "x")]), digits.count.isMultiple(of: 2) else {
      throw PostgresError.misfit("it is no bytea in hexadecimal digits", type)
    }
    return try stride(from: digits.startIndex, to: digits.endIndex, by: 2).map { index in
      let pair = String(decoding: digits[index..<index + 2], as: UTF8.self)
      guard let byte = UInt8(pair, radix: 16) else {
        throw PostgresError.misfit("it is no bytea in hexadecimal digits", type)
      }
      return byte
    }
  }
}
#endif
