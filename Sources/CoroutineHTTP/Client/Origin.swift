#if HTTP
import HTTPTypes

/// A server as a client names it: connections are kept by it.
struct Origin: Hashable, Sendable {
  var isSecure: Bool
  var host: String
  var port: UInt16

  /// The value of `host` and the authority of an absolute target; the usual port is left out.
  var authority: String {
    let name = host.contains(":") ? "[\(host)]" : host
    return port == (isSecure ? 443 : 80) ? name : "\(name):\(port)"
  }

  /// The form of CONNECT, always with the port.
  var withPort: String { (host.contains(":") ? "[\(host)]" : host) + ":\(port)" }

  var scheme: String { isSecure ? "https" : "http" }

  init?(scheme: String, authority: String) {
    switch scheme.lowercased() {
    case "http": isSecure = false
    case "https": isSecure = true
    default: return nil
    }
    var text = authority
    guard text.withUTF8({ Target.isAuthority(UnsafeRawBufferPointer($0)) }), !authority.isEmpty else { return nil }
    var name = authority[...]
    port = isSecure ? 443 : 80
    if let colon = authority.lastIndex(of: ":"), !authority[colon...].contains("]") {
      let digits = authority[authority.index(after: colon)...]
      if !digits.isEmpty {
        guard let number = UInt16(digits) else { return nil }
        port = number
      }
      name = authority[..<colon]
    }
    if name.first == "[" { name = name.dropFirst().dropLast() }
    host = name.lowercased()
  }
}

/// An absolute URL of http or https, without its fragment.
struct RequestURL {
  var origin: Origin
  /// The path and the query: ``isPath(_:)`` holds, or it is `*`, the whole server.
  var path: String

  init(origin: Origin, path: String) {
    self.origin = origin
    self.path = path
  }

  /// Whether a text is a path with its query, as a request has it.
  ///
  /// What is behind an authority must not be read as a part of that: `.evil.example/` would be another host.
  static func isPath(_ text: String) -> Bool {
    text.utf8.first == UInt8(ascii: "/") && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && $0 != UInt8(ascii: "#") }
  }

  init(_ text: String) throws(HTTPError) {
    guard text.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f }), let colon = text.range(of: "://") else {
      throw .badURL(text)
    }
    let rest = text[colon.upperBound...].prefix { $0 != "#" }
    let end = rest.firstIndex { $0 == "/" || $0 == "?" } ?? rest.endIndex
    guard let origin = Origin(scheme: String(text[..<colon.lowerBound]), authority: String(rest[..<end])) else {
      throw rest[..<end].contains("@") ? .userInURL(text) : .badURL(text)
    }
    let path = rest[end...]
    self.init(origin: origin, path: path.first == "/" ? String(path) : "/\(path)")
  }

  private static let digits = Array("0123456789ABCDEF".utf8)

  /// The percent-encoding of a byte.
  static func escape(_ byte: UInt8) -> [UInt8] { [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 15)]] }

  /// The value of `location` as browsers read it.
  ///
  /// Without spaces around, and with percent-encodings in place of the bytes that no URL has. A `\` is a `/` for them,
  /// so `/\host` is another host.
  static func escaping(_ location: UnsafeBufferPointer<UInt8>) -> String {
    var text: [UInt8] = []
    var isOfPath = true
    for byte in location.drop(while: { $0 <= 0x20 }).reversed().drop(while: { $0 <= 0x20 }).reversed() {
      if byte == UInt8(ascii: "?") || byte == UInt8(ascii: "#") { isOfPath = false }
      switch byte {
      case UInt8(ascii: "\t"): continue
      case UInt8(ascii: "\\") where isOfPath: text.append(UInt8(ascii: "/"))
      case ...0x20, 0x7f..., UInt8(ascii: "\""), UInt8(ascii: "<"), UInt8(ascii: ">"):
        text += escape(byte)
      default: text.append(byte)
      }
    }
    return String(decoding: text, as: UTF8.self)
  }

  /// Resolves the value of `location` (RFC 3986, 5.2).
  ///
  /// Throws if it is no URL of http or https: what follows is not the answer, and nor is the redirect.
  func resolving(_ location: String) throws(HTTPError) -> RequestURL {
    let whole = location
    func absolute(_ text: String) throws(HTTPError) -> RequestURL {
      // A name in another script has been escaped; no host has such a name.
      if let url = try? RequestURL(text), !url.origin.host.contains("%") { return url }
      throw .badRedirect(whole, from: "\(origin.scheme)://\(origin.authority)")
    }
    let location = String(location.prefix { $0 != "#" })
    if location.hasPrefix("//") { return try absolute("\(origin.scheme):\(location)") }
    if let colon = location.firstIndex(of: ":"), location.first?.isLetter == true,
      location[..<colon].allSatisfy({ $0.isLetter || $0.isNumber || "+-.".contains($0) })
    {
      return try absolute(location)
    }
    let before = path == "*" ? "/" : path.prefix { $0 != "?" }
    if location.isEmpty { return self }
    if location.hasPrefix("/") { return RequestURL(origin: origin, path: Self.withoutDots(location)) }
    if location.hasPrefix("?") { return RequestURL(origin: origin, path: "\(before)\(location)") }
    let folder = before[...(before.lastIndex(of: "/") ?? before.startIndex)]
    return RequestURL(origin: origin, path: Self.withoutDots("\(folder)\(location)"))
  }

  private static func withoutDots(_ path: String) -> String {
    let end = path.firstIndex(of: "?") ?? path.endIndex
    var parts: [Substring] = []
    let segments = String(path[..<end]).split(separator: "/", omittingEmptySubsequences: false).dropFirst()
    for (index, segment) in segments.enumerated() {
      let isLast = index == segments.count - 1
      switch segment {
      case ".": if isLast { parts.append("") }
      case "..":
        if !parts.isEmpty { parts.removeLast() }
        if isLast { parts.append("") }
      default: parts.append(segment)
      }
    }
    return "/\(parts.joined(separator: "/"))\(path[end...])"
  }
}

extension String {
  /// The range of a text, without Foundation.
  fileprivate func range(of text: String) -> Range<String.Index>? {
    var start = startIndex
    while start < endIndex {
      if self[start...].hasPrefix(text) { return start..<index(start, offsetBy: text.count) }
      start = index(after: start)
    }
    return nil
  }
}
#endif
