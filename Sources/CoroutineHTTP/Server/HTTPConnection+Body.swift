#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes

extension HTTPConnection {
  /// Reads the next part of the request's body; 0 at its end.
  func readBody(into buffer: UnsafeMutableRawBufferPointer, limit: Int) throws -> Int {
    let limit = max(0, limit)
    // What has arrived needs no wait, and a cancelled handler gets none of it either.
    try co_checkCancelled()
    if exchange.body == .ended || buffer.count == 0 { return 0 }
    if exchange.body == .length, exchange.remaining > UInt64(max(0, limit - exchange.received)) {
      throw HTTPError.bodyTooLarge
    }
    if exchange.expectsContinue, !exchange.hasBegun {
      exchange.expectsContinue = false
      output.append("HTTP/1.1 100 Continue\r\n\r\n")
      try flush()
    }
    let count: Int
    do {
      count = exchange.body == .length ? try readLength(buffer) : try readChunks(buffer)
    } catch let error as HTTPError {
      // Where the next request begins is unknown, also if the handler ignores the error.
      exchange.keepsAlive = false
      throw error
    }
    exchange.received += count
    if exchange.received > limit { throw HTTPError.bodyTooLarge }
    return count
  }

  private func readLength(_ buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    let most = Int(min(UInt64(buffer.count), exchange.remaining))
    let room = UnsafeMutableRawBufferPointer(rebasing: buffer[..<most])
    var count = min(most, input.unread.count)
    if count > 0 {
      room.copyMemory(from: UnsafeRawBufferPointer(rebasing: input.unread[..<count]))
      input.drop(count)
    } else {
      try flush()
      count = try reading { try transport.receive { room } }
      if count == 0 { throw HTTPError.bodyIncomplete }
    }
    exchange.remaining -= UInt64(count)
    if exchange.remaining == 0 { exchange.body = .ended }
    return count
  }

  private func readChunks(_ buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    while true {
      let bytes = input.unread
      if bytes.isEmpty {
        if try !reading({ try fill() }) { throw HTTPError.bodyIncomplete }
        continue
      }
      var (copied, consumed) = (0, 0)
      let state = chttp_parse_chunks(
        message,
        bytes.baseAddress?.assumingMemoryBound(to: CChar.self),
        min(bytes.count, buffer.count),
        buffer.baseAddress?.assumingMemoryBound(to: CChar.self),
        service.options.headSize,
        &copied,
        &consumed
      )
      input.drop(consumed)
      if state == CHTTP_BAD { throw Self.error(message.unsafelyUnwrapped) }
      if state == CHTTP_DONE { exchange.body = .ended }
      // Sizes and extensions may not be much more than data.
      exchange.framingBytes += consumed - copied
      if exchange.framingBytes > service.options.headSize + 8 * (exchange.received + copied) {
        throw HTTPError.malformed("CHUNK_EXTENSIONS_TOO_LARGE")
      }
      if copied > 0 || exchange.body == .ended { return copied }
    }
  }

  private static func error(_ message: UnsafeMutablePointer<chttp_message>) -> HTTPError {
    strcmp(message.pointee.error, "TRAILERS_TOO_LARGE") == 0 ? .headTooLarge : .malformed(message)
  }

  /// Waits for the client, within the limit of a pause.
  private func reading<R>(_ body: () throws -> R) throws -> R {
    try enter(.reading)
    do {
      let result = try body()
      try enter(.busy)
      return result
    } catch {
      if let reason = phase.reason { throw reason.error }
      try enter(.busy)
      throw error
    }
  }

  /// Reads and drops what the handler has left of the body; returns false if the connection cannot go on.
  func discardBody() throws -> Bool {
    if exchange.body == .ended { return true }
    // The client may send the body now, or the next request.
    return exchange.expectsContinue ? false : try readRestOfBody()
  }

  /// Reads and drops the rest of the body, also one that the client sends only when it is asked for; returns false if
  /// that is more than the server drops.
  func readRestOfBody() throws -> Bool {
    if exchange.body == .ended { return true }
    let limit = exchange.received + service.options.discardedSize
    try flush()
    return try withUnsafeTemporaryAllocation(byteCount: 4_096, alignment: 16) { buffer in
      do {
        while try readBody(into: buffer, limit: limit) > 0 {}
        return true
      } catch let error as HTTPError where error == .bodyTooLarge {
        return false
      }
    }
  }
}

// MARK: - Responses

extension HTTPConnection {
  /// The size from which a body is written from where it is, and is not copied behind its head.
  private static var large: Int { 16_384 }

  private var isHead: Bool { message?.pointee.is_head == 1 }

  func send(_ head: ServerResponse.Head, _ body: UnsafeRawBufferPointer) throws {
    try checkIsNew()
    // To HEAD, a handler may say the length of the body without having it.
    let length = isHead && body.count == 0 ? head.declaredLength ?? 0 : UInt64(body.count)
    try appendHead(head, head.isBodiless ? .none : .length(length))
    exchange.phase = .ended
    guard !head.isBodiless, !isHead else { return try writing { try flush() } }
    if body.count >= Self.large {
      try writing { try transport.write(output.bytes, body) }
      output.truncate(to: 0)
    } else {
      output.append(body)
      try writing { try flush() }
    }
  }

  func write(_ head: ServerResponse.Head, _ part: UnsafeRawBufferPointer) throws {
    try beginParts(head)
    exchange.written += UInt64(part.count)
    if isHead || part.count == 0 { return try writing { try flush() } }
    switch exchange.framing {
    case .none, .upgrade: try writing { try flush() }
    case .length(let declared) where exchange.written > declared:
      exchange.isBroken = true
      throw HTTPError.length(declared: declared, written: exchange.written)
    case .length, .untilClose: try writePart(part, end: "")
    case .chunked:
      output.append(hexadecimal: UInt64(part.count))
      output.append("\r\n")
      try writePart(part, end: "\r\n")
    }
  }

