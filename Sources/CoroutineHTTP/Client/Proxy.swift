#if HTTP
import Glibc

/// The proxies that the environment names: `http_proxy`, `https_proxy`, `no_proxy`, and the last two in capitals.
///
/// `HTTP_PROXY` is not read, because in a program that a web server starts a client can set it.
struct Proxies: Sendable {
  let plain: Origin?
  let secure: Origin?
  private let exceptions: [String]

  init() {
    func value(_ names: String...) -> String? {
      for name in names { if let text = getenv(name), text[0] != 0 { return String(cString: text) } }
      return nil
    }
    plain = value("http_proxy").flatMap(Self.origin)
    secure = value("https_proxy", "HTTPS_PROXY").flatMap(Self.origin)
    exceptions = (value("no_proxy", "NO_PROXY") ?? "").split(separator: ",").map {
      $0.filter { $0 != " " }.lowercased()
    }
  }

  private static func origin(_ text: String) -> Origin? {
    RequestURL(text)?.origin ?? RequestURL("http://" + text)?.origin
  }

  /// The proxy for a server; nil means a connection to the server itself.
  func proxy(for origin: Origin) -> Origin? {
    guard let proxy = origin.isSecure ? secure : plain else { return nil }
    for exception in exceptions {
      if exception == "*" || exception == origin.host { return nil }
      let domain = exception.hasPrefix(".") ? exception : "." + exception
      if exception.count > 1, origin.host.hasSuffix(domain) { return nil }
    }
    return proxy
  }
}
#endif
