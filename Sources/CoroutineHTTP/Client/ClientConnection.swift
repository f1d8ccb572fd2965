#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes

// A connection of a client: one exchange at a time.
//
//   IDLE -- write a request, read a head --> BODY -- its end --> IDLE, if the connection is kept
//                |                             |
//                +-- failure, cancellation ----+--> closed
//
// Owner: the coroutine of the exchange; while IDLE the pool.

final class ClientConnection: @unchecked Sendable {
  // Sound because one owner uses it at a time, and it changes hands under the lock of the pool.
  let transport: Transport
  private let input = InputBuffer()
  private let output = OutputBuffer()
  private let message: UnsafeMutablePointer<chttp_message>
  private enum Body {
    case ended, chunks, untilEnd
    case length(UInt64)
  }
  private var body = Body.ended
  private var staysOpen = true
  private var upload: Upload?
  /// Whether a byte of the current response has arrived.
  private(set) var hasReceived = false
  /// Whether an exchange was completed on this connection.
  var isUsed = false
  var idleSince = co_now

  static var mostHead: Int { 65_536 }

  private let ownsConnection: Bool

  /// Creates the exchange's side of a connection, which it closes when it is released if it owns it.
  init(_ transport: Transport, ownsConnection: Bool = true) throws {
    self.transport = transport
    self.ownsConnection = ownsConnection
    guard let message = chttp_create(1) else { throw HTTPError.noMemory }
    self.message = message
  }

  deinit {
    if ownsConnection { transport.connection.close() }
    chttp_destroy(message)
  }

  func close() {
    upload?.cancel()
    transport.close()
  }

  /// Whether another exchange may follow: also the request has been sent to its end.
  var keepsAlive: Bool { staysOpen && upload?.isWritten != false }

  var hasEnded: Bool { if case .ended = body { true } else { false } }

  /// Whether a request may be written: the server has neither sent a byte of a response nor ended its output.
  ///
  /// A byte that is there before the request is no answer to it: another response that nobody asked for, or one that
  /// somebody in between has smuggled in. Over TLS that shows when the records are decrypted; tickets are no response.
  /// Such a connection is not used again, because its byte is consumed here.
  func isFresh() -> Bool {
    guard input.isEmpty else { return false }
    return withUnsafeTemporaryAllocation(byteCount: 1, alignment: 1) {
      do { return try transport.receiveNow(into: $0) == nil } catch { return false }
    }
  }

  // MARK: The request

  /// Sends a request, and reads the head of its response.
  func exchange(_ request: HTTPRequest, target: String, _ host: String, _ body: OutgoingBody) throws -> HTTPResponse {
    do {
      try write(request, target: target, host, body)
    } catch  where !co_isCancelled && (error is NetError || error is TLSError) {
      // A server that closes without reading on may have said why.
      do {
        let head = try readHead(of: request.method)
        staysOpen = false
        return head
      } catch let later {
        throw Self.cause(ofWrite: error, ofRead: later)
      }
    }
    do {
      let head = try readHead(of: request.method)
      // One that refuses the body takes no more of it. Another answer may depend on the rest.
      if head.status.kind != .successful, upload?.isWritten == false { upload?.cancel() }
      return head
    } catch {
      upload?.cancel()
      throw Self.cause(ofWrite: upload?.failure, ofRead: error)
    }
  }

  /// The error that says why an exchange has failed.
  ///
  /// That of the write, which came first, unless it says only that the server takes no more: over TLS an alert says
  /// why.
  private static func cause(ofWrite write: (any Error)?, ofRead read: any Error) -> any Error {
    guard let write, !co_isCancelled else { return read }
    return write is NetError && read is TLSError ? read : write
  }

  private func write(_ request: HTTPRequest, target: String, _ host: String, _ body: OutgoingBody) throws {
    hasReceived = false
    upload = nil
    output.truncate(to: 0)
    output.append(request.method.rawValue)
    output.append(" ")
    guard target.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else { throw HTTPError.badURL(target) }
    output.append(target)
    output.append(" HTTP/1.1\r\n")
    guard output.append(field: "host", host) else { throw HTTPError.badURL(host) }
    for field in request.headerFields {
      switch field.name.canonicalName {
      case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection": continue
      default: if !output.append(field) { throw HTTPError.invalidField }
      }
    }
    if request.headerFields.contains(.upgrade) { output.append("connection: upgrade\r\n") }
    switch body {
    case .parts(nil, _): output.append("transfer-encoding: chunked\r\n")
    case .parts(let length?, _): appendLength(length)
    case .bytes(let bytes):
      if !bytes.isEmpty || [.post, .put, .patch].contains(request.method) { appendLength(UInt64(bytes.count)) }
    }
    output.append("\r\n")
    try send(body)
    output.truncate(to: 0)
  }

  private func appendLength(_ length: UInt64) {
    output.append("content-length: ")
    output.append(decimal: length)
    output.append("\r\n")
  }

  /// Writes the head, and the body if it is small; begins to write another one.
  private func send(_ body: OutgoingBody) throws {
    switch body {
    case .bytes(let bytes) where bytes.count <= OutgoingBody.small:
      try bytes.withUnsafeBytes { try transport.write(output.bytes, $0) }
    case .bytes(let bytes):
      try transport.write(output.bytes)
      upload = Upload(transport, length: UInt64(bytes.count)) { body in
        try bytes.withUnsafeBytes { try body.write($0) }
      }
    case .parts(let length, let write):
      try transport.write(output.bytes)
      upload = Upload(transport, length: length, write)
    }
  }

  // MARK: The response

