#if Demo
/// An address as people write it: "example.org:7000", "127.0.0.1:7000", "[::1]:7000".
struct HostAndPort: Equatable, Sendable {
  var host: String
  var port: UInt16

  init?(_ text: String) {
    guard let colon = text.lastIndex(of: ":"), let port = UInt16(text[text.index(after: colon)...]), port > 0 else {
      return nil
    }
    var host = text[..<colon]
    if host.hasPrefix("["), host.hasSuffix("]") {
      host = host.dropFirst().dropLast()
    } else if host.contains(":") {
      return nil
    }
    guard !host.isEmpty else { return nil }
    self.host = String(host)
    self.port = port
  }
}
#endif
