#if HTTP
public import CoroutineNet
public import HTTPTypes

/// A response: its head, and its body as it arrives.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// let response = try client.get(url)
/// guard response.head.status == .ok else { return nil }
/// guard response.head.headerFields[.contentType]?.hasPrefix("text/html") == true else { return nil }
/// return String(decoding: try response.collect(upTo: 1_000_000), as: UTF8.self)
/// ```
///
/// At the end of the body the connection is kept for other requests. A response that is released before its end
/// closes the connection, unless the rest is short and has arrived. The release never suspends.
public struct ClientResponse: ~Copyable {
  /// The status and the fields.
  public let head: HTTPResponse
  private let connection: ClientConnection
  private let permit: ClientPool.Permit

  init(_ head: HTTPResponse, _ connection: ClientConnection, _ permit: ClientPool.Permit) {
    self.head = head
    self.connection = connection
    self.permit = permit
  }

  deinit {
    guard connection.keepsAlive, head.status.code != 101, connection.dropsRest() else { return connection.close() }
    connection.endExchange()
    permit.pool.keep(connection, permit.origin)
  }

  /// Reads the next part of the body: at least one byte, 0 at its end.
  ///
  /// Suspends until a part has arrived.
  /// - Throws: ``HTTPError`` if the body ends too early or has malformed chunks; `NetError`, ``TLSError``; the
  ///   cancellation error, and then no byte is lost.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    let connection = connection
    return try HTTPError.ofUpstream { try connection.read(into: buffer) }
  }

  /// Reads the rest of the body.
  ///
  /// - Parameter limit: The largest number of bytes.
  /// - Throws: ``HTTPError`` if the body has more; in all other respects as ``read(into:)``.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func collect(upTo limit: Int) throws -> [UInt8] {
    var body: [UInt8] = []
    let connection = connection
    try HTTPError.ofUpstream {
      try withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 16) { buffer in
        while case let count = try connection.read(into: buffer), count > 0 {
          if body.count + count > limit { throw HTTPError.bodyTooLarge }
          body.append(contentsOf: buffer[..<count])
        }
      }
    }
    return body
  }

  /// Calls `body` with the connection after a response with the status 101, the end of HTTP on it.
  ///
  /// The request asks for it by the field `upgrade`, and the client adds `connection: upgrade`. Over TLS `body` gets a
  /// connection as of `TLS.Stream.withConnection(startingWith:_:)`. Suspends as `body` does. The connection is closed
  /// when `body` ends, and does not count for `HTTPClient.Options.connectionsOfHost` from now on.
  ///
  /// - Parameter body: Uses the connection, and a reader of it that has what came behind the head.
  /// - Throws: What `body` throws; ``HTTPError`` if the status is another one: read the response then.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func upgrade<R>(_ body: (Connection, inout BufferedReader) throws -> R) throws -> R {
    guard head.status.code == 101 else { throw HTTPError.notSwitched(head.status.code) }
    permit.release()
    let connection = connection
    defer { connection.close() }
    return try connection.upgrade(body)
  }
}
#endif
