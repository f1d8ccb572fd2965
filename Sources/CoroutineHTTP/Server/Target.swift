#if HTTP
// The four forms of a request's target (RFC 9112, 3.2), as ranges of its bytes:
//   /path?query       origin form
//   http://host/path  absolute form, as clients send it to proxies; the host counts, and the field host does not
//   host:port         of CONNECT
//   *                 of OPTIONS

struct Target {
  var authority: Range<Int>?
  var path = 0..<0
  var query: Range<Int>?

  /// Returns nil if the target has none of the forms, or names a user or a fragment.
  init?(_ bytes: UnsafeRawBufferPointer, isConnect: Bool, isOptions: Bool) {
    if bytes.contains(UInt8(ascii: "#")) { return nil }
    if isConnect {
      guard Self.isAuthority(bytes), bytes.contains(UInt8(ascii: ":")) else { return nil }
      authority = 0..<bytes.count
      return
    }
    if bytes.count == 1, bytes[0] == UInt8(ascii: "*") {
      guard isOptions else { return nil }
      path = 0..<1
      return
    }
    var start = 0
    if bytes[0] != UInt8(ascii: "/") {
      guard let first = Self.lengthOfScheme(bytes) else { return nil }
      start = bytes[first...].firstIndex { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") } ?? bytes.count
      guard start > first, Self.isAuthority(UnsafeRawBufferPointer(rebasing: bytes[first..<start])) else { return nil }
      authority = first..<start
    }
    let question = bytes[start...].firstIndex(of: UInt8(ascii: "?"))
    path = start..<(question ?? bytes.count)
    query = question.map { $0 + 1..<bytes.count }
  }

  private static func lengthOfScheme(_ bytes: UnsafeRawBufferPointer) -> Int? {
    for scheme in ["http://", "https://"] as [StaticString] {
      let count = scheme.utf8CodeUnitCount
      guard bytes.count > count else { continue }
      let letters = UnsafeBufferPointer(start: scheme.utf8Start, count: count)
      if zip(bytes, letters).allSatisfy({ $0 | ($0 >= 0x41 && $0 <= 0x5a ? 0x20 : 0) == $1 }) { return count }
    }
    return nil
  }

  /// Whether bytes are a host with or without a port, or nothing.
  static func isAuthority(_ bytes: UnsafeRawBufferPointer) -> Bool {
    var rest = bytes[...]
    if rest.first == UInt8(ascii: "[") {
      guard let end = rest.firstIndex(of: UInt8(ascii: "]")), end > 1 else { return false }
      for byte in rest[1..<end] where !isHexadecimal(byte) && byte != UInt8(ascii: ":") && byte != UInt8(ascii: ".") {
        return false
      }
      rest = rest[(end + 1)...]
    } else {
      let end = rest.firstIndex(of: UInt8(ascii: ":")) ?? rest.endIndex
      for byte in rest[..<end] where !isOfName(byte) { return false }
      if end == rest.startIndex, end != rest.endIndex { return false }
      rest = rest[end...]
    }
    guard let colon = rest.first else { return true }
    let port = rest.dropFirst()
    guard colon == UInt8(ascii: ":"), port.count <= 5, port.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else {
      return false
    }
    return port.reduce(0) { $0 * 10 + Int($1 - 0x30) } <= 65_535
  }

  private static func isHexadecimal(_ byte: UInt8) -> Bool {
    byte >= 0x30 && byte <= 0x39 || (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66
  }

  private static func isOfName(_ byte: UInt8) -> Bool {
    switch byte {
    case 0x30...0x39, 0x41...0x5a, 0x61...0x7a: true
    case UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "~"), UInt8(ascii: "%"): true
    default: false
    }
  }
}
#endif