  /// Reads the head of the final response; interim ones are dropped.
  func readHead(of method: HTTPRequest.Method) throws -> HTTPResponse {
    while true {
      let head = try readOneHead(method)
      if head.status.code >= 200 || head.status.code == 101 { return head }
    }
  }

  private func readOneHead(_ method: HTTPRequest.Method) throws -> HTTPResponse {
    input.endMessage()
    chttp_reset(message)
    if method == .head { chttp_expect_no_body(message) }
    var parsed = 0
    while true {
      let bytes = input.unread
      if bytes.count > parsed {
        let most = min(bytes.count, Self.mostHead + 1)
        let start = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: CChar.self)
        switch chttp_parse_head(message, start, parsed, most) {
        case CHTTP_DONE:
          input.keep(Int(message.pointee.head_length))
          return begin(method)
        case CHTTP_MORE: parsed = most
        default: throw HTTPError.malformed(message)
        }
        if most > Self.mostHead { throw HTTPError.headOfResponseTooLarge }
      }
      if try !fill() { throw HTTPError.headIncomplete }
    }
  }

  private func fill() throws -> Bool {
    let count = try transport.receive {
      self.input.releaseIfEmpty()
    } into: {
      self.input.room()
    }
    input.received(count)
    if count > 0 { hasReceived = true }
    return count > 0
  }

  private func begin(_ method: HTTPRequest.Method) -> HTTPResponse {
    let head = message.pointee
    staysOpen = head.keeps_alive != 0
    let code = Int(head.status)
    if method == .head || code < 200 || code == 204 || code == 304 || method == .connect && code < 300 {
      body = .ended
    } else if head.is_chunked != 0 {
      body = .chunks
    } else if head.has_length != 0 {
      body = head.content_length == 0 ? .ended : .length(head.content_length)
    } else {
      body = .untilEnd
      staysOpen = false
    }
    var fields = HTTPFields()
    for index in 0..<Int(head.head_field_count) {
      let field = head.fields[index]
      let name = String(decoding: bytes(field.name, field.name_length), as: UTF8.self)
      guard let name = HTTPField.Name(name) else { continue }
      fields.append(HTTPField(name: name, value: bytes(field.value, field.value_length)))
    }
    return HTTPResponse(status: .init(code: code), headerFields: fields)
  }

  private func bytes(_ start: UInt32, _ count: UInt32) -> UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: input.head + Int(start), count: Int(count))
  }

  /// Reads the next part of the body; 0 at its end.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    // What has arrived needs no wait, and a cancelled coroutine gets none of it either.
    try co_checkCancelled()
    guard buffer.count > 0 else { return 0 }
    while true {
      if let count = try readNow(into: buffer) {
        if count == 0 { upload?.settle() }
        return count
      }
      if try !fill() { try endOfStream() }
    }
  }

  /// Returns nil if more bytes of the server are needed.
  private func readNow(into buffer: UnsafeMutableRawBufferPointer) throws -> Int? {
    let unread = input.unread
    switch body {
    case .ended: return 0
    case .length(let rest):
      if unread.isEmpty { return nil }
      let count = Int(min(UInt64(min(buffer.count, unread.count)), rest))
      take(count, into: buffer)
      body = rest == UInt64(count) ? .ended : .length(rest - UInt64(count))
      return count
    case .untilEnd:
      if unread.isEmpty { return nil }
      let count = min(buffer.count, unread.count)
      take(count, into: buffer)
      return count
    case .chunks:
      while !input.isEmpty {
        let bytes = input.unread
        var (copied, consumed) = (0, 0)
        let state = chttp_parse_chunks(
          message,
          bytes.baseAddress?.assumingMemoryBound(to: CChar.self),
          min(bytes.count, buffer.count),
          buffer.baseAddress?.assumingMemoryBound(to: CChar.self),
          Self.mostHead,
          &copied,
          &consumed
        )
        input.drop(consumed)
        if state == CHTTP_BAD { throw HTTPError.malformed(message) }
        if state == CHTTP_DONE { body = .ended }
        if copied > 0 || state == CHTTP_DONE { return copied }
      }
      return nil
    }
  }

  private func take(_ count: Int, into buffer: UnsafeMutableRawBufferPointer) {
    buffer.copyMemory(from: UnsafeRawBufferPointer(rebasing: input.unread[..<count]))
    input.drop(count)
  }

  private func endOfStream() throws {
    guard case .untilEnd = body else { throw HTTPError.bodyIncomplete }
    body = .ended
  }

  /// Whether the rest of the body is short and has arrived, so that it can be dropped without a wait.
  func dropsRest() -> Bool {
    var most = 65_536
    return withUnsafeTemporaryAllocation(byteCount: 4_096, alignment: 16) { buffer in
      while !hasEnded, most > 0 {
        do {
          if let count = try readNow(into: buffer) {
            most -= count
          } else {
            guard let count = try transport.receiveNow(into: input.room()), count > 0 else { return false }
            input.received(count)
          }
        } catch {
          return false
        }
      }
      return hasEnded
    }
  }

  /// Calls `body` with the connection, on which HTTP has ended.
  func upgrade<R>(_ body: (Connection, inout BufferedReader) throws -> R) throws -> R {
    let readAhead = Array(input.unread)
    input.drop(readAhead.count)
    guard let tls = transport.tls else {
      var reader = BufferedReader(transport.connection, startingWith: readAhead)
      return try body(transport.connection, &reader)
    }
    return try tls.withConnection(startingWith: readAhead) { connection in
      var reader = BufferedReader(connection)
      return try body(connection, &reader)
    }
  }

  /// Forgets the exchange before the connection waits for the next one.
  func endExchange() {
    isUsed = true
    upload = nil
    input.endMessage()
    input.releaseIfEmpty()
    output.release()
  }
}
#endif
