import Coroutine
import CoroutineNet

/// An HTTP proxy (RFC 9110, 7.1 and 9.3.6): CONNECT opens a tunnel, other requests go to the server that they name.
///
/// Each connection carries one request or tunnel. The proxy reads the head alone: everything after it, in both
/// directions, is copied. So bodies, upgrades and TLS pass through as they are.
struct Proxy: Sendable {
  /// The longest time in which neither side has to send anything.
  var idle: Duration = .seconds(60)
  /// The longest time for a request's head, and for the connection to its server.
  var patience: Duration = .seconds(10)
  /// The largest number of bytes of a request's head.
  var mostBytes = 16_384

  /// Serves one client.
  func serve(_ client: Connection) throws {
    var reader = BufferedReader(client)
    guard try co_timeout(idle, { try reader.waitForMessage() }) else { return }
    let request: Request
    let server: Connection
    do {
      request = try co_timeout(patience) { try Request(from: &reader, mostBytes) }
      server = try co_timeout(patience) { try Connection.connect(host: request.host, port: request.port) }
    } catch {
      return try refuse(client, because: error)
    }
    defer { server.close() }
    if request.isConnect {
      try client.write("HTTP/1.1 200 Connection established\r\n\r\n".utf8)
    } else {
      try server.write(request.forwarded.utf8)
    }
    // What the client has sent after the head, and the reader has read with it.
    let rest = reader.takeBuffered()
    if !rest.isEmpty { try server.write(rest) }
    try co_copy(client, server, idle: idle)
  }

  /// Answers a request that cannot be served, so that the answer arrives although the request was not read to its end.
  private func refuse(_ client: Connection, because error: any Error) throws {
    let status =
      switch error {
      case is Malformed: "400 Bad Request"
      case is TimeoutError: "504 Gateway Timeout"
      case let error as NetError where error.reason == .tooLong: "431 Request Header Fields Too Large"
      case let error as NetError where error.reason == .nameServerSilent: "504 Gateway Timeout"
      case let error as NetError where error.reason == .endOfStream: "400 Bad Request"
      case is NetError: "502 Bad Gateway"
      default: throw error
      }
    let text = "\(error)\n"
    let head = "HTTP/1.1 \(status)\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    try client.write("\(head)Content-Length: \(text.utf8.count)\r\n\r\n\(text)".utf8)
    try client.closeLingering()
  }
}

/// A request that names no server.
private struct Malformed: Error, CustomStringConvertible {
  let description: String
}

/// The head of a request, as far as a proxy has to understand it.
private struct Request {
  let isConnect: Bool
  let host: String
  let port: UInt16
  /// The head as the server gets it; it has to close afterwards, because this connection carries one request.
  let forwarded: String

  init(from reader: inout BufferedReader, _ mostBytes: Int) throws {
    let words = (try reader.readLine(max: mostBytes) ?? "").split(separator: " ")
    guard words.count == 3 else { throw Malformed(description: "a request line has three words") }
    var room = mostBytes
    var fields = ""
    while let line = try reader.readLine(max: room), !line.isEmpty {
      room -= line.utf8.count
      let name = line.prefix { $0 != ":" }.lowercased()
      if !["connection", "proxy-connection", "proxy-authorization", "keep-alive"].contains(name) {
        fields += "\(line)\r\n"
      }
    }
    isConnect = words[0] == "CONNECT"
    var target = words[1]
    if !isConnect {
      guard target.lowercased().hasPrefix("http://") else { throw Malformed(description: "\(target) names no server") }
      target = target.dropFirst("http://".count)
    }
    let authority = target.prefix { $0 != "/" && $0 != "?" }
    let path = target.dropFirst(authority.count)
    (host, port) = try Self.parse(authority, defaultPort: isConnect ? nil : 80)
    forwarded =
      "\(words[0]) \(path.hasPrefix("/") ? "" : "/")\(path) \(words[2])\r\n\(fields)Connection: close\r\n\r\n"
  }

  /// Parses `host:port`, in which an IPv6 address has brackets.
  private static func parse(_ authority: Substring, defaultPort: UInt16?) throws -> (String, UInt16) {
    let isBracketed = authority.hasPrefix("[")
    let end = isBracketed ? authority.firstIndex(of: "]") : authority.firstIndex(of: ":") ?? authority.endIndex
    guard let end else { throw Malformed(description: "\(authority) has no closing bracket") }
    let host = isBracketed ? authority[..<end].dropFirst() : authority[..<end]
    let rest = isBracketed ? authority[end...].dropFirst() : authority[end...]
    let port = rest.isEmpty ? defaultPort : rest.hasPrefix(":") ? UInt16(rest.dropFirst()) : nil
    guard !host.isEmpty, let port else { throw Malformed(description: "\(authority) is no host with a port") }
    return (String(host), port)
  }
}
