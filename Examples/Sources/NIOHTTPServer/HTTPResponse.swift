public import NIOCore
public import NIOHTTP1

// The response of one exchange.
//
//   NEW ---- send ------------------------------> ENDED
//   NEW ---- write: the head is sent --> BODY -- finish --> ENDED
//   any ---- the write of a part fails --> BROKEN: nothing more is written, and the connection is closed
//
// A part that was not written is missing on the wire, while the phase has counted it. So there is no way back from
// BROKEN, whatever the handler does with the error.
//
// The framing of a body: its declared length; or in chunks; or, for HTTP/1.0, until the connection closes. A response
// to HEAD, and one with status 1xx, 204 or 304, has no body: what is written is dropped.

/// A response: sent as a whole by ``send(_:type:)``, or in parts by ``write(_:)``.
///
/// Coroutines of the connection's event loop use it until the handler returns. Afterwards its functions throw
/// ``HTTPServerError/exchangeEnded``.
public final class HTTPResponse {
  private enum Phase { case new, body, ended }
  private enum Framing {
    case none, chunked, untilClose
    case length(declared: Int)
  }

  /// The status; read when the head is sent.
  ///
  /// A response whose status is an interim one (1xx) is the last one of its connection.
  public var status = HTTPResponseStatus.ok
  /// The headers; read when the head is sent.
  ///
  /// The server adds those of framing, and `date`.
  public var headers = HTTPHeaders()

  private let request: HTTPRequestHead
  private var connection: HTTPConnection?
  private var phase = Phase.new
  private var framing = Framing.none
  private var written = 0
  private var writers = 0
  /// Whether the write of a part has failed.
  private(set) var isBroken = false
  private(set) var keepsAlive: Bool

  init(_ connection: HTTPConnection, _ request: HTTPRequestHead, keepsAlive: Bool) {
    self.connection = connection
    self.request = request
    self.keepsAlive = keepsAlive
  }

  /// Whether the head is sent, so that the status can no longer change.
  public var hasBegun: Bool { phase != .new }

  /// Whether the whole response is written, and no write of it has failed.
  private(set) var hasEnded = false

  /// Whether a coroutine writes a part, and may wait for room.
  var isWriting: Bool { writers > 0 }

