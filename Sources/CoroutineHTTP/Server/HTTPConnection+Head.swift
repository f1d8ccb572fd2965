#if HTTP
import CLLHTTP
import CoroutineNet
import Glibc
import HTTPTypes

extension HTTPConnection {
  /// Reads a head; returns false if the connection ends before one.
  func nextHead() throws -> Bool {
    exchange.begin()
    input.endMessage()
    if Phase.kind(of: current) != .idle { try enter(.idle) }
    var parsed = 0
    var skipped = 0
    while true {
      // An empty line before a request is ignored (RFC 9112, 2.2).
      while parsed == 0, skipped < 4, input.unread.count >= 2, input.unread[0] == 13, input.unread[1] == 10 {
        input.drop(2)
        skipped += 1
      }
      if !input.isEmpty {
        if Phase.kind(of: current) == .idle { try enter(.head) }
        if try parseHead(&parsed) { return true }
        if input.unread.count > service.options.headSize { throw HTTPError.headTooLarge }
      } else if service.isStopping, try !hasArrived() {
        return false
      }
      if try !fill() { return false }
    }
  }

  /// Whether a request had arrived when the server was told to stop.
  private func hasArrived() throws -> Bool {
    try flush()
    guard let count = try transport.receiveNow(into: input.room()) else { return false }
    input.received(count)
    return count > 0
  }

  /// Parses the bytes that were not parsed; returns whether the head is complete.
  private func parseHead(_ parsed: inout Int) throws -> Bool {
    let bytes = input.unread
    if bytes.count == parsed { return false }
    if message == nil { message = chttp_create(0) } else if parsed == 0 { chttp_reset(message) }
    guard let message else { throw HTTPError.headTooLarge }
    let most = min(bytes.count, service.options.headSize + 1)
    let start = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: CChar.self)
    switch chttp_parse_head(message, start, parsed, most) {
    case CHTTP_MORE:
      parsed = most
      if most > service.options.headSize { throw HTTPError.headTooLarge }
      return false
    case CHTTP_DONE:
      guard message.pointee.head_length <= service.options.headSize else { throw HTTPError.headTooLarge }
      input.keep(Int(message.pointee.head_length))
      try beginExchange(message)
      return true
    default: throw HTTPError.malformed(message)
    }
  }

  // MARK: What llhttp does not check

  private func beginExchange(_ message: UnsafeMutablePointer<chttp_message>) throws {
    let head = message.pointee
    if head.transfer_count > 0, head.minor_version == 0 { throw HTTPError.malformed("TRANSFER_CODING_OF_HTTP_1_0") }
    if head.host_count > 1 || head.host_count == 0 && head.minor_version > 0 {
      throw HTTPError.malformed("HOST_MISSING_OR_REPEATED")
    }
    if head.host_count == 1, !Target.isAuthority(value(head.host - 1)) { throw HTTPError.malformed("INVALID_HOST") }
    let target = UnsafeRawBufferPointer(start: input.head + Int(head.target), count: Int(head.target_length))
    guard let parts = Target(target, isConnect: head.is_connect != 0, isOptions: isOptions) else {
      throw HTTPError.malformed("INVALID_TARGET")
    }
    let offset = Int(head.target)
    exchange.authority = parts.authority.map { $0.lowerBound + offset..<$0.upperBound + offset }
    exchange.path = parts.path.lowerBound + offset..<parts.path.upperBound + offset
    exchange.query = parts.query.map { $0.lowerBound + offset..<$0.upperBound + offset }
    exchange.keepsAlive = head.keeps_alive != 0 && !service.isStopping
    if head.is_connect != 0 {
      // What follows belongs to the tunnel. If the handler makes none, nobody knows where the next request begins.
      exchange.keepsAlive = false
    } else if head.is_chunked != 0 {
      exchange.body = .chunks
    } else if head.content_length > 0 {
      exchange.body = .length
      exchange.remaining = head.content_length
    }
    try checkExpectation(head)
  }

  private var isOptions: Bool { method.elementsEqual("OPTIONS".utf8) }

  private func checkExpectation(_ head: chttp_message) throws {
    guard head.expect_count > 0, head.minor_version > 0 else { return }
    let expectation = value(head.expect - 1)
    guard head.expect_count == 1, expectation.count == 12,
      strncasecmp(expectation.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: CChar.self), "100-continue", 12)
        == 0
    else {
      throw HTTPError("UNKNOWN_EXPECTATION", .expectationFailed, "the expectation is unknown; expect 100-continue")
    }
    exchange.expectsContinue = exchange.body != .ended
  }

  // MARK: Bytes of the head

  var method: UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: input.head, count: Int(message.unsafelyUnwrapped.pointee.method_length))
  }

  /// The value of a field of the head.
  func value(_ index: UInt32) -> UnsafeRawBufferPointer {
    let field = message.unsafelyUnwrapped.pointee.fields[Int(index)]
    return UnsafeRawBufferPointer(start: input.head + Int(field.value), count: Int(field.value_length))
  }

  func name(_ index: UInt32) -> UnsafeRawBufferPointer {
    let field = message.unsafelyUnwrapped.pointee.fields[Int(index)]
    return UnsafeRawBufferPointer(start: input.head + Int(field.name), count: Int(field.name_length))
  }

  func text(_ range: Range<Int>) -> Substring {
    Substring(decoding: UnsafeRawBufferPointer(start: input.head + range.lowerBound, count: range.count), as: UTF8.self)
  }

  /// The values of a name, with a comma between them; nil if there is none.
  func values(of name: HTTPField.Name) -> String? {
    var name = name.canonicalName
    let isCookie = name == "cookie"
    let bytes = input.head.assumingMemoryBound(to: CChar.self)
    return name.withUTF8 { name in
      var result: String?
      var from: UInt32 = 0
      while true {
        let found = name.withMemoryRebound(to: CChar.self) {
          chttp_find(message, bytes, $0.baseAddress, $0.count, from)
        }
        if found < 0 { return result }
        let value = String(decoding: value(UInt32(found)), as: UTF8.self)
        result = result.map { $0 + (isCookie ? "; " : ", ") + value } ?? value
        from = UInt32(found) + 1
      }
    }
  }
}
#endif
