import CoroutineNIO
public import NIOCore
public import NIOHTTP1

/// A request, whose body is read in parts.
///
/// Coroutines of the connection's event loop use it until the handler returns. Afterwards its functions throw
/// ``HTTPServerError/exchangeEnded``.
public final class HTTPRequest {
  /// The method, the target, the version and the headers.
  public let head: HTTPRequestHead
  /// The headers that followed a chunked body; known when ``read()`` has returned nil.
  public private(set) var trailers: HTTPHeaders?

  private let response: HTTPResponse
  /// Nil after the end of the exchange.
  private var connection: HTTPConnection?
  private var size = 0
  private var limit: Int
  private var hasEnded = false
  /// The number of coroutines that wait for a part.
  private var readers = 0
  /// Whether the client waits for 100-continue before it sends the body.
  private var expectsContinue = false

  init(_ connection: HTTPConnection, _ head: HTTPRequestHead, _ response: HTTPResponse) {
    self.connection = connection
    self.head = head
    self.response = response
    limit = connection.limits.bodySize
  }

  /// The channel of the connection: for its addresses and its event loop; nil after the end of the exchange.
  public var channel: (any NIOCore.Channel)? { connection?.channel.channel }

  /// Reads the next part of the body; nil at its end.
  ///
  /// Suspends until a part has arrived. The first call tells a client that waits for it to send the body
  /// (100-continue), unless the response has begun.
  /// - Throws: ``HTTPServerError/bodyTooLarge(limit:)``, ``HTTPServerError/bodyLate``,
  ///   ``HTTPServerError/bodyIncomplete``, ``HTTPServerError/malformed(_:)``; an error of the channel; the cancellation
  ///   error, and then nothing is consumed.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func read() throws -> ByteBuffer? {
    guard let connection else { throw HTTPServerError.exchangeEnded }
    if hasEnded { return nil }
    if expectsContinue, !response.hasBegun {
      expectsContinue = false
      try connection.write(.head(.init(version: .http1_1, status: .continue)))
    }
    readers += 1
    defer { readers -= 1 }
    switch try connection.read() {
    case .body(let part):
      size += part.readableBytes
      if size > limit { throw HTTPServerError.bodyTooLarge(limit: limit) }
      return part
    case .end(let trailers):
      self.trailers = trailers
      hasEnded = true
      return nil
    case .head, nil:
      throw HTTPServerError.bodyIncomplete
    }
  }

  /// Reads the whole body; `limit` is in bytes, and that of the server holds as well.
  ///
  /// Suspends until the body has arrived. Throws as ``read()``.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func collect(upTo limit: Int = .max) throws -> ByteBuffer {
    self.limit = min(limit, self.limit)
    if let length = declaredLength, length > self.limit { throw HTTPServerError.bodyTooLarge(limit: self.limit) }
    var body = ByteBuffer()
    while var part = try read() {
      if body.readableBytes == 0 { body = part } else { body.writeBuffer(&part) }
    }
    return body
  }

  private var declaredLength: Int? { head.headers.first(name: "content-length").flatMap { Int($0) } }

  // MARK: For the connection

  /// Whether a coroutine waits for a part.
  var isReading: Bool { readers > 0 }

  /// Refuses what HTTP/1.1 forbids and NIO's decoder does not see, and bodies that are declared as too large.
  func check() throws {
    if head.version == .http1_1, head.headers["host"].count != 1 {
      throw HTTPServerError.malformed("HTTP/1.1 requires one header host")
    }
    // A proxy of HTTP/1.0 does not know the header, so it may see the end of this request elsewhere.
    if head.version == .http1_0, head.headers.contains(name: "transfer-encoding") {
      throw HTTPServerError.malformed("HTTP/1.0 has no header transfer-encoding")
    }
    // The decoder finds the end of any body whose last coding is chunked. But it decodes no other coding, and a proxy
    // may understand a list of codings, or an empty one, in another way.
    let codings = head.headers["transfer-encoding"]
    guard codings.isEmpty || codings.count == 1 && Self.isChunked(codings[0]) else {
      throw HTTPServerError.unsupportedTransferEncoding
    }
    if let length = declaredLength, length > limit { throw HTTPServerError.bodyTooLarge(limit: limit) }
    let expectations = head.headers[canonicalForm: "expect"]
    guard head.version == .http1_1, let expectation = expectations.first else { return }
    guard expectations.count == 1, expectation.lowercased() == "100-continue" else {
      throw HTTPServerError.unknownExpectation
    }
    expectsContinue = true
  }

  /// Whether a value of `transfer-encoding` is `chunked` alone; spaces and tabs around a value do not belong to it.
  private static func isChunked(_ value: String) -> Bool {
    let trimmed = value.drop { $0 == " " || $0 == "\t" }
    let end = trimmed.lastIndex { $0 != " " && $0 != "\t" }
    return end.map { trimmed[...$0].lowercased() == "chunked" } ?? false
  }

  /// Reads what the handler has left of the body; returns false if the connection cannot go on.
  func discard(upTo size: Int) throws -> Bool {
    // The client may send the body now, or the next request.
    if expectsContinue { return false }
    if hasEnded { return true }
    limit = min(limit, self.size + size)
    do {
      while try read() != nil {}
      return true
    } catch is HTTPServerError {
      return false
    }
  }

  func end() { connection = nil }
}