  /// Sends the whole response.
  ///
  /// Suspends while the client takes less than is written.
  /// - Parameters:
  ///   - body: The body.
  ///   - type: The value of the header `content-type`; nil leaves the header as it is.
  /// - Throws: ``HTTPServerError/headSent`` if the head was sent before; as ``write(_:)``.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func send(_ body: ByteBuffer = .init(), type: String? = nil) throws {
    if phase != .new { throw HTTPServerError.headSent }
    if let type { headers.replaceOrAdd(name: "content-type", value: type) }
    try begin(length: body.readableBytes)
    if body.readableBytes > 0 { try writeBody(body) }
    try finish()
  }

  /// Sends the whole response with a text as its body; otherwise as ``send(_:type:)-(ByteBuffer,_)``.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func send(_ text: String, type: String = "text/plain; charset=utf-8") throws {
    try send(ByteBuffer(string: text), type: type)
  }

  /// Writes a part of the body; the first call sends the head.
  ///
  /// Suspends while the client takes less than is written. The part is sent when the loop's current drain ends, soon
  /// after the coroutine waits for anything. The body has the length of the header `content-length` if the handler has
  /// set it; otherwise it is chunked.
  /// - Throws: ``HTTPServerError/contentLength(declared:written:)`` if the body gets too long, and nothing is written;
  ///   ``HTTPServerError/clientStalled``; ``HTTPServerError/exchangeEnded``; an error of the channel; the cancellation
  ///   error. After an error of the client, of the channel or of cancellation, every call throws
  ///   ``HTTPServerError/responseBroken``, and the connection is closed when the handler returns.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func write(_ part: ByteBuffer) throws {
    if phase == .new { try begin(length: nil) }
    if part.readableBytes > 0 { try writeBody(part) }
  }

  /// Writes a text as a part of the body; otherwise as ``write(_:)-(ByteBuffer)``.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func write(_ text: String) throws { try write(ByteBuffer(string: text)) }

  /// Ends the response; the server does this when the handler returns.
  ///
  /// Suspends while the client takes less than is written. A second call has no effect.
  /// - Parameters:
  ///   - trailers: Headers that follow a chunked body; dropped for others.
  /// - Throws: ``HTTPServerError/contentLength(declared:written:)`` if the body is too short;
  ///   `HTTPParserError.invalidHeaderToken` if a trailer has a character that headers must not have, and nothing is
  ///   written; as ``write(_:)``.
  @available(*, noasync, message: "an async function has no coroutine: call it in the handler")
  public func finish(trailers: HTTPHeaders? = nil) throws {
    if phase == .ended { return }
    // NIO would refuse the end of the body with them, and the body would have no end.
    if let trailers, !trailers.hasValidCharacters { throw HTTPParserError.invalidHeaderToken }
    if phase == .new { try begin(length: 0) }
    if case .length(let declared) = framing, written != declared {
      throw HTTPServerError.contentLength(declared: declared, written: written)
    }
    phase = .ended
    try writePart(.end(trailers))
    hasEnded = true
  }

  // MARK: The head and the parts

  private func begin(length: Int?) throws {
    guard let connection, phase == .new else { throw HTTPServerError.exchangeEnded }
    phase = .body
    // After an interim status the client would take the next response for the final one of this request.
    if connection.isStopping || status.code < 200 { keepsAlive = false }
    if headers[canonicalForm: "connection"].contains(where: { $0.lowercased() == "close" }) { keepsAlive = false }
    framing = chooseFraming(length)
    if !headers.contains(name: "date") { headers.add(name: "date", value: connection.now) }
    let isOld = request.version == .http1_0
    if !keepsAlive {
      headers.replaceOrAdd(name: "connection", value: "close")
    } else if isOld {
      headers.replaceOrAdd(name: "connection", value: "keep-alive")
    }
    try writePart(.head(.init(version: isOld ? request.version : .http1_1, status: status, headers: headers)))
  }

  private func chooseFraming(_ length: Int?) -> Framing {
    headers.remove(name: "transfer-encoding")
    if let length { headers.replaceOrAdd(name: "content-length", value: "\(length)") }
    guard status.mayHaveResponseBody else {
      // 304 may say how long the body would be.
      if status != .notModified || length != nil { headers.remove(name: "content-length") }
      return .none
    }
    let declared = length ?? oneDeclaredLength()
    if request.method == .HEAD { return .none }
    if let declared { return .length(declared: declared) }
    if request.version != .http1_0 {
      headers.add(name: "transfer-encoding", value: "chunked")
      return .chunked
    }
    keepsAlive = false
    return .untilClose
  }

  /// Returns the length that the handler has declared, and leaves one header with it, or none if it is no length.
  ///
  /// Clients disagree about several headers, and about values like +5: they would see different ends of the body.
  private func oneDeclaredLength() -> Int? {
    guard let value = headers.first(name: "content-length") else { return nil }
    headers.remove(name: "content-length")
    guard let declared = Int(value), declared >= 0 else { return nil }
    headers.add(name: "content-length", value: "\(declared)")
    return declared
  }

  private func writeBody(_ part: ByteBuffer) throws {
    guard phase == .body else { throw HTTPServerError.exchangeEnded }
    switch framing {
    case .none: return
    case .length(let declared) where written + part.readableBytes > declared:
      throw HTTPServerError.contentLength(declared: declared, written: written + part.readableBytes)
    case .chunked, .untilClose, .length: break
    }
    written += part.readableBytes
    try writePart(.body(.byteBuffer(part)))
  }

  private func writePart(_ part: HTTPServerResponsePart) throws {
    guard let connection else { throw HTTPServerError.exchangeEnded }
    if isBroken { throw HTTPServerError.responseBroken }
    writers += 1
    defer { writers -= 1 }
    do {
      try connection.write(part)
    } catch {
      isBroken = true
      throw error
    }
  }

  // MARK: For the connection

  /// Makes this the last response of the connection.
  func closes() { keepsAlive = false }

  /// Sends a failure in place of what the handler has prepared.
  func sendFailure(_ failure: HTTPStatusError) throws {
    headers = [:]
    status = failure.status
    try send(failure.message + "\n")
  }

  func end() { connection = nil }
}
