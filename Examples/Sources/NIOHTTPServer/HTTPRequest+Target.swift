import NIOHTTP1

extension HTTPRequest {
  /// The path of the target, with its percent-encodings decoded.
  public var path: String { Self.decode(target.path, plusIsSpace: false) }

  /// The first value of a name in the target's query, decoded; nil if there is none.
  public func query(_ name: String) -> String? {
    for pair in target.query.split(separator: "&") {
      let parts = pair.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
      if Self.decode(parts[0], plusIsSpace: true) == name {
        return parts.count == 2 ? Self.decode(parts[1], plusIsSpace: true) : ""
      }
    }
    return nil
  }

  private var target: (path: Substring, query: Substring) {
    let parts = head.uri.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
    return (parts[0], parts.count == 2 ? parts[1] : "")
  }

  /// Decodes percent-encodings; a malformed one is left as it is.
  private static func decode(_ text: Substring, plusIsSpace: Bool) -> String {
    var bytes: [UInt8] = []
    var rest = Array(text.utf8)[...]
    while let byte = rest.popFirst() {
      if byte == UInt8(ascii: "%"), let high = rest.first.flatMap(digit),
        let low = rest.dropFirst().first.flatMap(digit)
      {
        bytes.append(high << 4 | low)
        rest = rest.dropFirst(2)
      } else {
        bytes.append(plusIsSpace && byte == UInt8(ascii: "+") ? UInt8(ascii: " ") : byte)
      }
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  private static func digit(_ byte: UInt8) -> UInt8? { Character(UnicodeScalar(byte)).hexDigitValue.map { UInt8($0) } }
}
