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
    exceptions = value("no_proxy", "NO_PROXY").split { ", \t".contains($0) }.map { $0.lowercased() }
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

  /// Whether a host is excepted, as curl reads it.
  ///
  /// `example.org`, `.example.org` and `*.example.org` stand for the domain and all below it, also with a dot at the
  /// end of the one or of the other; `10.0.0.0/8` and `fd00::/8` for the addresses of a network. In addition to curl, a
  /// port may follow.
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
    if let slash = name.firstIndex(of: "/") {
      guard let bits = Int(name[slash...].dropFirst()) else { return false }
      var network = name[..<slash]
      if network.hasPrefix("["), network.hasSuffix("]") { network = network.dropFirst().dropLast() }
      return isInNetwork(origin.host, String(network), bits)
    }
    if name.hasPrefix("*.") { name = name.dropFirst() }
    if name.hasPrefix(".") { name = name.dropFirst() }
    if name.hasSuffix(".") { name = name.dropLast() }
    let host = origin.host.hasSuffix(".") ? origin.host.dropLast() : origin.host[...]
    if name.isEmpty { return false }
    // An address has other forms, as ::1 and 0:0:0:0:0:0:0:1, and nothing is below it.
    if let address = bytes(of: String(host)) { return address == bytes(of: String(name)) }
    return host == name || host.hasSuffix("." + name)
  }

  private static func isInNetwork(_ host: String, _ network: String, _ bits: Int) -> Bool {
    guard let host = bytes(of: host), let network = bytes(of: network), host.count == network.count,
      (0...host.count * 8).contains(bits)
    else { return false }
    let (whole, rest) = bits.quotientAndRemainder(dividingBy: 8)
    guard host[..<whole] == network[..<whole] else { return false }
    return rest == 0 || (host[whole] ^ network[whole]) >> (8 - rest) == 0
  }

  /// The bytes of an address, 4 or 16; nil if the text is none.
  private static func bytes(of text: String) -> [UInt8]? {
    guard !text.utf8.contains(0) else { return nil }
    for (family, count) in [(AF_INET, 4), (AF_INET6, 16)] {
      var bytes = [UInt8](repeating: 0, count: count)
      if inet_pton(family, text, &bytes) == 1 { return bytes }
    }
    return nil
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
    // Percent-encodings are how a password has an `@`.
    authorization = user.map { "Basic " + Self.base64(Query.withoutEscapes(Array($0.utf8))) }
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
    let host = host.hasSuffix(".") ? String(host.dropLast()) : host
    return host == "localhost" || host.hasSuffix(".localhost") || host == "::1"
      || host.hasPrefix("127.") && host.utf8.allSatisfy { $0 == 0x2e || (0x30...0x39).contains($0) }
  }
}
#endif
