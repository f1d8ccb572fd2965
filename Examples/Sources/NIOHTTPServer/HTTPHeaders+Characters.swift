import NIOHTTP1

extension HTTPHeaders {
  /// Whether names and values have only the characters of RFC 9110, sections 5.1 and 5.5.
  var hasValidCharacters: Bool {
    allSatisfy { name, value in
      !name.isEmpty && name.utf8.allSatisfy(Self.isOfToken)
        && value.utf8.allSatisfy { $0 == UInt8(ascii: "\t") || $0 >= 0x20 && $0 != 0x7f }
    }
  }

  private static func isOfToken(_ byte: UInt8) -> Bool {
    switch byte {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
      UInt8(ascii: "0")...UInt8(ascii: "9"):
      true
    default: "!#$%&'*+-.^_`|~".utf8.contains(byte)
    }
  }
}
