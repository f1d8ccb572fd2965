#if HTTP
public import HTTPTypes

// Queries, as forms and nearly all programs write them: names and values with `=` between, pairs with `&` between,
// percent-encoded UTF-8, and a `+` for a space.

extension HTTPRequest {
  /// Creates a request for a URL of http or https; its fragment is left out.
  ///
  /// - Parameters:
  ///   - method: The method.
  ///   - url: The URL, in ASCII: what is special in a path must be percent-encoded.
  ///   - query: Names and values that are appended to the query of the URL, in this order, percent-encoded.
  ///   - headerFields: The fields.
  /// - Throws: ``HTTPError`` if the text is no such URL, or has a user.
  public init(
    method: Method = .get,
    url: String,
    query: KeyValuePairs<String, String> = [:],
    headerFields: HTTPFields = [:]
  ) throws(HTTPError) {
    let parts = try RequestURL(url)
    var path = parts.path
    for (name, value) in query {
      path += path.contains("?") ? (path.hasSuffix("?") ? "" : "&") : "?"
      path += Query.escaped(name) + "=" + Query.escaped(value)
    }
    self.init(
      method: method,
      scheme: parts.origin.scheme,
      authority: parts.origin.authority,
      path: path,
      headerFields: headerFields
    )
  }
}

extension ServerRequest {
  /// The names and values of the query, decoded, in their order; empty if there is none.
  ///
  /// A `+` is a space. A name without `=` has an empty value. An encoding that is none stays as it is, and bytes that
  /// are no UTF-8 become U+FFFD. Made each time that it is asked for.
  public var queryItems: [(name: String, value: String)] { query.map(Query.items) ?? [] }
}

enum Query {
  static func escaped(_ text: String) -> String {
    var bytes: [UInt8] = []
    for byte in text.utf8 {
      switch byte {
      case 0x30...0x39, 0x41...0x5a, 0x61...0x7a: bytes.append(byte)
      case UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "~"): bytes.append(byte)
      default: bytes += RequestURL.escape(byte)
      }
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  static func items(_ query: Substring) -> [(name: String, value: String)] {
    query.utf8.split(separator: UInt8(ascii: "&")).map { pair in
      let parts = pair.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
      return (decoded(parts[0]), parts.count > 1 ? decoded(parts[1]) : "")
    }
  }

  private static func decoded(_ text: Substring.UTF8View) -> String {
    let bytes = withoutEscapes(text.map { $0 == UInt8(ascii: "+") ? UInt8(ascii: " ") : $0 })
    return String(decoding: bytes, as: UTF8.self)
  }

  /// The bytes with percent-encodings decoded; one that is none stays as it is.
  static func withoutEscapes(_ text: [UInt8]) -> [UInt8] {
    var bytes: [UInt8] = []
    var rest = text[...]
    while let first = rest.popFirst() {
      if first == UInt8(ascii: "%"), let high = digit(rest.first), let low = digit(rest.dropFirst().first) {
        bytes.append(high << 4 | low)
        rest = rest.dropFirst(2)
      } else {
        bytes.append(first)
      }
    }
    return bytes
  }

  private static func digit(_ byte: UInt8?) -> UInt8? {
    byte.flatMap { Character(UnicodeScalar($0)).hexDigitValue.map { UInt8($0) } }
  }
}
#endif