  func finishResponse(_ head: ServerResponse.Head, _ trailers: HTTPFields?) throws {
    if exchange.phase == .ended { throw HTTPError.responseEnded }
    // Before a byte is sent: the handler may correct it.
    if let trailers, let name = trailers.first(where: { $0.name.isOfHead })?.name { throw HTTPError.badTrailer(name) }
    try beginParts(head)
    if !isHead {
      switch exchange.framing {
      case .length(let declared) where exchange.written != declared:
        exchange.isBroken = true
        throw HTTPError.length(declared: declared, written: exchange.written)
      case .chunked:
        output.append("0\r\n")
        for field in trailers ?? [:] where !output.append(field) {
          exchange.isBroken = true
          throw HTTPError.invalidField
        }
        output.append("\r\n")
      default: break
      }
    }
    exchange.phase = .ended
    try writing { try flush() }
  }

  func checkIsNew() throws {
    switch exchange.phase {
    case .new: break
    case .body: throw HTTPError.headSent
    case .ended: throw HTTPError.responseEnded
    }
  }

  private func beginParts(_ head: ServerResponse.Head) throws {
    if exchange.phase == .body { return exchange.isBroken ? try writing {} : () }
    try checkIsNew()
    if head.isBodiless {
      try appendHead(head, .none)
    } else if let length = head.declaredLength {
      try appendHead(head, .length(length))
    } else {
      try appendHead(head, message?.pointee.minor_version == 0 ? .untilClose : .chunked)
    }
    exchange.phase = .body
  }

  // MARK: Writing

  private func writePart(_ part: UnsafeRawBufferPointer, end: StaticString) throws {
    let end = UnsafeRawBufferPointer(start: end.utf8Start, count: end.utf8CodeUnitCount)
    try writing {
      if part.count < Self.large {
        output.append(part)
        output.append(end)
        try flush()
      } else {
        try transport.write(output.bytes, part, end)
        output.truncate(to: 0)
      }
    }
  }

  /// Waits for the client, within the limit of a pause.
  func writing(_ body: () throws -> Void) throws {
    if exchange.isBroken { throw HTTPError.responseEnded }
    do {
      try enter(.writing)
      try body()
      try enter(.busy)
    } catch {
      exchange.isBroken = true
      throw phase.reason?.error ?? error
    }
  }

  // MARK: The head

  /// Appends the head, or nothing if it would be invalid.
  func appendHead(_ head: ServerResponse.Head, _ framing: Exchange.Framing) throws {
    let mark = output.count
    do {
      try appendCheckedHead(head, framing)
      exchange.framing = framing
    } catch {
      output.truncate(to: mark)
      exchange.isRefused = true
      throw error
    }
  }

  private func appendCheckedHead(_ head: ServerResponse.Head, _ framing: Exchange.Framing) throws {
    // Behind 101 the connection has another protocol, so only `upgrade` sends it.
    guard (200..<1_000).contains(head.status.code) || head.status.code == 101 && framing == .upgrade else {
      throw HTTPError.invalidStatus
    }
    output.append("HTTP/1.1 ")
    output.append(decimal: UInt64(head.status.code))
    output.append(" ")
    var reason = head.status.reasonPhrase
    guard reason.withUTF8({ output.appendValue($0) }) else { throw HTTPError.invalidStatus }
    output.append("\r\n")
    output.appendDate()
    switch framing {
    case .upgrade: break
    case .none:
      // Of 205 the client cannot know it by the status alone (RFC 9110, 15.3.6).
      if head.status.code == 205 { output.append("content-length: 0\r\n") }
    case .chunked: output.append("transfer-encoding: chunked\r\n")
    case .untilClose: exchange.keepsAlive = false
    case .length(let length):
      output.append("content-length: ")
      output.append(decimal: length)
      output.append("\r\n")
    }
    if let type = head.type, !output.append(field: "content-type", type) { throw HTTPError.invalidField }
    if let fields = head.fields { try append(fields, hasType: head.type != nil) }
    if head.status.code != 101 { appendConnection(namesUpgrade: head.status.code == 426) }
    output.append("\r\n")
  }

  private func append(_ fields: HTTPFields, hasType: Bool) throws {
    for field in fields {
      switch field.name.canonicalName {
      case "content-length", "transfer-encoding", "date", "keep-alive": continue
      case "connection":
        if field.value.lowercased().contains("close") { exchange.keepsAlive = false }
        continue
      case "content-type" where hasType: continue
      default: if !output.append(field) { throw HTTPError.invalidField }
      }
    }
  }

  /// Announces the end of the connection, as far as it is known now.
  private func appendConnection(namesUpgrade: Bool) {
    let leavesMuch = exchange.body == .length && exchange.remaining > UInt64(service.options.discardedSize)
    if leavesMuch || exchange.expectsContinue || service.isStopping { exchange.keepsAlive = false }
    // The field `upgrade` belongs to this connection alone (RFC 9110, 7.8).
    if namesUpgrade { output.append("connection: upgrade\r\n") }
    if !exchange.keepsAlive {
      output.append("connection: close\r\n")
    } else if message?.pointee.minor_version == 0 {
      output.append("connection: keep-alive\r\n")
    }
  }
}

extension HTTPField.Name {
  /// Whether a field of that name must be known before the body, and cannot be a trailer (RFC 9110, 6.5.1).
  fileprivate var isOfHead: Bool {
    var name = canonicalName
    return name.withUTF8 { name in
      name.withMemoryRebound(to: CChar.self) { chttp_is_of_head($0.baseAddress, $0.count) != 0 }
    }
  }
}
#endif
