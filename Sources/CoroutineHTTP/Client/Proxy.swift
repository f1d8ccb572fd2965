#if HTTP
import Glibc

/// The proxies that the environment names: `http_proxy`, `https_proxy`, `no_proxy`, and the last two in capitals.
///
/// `HTTP_PROXY` is not read, because in a program that a web server starts a client can set it. Servers of this machine
/// are asked without a proxy, as Go does: what they are for a proxy elsewhere is another machine.
struct Proxies: Sendable {
  /// A proxy, or a text that names none: an error for each request, because the servers must not be asked directly.
  enum Setting: Sendable {
    case none
    case proxy(Proxy)
    case invalid(String)
  }

  let plain: Setting
  let secure: Setting
  private let exceptions: [String]

  init(environment: (String) -> String? = { name in getenv(name).map { String(cString: $0) } }) {
    func value(_ names: String...) -> String {
      names.lazy.compactMap(environment).first { !$0.isEmpty } ?? ""
    }
    plain = Self.setting(value("http_proxy"))
    secure = Self.setting(value("https_proxy", "HTTPS_PROXY"))
    exceptions = value("no_proxy", "NO_PROXY").split(separator: ",").map { $0.filter { $0 != " " }.lowercased() }
  }

  private static func setting(_ text: String) -> Setting {
    if text.isEmpty { return .none }
    return Proxy(text).map { .proxy($0) } ?? .invalid(text)
  }

  /// The proxy for a server; nil means a connection to the server itself.
  func proxy(for origin: Origin) throws(HTTPError) -> Proxy? {
    let setting = origin.isSecure ? secure : plain
    if case .none = setting { return nil }
    if origin.isOfThisMachine || exceptions.contains(where: { Self.isException($0, origin) }) { return nil }
    switch setting {
    case .none: return nil
    case .proxy(let proxy): return proxy
    case .invalid(let text): throw .badProxy(text)
    }
  }

  /// `example.org` stands for the domain and all below it, `.example.org` for those below it alone.
  private static func isException(_ text: String, _ origin: Origin) -> Bool {
    if text == "*" { return true }
    var name = text[...]
    if let colon = text.lastIndex(of: ":"), let port = UInt16(text[text.index(after: colon)...]),
      text.firstIndex(of: ":") == colon || text.hasPrefix("[")
    {
      guard port == origin.port else { return false }
      name = text[..<colon]
    }
    if name.hasPrefix("["), name.hasSuffix("]") { name = name.dropFirst().dropLast() }
    if name.isEmpty { return false }
    return origin.host == name || origin.host.hasSuffix(name.hasPrefix(".") ? String(name) : "." + name)
  }
}

/// A proxy: its address, and what it is told of the user.
struct Proxy: Sendable {
  let origin: Origin
  /// The value of `proxy-authorization`.
  let authorization: String?

  /// Returns nil if the text is not `[http://][user:password@]host[:port][/]`.
  init?(_ text: String) {
    var rest = text[...]
    if let scheme = text.firstIndex(of: ":"), text[scheme...].hasPrefix("://") {
      // A connection to the proxy has no TLS.
      guard text[..<scheme].lowercased() == "http" else { return nil }
      rest = text[scheme...].dropFirst(3)
    }
    var user: Substring?
    if let at = rest.lastIndex(of: "@") {
      user = rest[..<at]
      rest = rest[at...].dropFirst()
    }
    if rest.last == "/" { rest = rest.dropLast() }
    guard let origin = Origin(scheme: "http", authority: String(rest)) else { return nil }
    self.origin = origin
    authorization = user.map { "Basic " + Self.base64(Self.withoutEscapes($0)) }
  }

  /// Percent-encodings are how a password has an `@`.
  private static func withoutEscapes(_ text: Substring) -> [UInt8] {
    var bytes: [UInt8] = []
    var rest = text.utf8[...]
    while let first = rest.popFirst() {
      if first == UInt8(ascii: "%"), let value = UInt8(String(decoding: rest.prefix(2), as: UTF8.self), radix: 16) {
        bytes.append(value)
        rest = rest.dropFirst(2)
      } else {
        bytes.append(first)
      }
    }
    return bytes
  }

  private static func base64(_ bytes: [UInt8]) -> String {
    let digits = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
    var text: [UInt8] = []
    for start in stride(from: 0, to: bytes.count, by: 3) {
      let part = bytes[start..<min(start + 3, bytes.count)]
      let word = part.reduce(0) { $0 << 8 | Int($1) } << (8 * (3 - part.count))
      for digit in 0..<4 {
        text.append(digit <= part.count ? digits[word >> (18 - 6 * digit) & 63] : UInt8(ascii: "="))
      }
    }
    return String(decoding: text, as: UTF8.self)
  }
}

extension Origin {
  /// Whether the host is this machine, by its name or address.
  var isOfThisMachine: Bool {
    host == "localhost" || host.hasSuffix(".localhost") || host == "::1"
      || host.hasPrefix("127.") && host.utf8.allSatisfy { $0 == 0x2e || (0x30...0x39).contains($0) }
  }
}
#endif
