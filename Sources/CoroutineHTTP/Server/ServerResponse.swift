#if HTTP
public import CoroutineNet
public import HTTPTypes

/// A response: sent as a whole by `send`, or in parts by ``write(_:)-(String)`` and ``finish(trailers:)``.
///
/// Every function suspends while the client takes less than is written, and throws `NetError` if the client has
/// closed the connection, ``HTTPError`` if the client takes nothing for ``HTTPServer/Options/pause``, and the
/// cancellation error. After these the connection is closed when the handler returns.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// case (.get, "/notes"):
///   for text in texts.current { try response.write(text + "\n") }
/// case (.post, "/notes"):
///   let text = String(decoding: try request.collect(upTo: 4_096), as: UTF8.self)
///   texts.withLock { $0.append(text) }
///   response.status = .created
///   try response.send(text)
/// ```
public struct ServerResponse: ~Copyable {
  /// The status, 200 to 999; read when the head is sent.
  ///
  /// Interim responses are the server's, and 101 is sent by ``upgrade(_:)``: to send one is an error, and the answer is
  /// 500.
  public var status = HTTPResponse.Status.ok
  private var stored: HTTPFields?
  let connection: HTTPConnection

  init(_ connection: HTTPConnection) { self.connection = connection }

  /// The fields; read when the head is sent.
  ///
  /// The server adds those of framing, and `date`. A `content-length` declares the length of a body that is written
  /// in parts. `connection: close` ends the connection after the response.
  public var fields: HTTPFields {
    get { stored ?? HTTPFields() }
    _modify {
      if stored == nil { stored = HTTPFields() }
      yield &stored!
    }
  }

  /// Sends the whole response.
  ///
  /// It leaves at once, also if the client has sent other requests behind this one.
  ///
  /// - Parameters:
  ///   - body: The bytes of the body.
  ///   - type: The value of `content-type`; nil leaves it as it is in ``fields``.
  /// - Throws: ``HTTPError`` if the response has begun; or if a field would split it, and then the answer is 500.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func send(_ body: some Collection<UInt8>, type: String? = nil) throws {
    let head = Head(status: status, fields: stored, type: type)
    let isSent: Void? = try body.withContiguousStorageIfAvailable {
      try connection.send(head, UnsafeRawBufferPointer($0))
    }
    if isSent == nil { try Array(body).withUnsafeBytes { try connection.send(head, $0) } }
  }

  /// Sends the whole response with a text as its body; in all other respects as `send` with bytes.
  ///
  /// - Parameters:
  ///   - text: The body, which is sent in UTF-8.
  ///   - type: The value of `content-type`; nil leaves it as it is in ``fields``, and is `text/plain; charset=utf-8` if
  ///     there is none.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func send(_ text: String, type: String? = nil) throws {
    let plain = type == nil && stored?[.contentType] == nil ? "text/plain; charset=utf-8" : type
    let head = Head(status: status, fields: stored, type: plain)
    var text = text
    try text.withUTF8 { try connection.send(head, UnsafeRawBufferPointer($0)) }
  }

  /// Writes a part of the body; the first call sends the head.
  ///
  /// The body has the length that `fields` declares. Without one it is chunked, and for a client of HTTP/1.0 it ends
  /// with the connection.
  ///
  /// - Throws: ``HTTPError`` if the body gets longer than declared; then nothing of the part is written.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func write(_ part: UnsafeRawBufferPointer) throws {
    try connection.write(Head(status: status, fields: stored, type: nil), part)
  }

  /// Writes a text as a part of the body.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func write(_ text: String) throws {
    var text = text
    try text.withUTF8 { try write(UnsafeRawBufferPointer($0)) }
  }

  /// Ends the response; a handler that has written parts need not call it.
  ///
  /// - Parameter trailers: Fields behind a chunked body. They are dropped if the body is not chunked.
  /// - Throws: ``HTTPError`` with the code `INVALID_TRAILER` if one of them belongs into the head: `content-length`,
  ///   `transfer-encoding`, `trailer`, `host`, `connection`, `keep-alive`, `upgrade`. Then nothing has been sent, and
  ///   the response can still be ended.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func finish(trailers: HTTPFields? = nil) throws {
    try connection.finishResponse(Head(status: status, fields: stored, type: nil), trailers)
  }

  /// The fields, without those that describe a body: an answer to an error has another one.
  var fieldsOfErrors: HTTPFields? {
    guard var fields = stored else { return nil }
    for name in Self.fieldsOfBodies { fields[name] = nil }
    return fields
  }

  private static var fieldsOfBodies: [HTTPField.Name] {
    [
      .contentType, .contentLength, .contentEncoding, .contentLanguage, .contentLocation, .contentRange,
      .contentDisposition, .eTag, .lastModified, .acceptRanges, .transferEncoding, .trailer,
    ]
  }

  /// Answers an upgrade with 101, or CONNECT with 200, and hands the connection over.
  ///
  /// Suspends as `body` does. The reader returns the bytes first that the client had sent behind its head. Over TLS
  /// the connection is that of ``TLS/Stream/withConnection(startingWith:_:)``: it can be used as any other, and throws
  /// `ECONNRESET` when the client is gone without having ended TLS. The limits of time do not hold any more, and the
  /// coroutine is not cancelled when the client goes: `body` learns that from its reads and writes. The connection is
  /// closed when `body` ends; what was written leaves before, for two seconds at most if the client takes nothing.
  ///
  /// - Parameter body: Uses the connection. ``fields`` should have the fields of the handshake. `upgrade` among them is
  ///   the protocol that is made, which the client must have offered; without it, it is the first that the client
  ///   offers (``ServerRequest/offeredProtocols``). `connection` is added.
  /// - Throws: ``HTTPError`` if the client has asked for no such upgrade, or with HTTP/1.0. A handler that throws it on
  ///   answers with 426 and the protocol, or with 400 if `fields` names none. What `body` throws.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func upgrade(_ body: (Connection, inout BufferedReader) throws -> Void) throws {
    try connection.upgrade(Head(status: status, fields: stored, type: nil), body)
  }

  /// What a head is made of.
  struct Head {
    var status: HTTPResponse.Status
    var fields: HTTPFields?
    var type: String?

    var declaredLength: UInt64? { fields?[.contentLength].flatMap { UInt64($0) } }
    /// Whether a response of this status has no body.
    var isBodiless: Bool { status.code < 200 || [204, 205, 304].contains(status.code) }
  }
}
#endif
