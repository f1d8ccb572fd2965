#if HTTP
import CLLHTTP
public import CoroutineNet
public import HTTPTypes

/// A request, until the handler returns.
///
/// It cannot escape. Its head stays in the connection's buffer. Fields are found there, and copied when they are
/// asked for.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// case (.post, "/notes"):
///   let text = String(decoding: try request.collect(upTo: 4_096), as: UTF8.self)
///   texts.withLock { $0.append(text) }
///   response.status = .created
///   try response.send(text)
/// ```
public struct ServerRequest: ~Copyable {
  let connection: HTTPConnection

  init(_ connection: HTTPConnection) { self.connection = connection }

  /// The method.
  public var method: HTTPRequest.Method {
    let name = String(decoding: connection.method, as: UTF8.self)
    switch name {
    case "GET": return .get
    case "POST": return .post
    case "HEAD": return .head
    case "PUT": return .put
    default: return HTTPRequest.Method(name) ?? .get
    }
  }

  /// The path as it was sent, with percent-encodings and without the query; empty for CONNECT.
  ///
  /// A target in absolute form, which clients send to proxies, is split: the path is `/` if it has none.
  public var path: Substring {
    let range = connection.exchange.path
    if range.isEmpty, connection.message?.pointee.is_connect == 0 { return "/" }
    return connection.text(range)
  }

  /// The query as it was sent, without the question mark; nil if there is none.
  public var query: Substring? { connection.exchange.query.map { connection.text($0) } }

  /// The host with its port: of a target in absolute form or of CONNECT, otherwise of the field `host`.
  public var host: Substring? {
    if let range = connection.exchange.authority { return connection.text(range) }
    guard let index = connection.message?.pointee.host, index > 0 else { return nil }
    return Substring(decoding: connection.value(index - 1), as: UTF8.self)
  }

  /// The version of the client's HTTP: `HTTP/1.1` or `HTTP/1.0`.
  public var version: String { connection.message?.pointee.minor_version == 0 ? "HTTP/1.0" : "HTTP/1.1" }

  /// The protocols to which the client offers to change, in its order; none if it wants no upgrade.
  ///
  /// A client of HTTP/1.0 wants none, whatever its fields are. ``ServerResponse/upgrade(_:)`` makes one.
  public var offeredProtocols: [String] { connection.offeredProtocols }

  /// The value of a field, found in the head's bytes.
  ///
  /// Several values have a comma between them. Linear in the number of fields.
  public subscript(_ name: HTTPField.Name) -> String? { connection.values(of: name) }

  /// The head as the currency type; made each time that it is asked for.
  public var head: HTTPRequest {
    var fields = HTTPFields()
    let count = connection.message?.pointee.head_field_count ?? 0
    fields.reserveCapacity(Int(count))
    for index in 0..<count {
      guard let name = HTTPField.Name(String(decoding: connection.name(index), as: UTF8.self)) else { continue }
      if name.canonicalName == "host" { continue }
      fields.append(HTTPField(name: name, value: connection.value(index)))
    }
    let isConnect = connection.message?.pointee.is_connect != 0
    return HTTPRequest(
      method: method,
      scheme: isConnect ? nil : connection.transport.tls == nil ? "http" : "https",
      authority: host.map(String.init),
      path: isConnect ? nil : String(path) + (query.map { "?" + $0 } ?? ""),
      headerFields: fields
    )
  }

  /// The client's address.
  public var peer: SocketAddress { connection.transport.connection.remoteAddress }

  /// What TLS has negotiated; nil on a plain connection.
  public var tls: TLS.Session? { connection.transport.tls?.session }

  /// Reads the next part of the body: at least one byte, 0 at its end.
  ///
  /// Suspends until a part has arrived. The first call tells a client that waits for it to send the body
  /// (100-continue), unless the response has begun.
  ///
  /// - Throws: ``HTTPError``: the body is larger than ``HTTPServer/Options/bodySize``, pauses for too long, ends too
  ///   early, or has malformed chunks. A handler that throws it on answers with its status. `NetError`; the
  ///   cancellation error.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    try connection.readBody(into: buffer, limit: connection.service.options.bodySize)
  }

  /// Reads the rest of the body.
  ///
  /// Suspends until it has arrived; in all other respects as ``read(into:)``.
  /// - Parameter limit: The largest number of bytes; that of the server holds as well.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public func collect(upTo limit: Int = .max) throws -> [UInt8] {
    let limit = min(limit, connection.service.options.bodySize)
    var body: [UInt8] = []
    if connection.exchange.body == .length {
      // What the client declares costs memory only as it arrives.
      body.reserveCapacity(Int(min(connection.exchange.remaining, 65_536)))
    }
    try withUnsafeTemporaryAllocation(byteCount: 8_192, alignment: 16) { buffer in
      while case let count = try connection.readBody(into: buffer, limit: limit), count > 0 {
        body.append(contentsOf: buffer[..<count])
      }
    }
    return body
  }

  /// The fields that followed a chunked body; nil before its end, and if there are none.
  public var trailers: HTTPFields? {
    guard let message = connection.message?.pointee, connection.exchange.body == .ended,
      message.field_count > message.head_field_count, let text = message.trailer_text
    else { return nil }
    var fields = HTTPFields()
    for index in Int(message.head_field_count)..<Int(message.field_count) {
      let field = message.fields[index]
      func bytes(_ start: UInt32, _ count: UInt32) -> UnsafeRawBufferPointer {
        UnsafeRawBufferPointer(start: text + Int(start), count: Int(count))
      }
      let name = String(decoding: bytes(field.name, field.name_length), as: UTF8.self)
      guard let name = HTTPField.Name(name) else { continue }
      fields.append(HTTPField(name: name, value: bytes(field.value, field.value_length)))
    }
    return fields
  }
}

// MARK: - Targets

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
