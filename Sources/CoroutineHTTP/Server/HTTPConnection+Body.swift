#if HTTP
import CLLHTTP
import Coroutine
import Glibc

extension HTTPConnection {
  /// Reads the next part of the request's body; 0 at its end.
  func readBody(into buffer: UnsafeMutableRawBufferPointer, limit: Int) throws -> Int {
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
    if exchange.expectsContinue { return false }
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
#endif
