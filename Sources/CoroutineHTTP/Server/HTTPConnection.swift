#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Synchronization

// A connection: its coroutine reads a head, calls the handler, ends the response, and reads the next head.
//
// Invariants
//  1. One coroutine runs the loop, so the responses have the order of the requests.
//  2. A response is written when it is complete, before the next handler runs and before a wait for input. So a client
//     never waits for bytes that the server holds: the next handler may take long, and a stop may end it.
//  3. A response that is incomplete is the last one, and its connection is closed at once. So no byte of another
//     response follows an unfinished one.
//  4. A connection that ends after a response ends its output first, and reads on for a while. If it were closed with
//     unread input, the system would reset it, and the client might lose the response. One that ends between two
//     responses tells the client so (TLS). One that ends within a response does not; where only the end of the stream
//     tells the length, it is reset.
//  5. All waits are in the scope that the table of the service knows, so that the sweep and the stop can end them. The
//     answers after such an end are sent outside of it. The handshake of TLS is one of them: a stop ends it if the
//     client has sent nothing.
//
// Owner of each field: the coroutine, except `phase` and what the sweep keeps.

final class HTTPConnection: @unchecked Sendable {
  // Sound because all but `connection`, `phase` and `restingSince` is used by the connection's coroutine alone, and the
  // fields of the sweep by it.
  //
  // `@exclusivity(unchecked)`: the checks took a twelfth of a request's instructions. No access of these fields lasts
  // over a call that accesses the same one.
  let service: HTTPService
  let connection: Connection
  /// Without TLS before its handshake has ended.
  @exclusivity(unchecked) private(set) var transport: Transport
  let phase = Phase()
  /// The sweep's tick since which the connection has waited for a request.
  let restingSince: Atomic<Int>
  @exclusivity(unchecked) var current: UInt64 = 0
  let input = InputBuffer()
  let output = OutputBuffer()
  /// The parser and the fields of the current message; nil while the connection is idle.
  @exclusivity(unchecked) var message: UnsafeMutablePointer<chttp_message>?
  @exclusivity(unchecked) var exchange = Exchange()
  /// The name of the coroutine: the peer, and while it serves a request, the method and the path.
  private let title = RunningCoroutine.title
  private let lengthOfPeer: Int
  @exclusivity(unchecked) private var stateOfTitle: UInt64 = 0

  // Of the sweep.
  @exclusivity(unchecked) private var lastSeen: UInt64 = 0
  @exclusivity(unchecked) private var lastWritten = 0
  @exclusivity(unchecked) private var unchanged = 0

  /// How the loop ended.
  enum End {
    /// Nothing more is written.
    case closed
    /// There was no TLS.
    case failedHandshake(any Error)
    /// The last response is complete.
    case finished
    /// An error is answered before the end.
    case refused(HTTPError, fields: HTTPFields?)
    /// The server wants no idle connection, and a request may have arrived.
    case stopped
  }

  private init(_ connection: Connection, _ service: HTTPService) {
    self.connection = connection
    transport = Transport(connection: connection, tls: nil)
    self.service = service
    restingSince = Atomic(service.tick)
    lengthOfPeer = title?.count ?? 0
  }

  deinit { chttp_destroy(message) }

  static func serve(_ connection: Connection, _ service: HTTPService) throws {
    let connection = HTTPConnection(connection, service)
    do {
      try connection.serve()
    } catch {
      connection.close()
      throw error
    }
  }

  private func serve() throws {
    while true {
      let end = try co_scope(failures: .isolated) { scope in
        service.add(self, scope)
        defer { service.remove(self) }
        if let tls = service.options.tls, transport.tls == nil, let end = try handshake(tls) { return end }
        return try serveRequests()
      }
      switch end {
      case .closed: return close()
      case .failedHandshake(let error):
        service.options.counters.addFailedHandshake()
        tell(error)
        return
      case .finished: return try finish()
      case .refused(let error, let fields):
        service.options.counters.addRefusedRequest()
        tell(error)
        phase.restart(&current)
        exchange.begin()
        exchange.keepsAlive = false
        try? co_timeout(.seconds(2)) { try respond(error.status, error.description, fields) }
        return try finish()
      case .stopped:
        phase.restart(&current)
        // Of a request that came at the same time, the bytes are there.
        let room = input.room()
        guard let count = try? transport.receiveNow(into: room), count > 0 else { return close() }
        input.received(count)
      }
    }
  }

  /// Makes the handshake; returns how the connection ends if there is none.
  private func handshake(_ server: TLS.Server) throws -> End? {
    var hasArrived = false
    do {
      try enter(.handshake)
      var first: [UInt8] = []
      if service.isStopping {
        // A connection of the backlog, which the stop has not seen: nothing would end its wait for a silent client.
        guard try self.hasArrived() else { return .closed }
        try enter(.head)
        hasArrived = true
        first = Array(input.unread)
        input.drop(first.count)
      }
      let tls = try server.accept(connection, startingWith: first) {
        if !hasArrived { try enter(.head) }
        hasArrived = true
      }
      transport = Transport(connection: connection, tls: tls)
      return nil
    } catch {
      let cause = phase.reason?.error ?? error
      if phase.reason == nil, co_isCancelled { throw error }
      guard cause is TLSError || cause is NetError || cause is HTTPError else { throw error }
      // A client that has sent nothing only looks whether the server is there.
      return hasArrived ? .failedHandshake(cause) : .closed
    }
  }

  /// Tells `onError` of what a client has done: the handler does not see it, and nothing of the server has failed.
  private func tell(_ error: any Error) { service.options.server.onError?(error, connection.remoteAddress) }

  /// Closes the connection after a response, or within one, which must not look complete.
  private func close() {
    guard exchange.phase == .body || exchange.isBroken else { return transport.close() }
    if case .untilClose = exchange.framing { connection.reset() } else { connection.close() }
  }

  // MARK: Steps

  /// Moves on; throws if the sweep or the stop has ended the connection.
  func enter(_ kind: Phase.Kind) throws {
    if !phase.enter(kind, from: &current) { throw phase.reason?.error ?? .peerHasGone }
  }

  /// Whether the sweep is to end the connection; called by the sweep.
  func hasExpired(_ most: HTTPService.Limits) -> Bool {
    let seen = phase.seen
    let written = connection.bytesWritten
    guard seen == lastSeen, written == lastWritten || Phase.kind(of: seen) != .writing else {
      (lastSeen, lastWritten, unchanged) = (seen, written, 0)
      return false
    }
    unchanged += 1
    switch Phase.kind(of: seen) {
    case .idle: return unchanged > most.idle && phase.end(seen, because: .idleForTooLong)
    case .handshake, .head: return unchanged > most.head && phase.end(seen, because: .headLate)
    case .reading: return unchanged > most.pause && phase.end(seen, because: .bodyLate)
    case .writing: return unchanged > most.pause && phase.end(seen, because: .stalled)
    case .busy: return connection.peerHasEnded && phase.end(seen, because: .peerHasGone)
    case .upgraded, .ended: return false
    }
  }

  // MARK: The loop

  private func serveRequests() throws -> End {
    do {
      while try nextHead() {
        guard try serveOne() else { return .finished }
      }
      return .closed
    } catch {
      if let end = endOfPhase() { return end }
      if co_isCancelled { throw error }
      if let error = error as? HTTPError, error.isOfClient, !exchange.hasBegun {
        return .refused(error, fields: exchange.fieldsOfErrors)
      }
      // A connection that the client has broken is no error of the server.
      if error is NetError || error is TLSError || error is HTTPError { return .closed }
      throw error
    }
  }

  /// What the end by the sweep or the stop means; nil if there was none.
  private func endOfPhase() -> End? {
    switch phase.reason {
    case nil: nil
    case .stopped, .gaveWay: .stopped
    case .headLate: .refused(.headLate, fields: nil)
    case .bodyLate where !exchange.hasBegun: .refused(.bodyLate, fields: exchange.fieldsOfErrors)
    default: .closed
    }
  }

  /// Writes what is ready.
  func flush() throws {
    guard output.count > 0 else { return }
    try transport.write(output.bytes)
    output.truncate(to: 0)
  }

  /// Reads more input after writing what is ready; returns false at the end of the stream.
  func fill() throws -> Bool {
    try flush()
    let count = try transport.receive {
      self.input.releaseIfEmpty()
      if self.input.isEmpty, Phase.kind(of: self.current) == .idle { self.releaseIdle() }
    } into: {
      self.input.room()
    }
    input.received(count)
    return count > 0
  }

  /// An idle connection has neither buffers nor a parser.
  private func releaseIdle() {
    restingSince.store(service.tick, ordering: .relaxed)
    output.release()
    chttp_destroy(message)
    message = nil
  }

  /// Ends the output, and reads on for a while, so that the client gets the response: for two seconds, and for as long
  /// as it takes a part of what is left of the response in two seconds, half a minute at most.
  private func finish() throws {
    var size = 0
    do {
      try co_timeout(.seconds(2)) {
        try flush()
        try transport.shutdownWrite()
      }
      for _ in 0..<15 {
        let unsent = connection.unsentCount
        do { return try co_timeout(.seconds(2)) { try dropRest(&size) } } catch is TimeoutError {
          try co_checkCancelled()
          if connection.unsentCount >= unsent { return connection.dropArrived() }
        }
      }
    } catch {
      if co_isCancelled { throw error }
    }
  }

  /// Reads up to the end of the stream, or a megabyte.
  private func dropRest(_ size: inout Int) throws {
    while size < 1 << 20 {
      input.endMessage()
      input.drop(input.unread.count)
      let count = try transport.receive { self.input.room() }
      if count == 0 { return }
      size += count
    }
  }
}

// MARK: - The head of a request

extension HTTPConnection {
  /// Reads a head; returns false if the connection ends before one.
  func nextHead() throws -> Bool {
    exchange.begin()
    input.endMessage()
    if Phase.kind(of: current) != .idle { try enter(.idle) }
    var parsed = 0
    var skipped = 0
    while true {
      // An empty line before a request is ignored (RFC 9112, 2.2), also if its first byte came alone, and was parsed.
      while parsed < 2, skipped < 4, input.unread.count >= 2, input.unread[0] == 13, input.unread[1] == 10 {
        input.drop(2)
        skipped += 1
        if parsed == 1 { try enter(.idle) }
        parsed = 0
      }
      if !input.isEmpty {
        if Phase.kind(of: current) == .idle { try enter(.head) }
        if try parseHead(&parsed) { return true }
        if input.unread.count > service.options.headSize { throw HTTPError.headTooLarge }
      } else if service.isStopping {
        // What has arrived may be a whole request, and then nothing follows.
        guard try hasArrived() else { return false }
        continue
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
    guard let message else { throw HTTPError.noMemory }
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
      // What follows belongs to the tunnel. If the handler makes none, it is unknown where the next request begins.
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
      chttp_equals(expectation.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: CChar.self), "100-continue", 12)
        != 0
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

// MARK: - A request and its response

extension HTTPConnection {
  /// Calls the handler for the request whose head was read, and ends the response; returns whether the connection
  /// goes on.
  func serveOne() throws -> Bool {
    try enter(.busy)
    nameByRequest()
    defer { nameByPeer() }
    var call = HandlerCall(self)
    do {
      try withUnsafeMutablePointer(to: &call) { call in
        try StackCalls.run(service.options.handlerStack, call) { HandlerCall.run($0) }
      }
      if let error = call.error { throw error }
    } catch {
      exchange.fieldsOfErrors = call.response.fieldsOfErrors
      try answer(error)
    }
    return try endExchange()
  }

  /// Calls the handler; on its stack.
  // The optimiser of Swift 6.3.1 crashes where it is inlined.
  @inline(never)
  fileprivate func handle(_ response: inout ServerResponse) throws {
    try service.handle(ServerRequest(self), &response)
    if !exchange.isUpgraded { try complete(&response) }
  }

  /// Shows the request in the name of the coroutine, without its query, which may have a secret.
  private func nameByRequest() {
    guard let title else { return }
    // The head begins with them. A target names no user.
    let shown = max(exchange.path.upperBound, exchange.authority?.upperBound ?? 0)
    withUnsafeBytes(of: UInt8(ascii: " ")) { space in
      title.set(keeping: lengthOfPeer, space, UnsafeRawBufferPointer(start: input.head, count: shown))
    }
    stateOfTitle = title.state
  }

  private func nameByPeer() {
    guard let title else { return }
    // The handler may have given the coroutine another name.
    if title.state == stateOfTitle { title.cut(to: lengthOfPeer) } else { connection.remoteAddress.name(title) }
  }

  /// Ends a response that the handler has not ended.
  private func complete(_ response: inout ServerResponse) throws {
    if exchange.isBroken || exchange.phase == .ended { return }
    if exchange.isRefused, exchange.phase == .new { throw HTTPError.invalidField }
    if exchange.phase == .new { try response.send([], type: nil) } else { try response.finish() }
  }

  /// Answers an error of the handler, or throws it if nothing can be answered.
  private func answer(_ error: any Error) throws {
    if phase.reason != nil || co_isCancelled || exchange.isUpgraded { throw error }
    let (status, message): (HTTPResponse.Status, String)
    switch error {
    case let error as HTTPStatusError: (status, message) = (error.status, error.message)
    case let error as HTTPError where error.isOfClient:
      (status, message) = (error.status, error.description)
      exchange.keepsAlive = false
      service.options.counters.addRefusedRequest()
      tell(error)
    default:
      (status, message) = (.internalServerError, HTTPResponse.Status.internalServerError.reasonPhrase)
      if !isOfClient(error) { report(error) }
    }
    // Otherwise the client has the whole response, or sees that it is incomplete.
    if exchange.phase == .new { try respond(status, message, exchange.fieldsOfErrors) }
  }

  /// Whether an error of the handler says that the client has gone, and not that a file has ended too early or cannot
  /// be read.
  private func isOfClient(_ error: any Error) -> Bool {
    guard exchange.isBroken, let error = error as? NetError else { return false }
    return error != .endOfStream && error.code != EIO
  }

  private func report(_ error: any Error) {
    if service.options.server.onError != nil {
      tell(error)
    } else {
      // A failed coroutine that is not joined is reported.
      _ = co_launch(name: "http handler") { throw error }
    }
  }

  /// Sends a whole response with a text.
  private func respond(_ status: HTTPResponse.Status, _ message: String, _ fields: HTTPFields?) throws {
    var response = ServerResponse(self)
    // Statuses that end nothing, or that have no body, cannot tell of an error.
    response.status = status.code < 200 ? .internalServerError : status
    if let fields { response.fields = fields }
    try response.send(message)
  }

  private func endExchange() throws -> Bool {
    if exchange.isUpgraded { return false }
    // The client must not wait for the rest of a response that does not come.
    if exchange.isBroken || exchange.phase != .ended { throw HTTPError.responseEnded }
    guard exchange.keepsAlive else { return false }
    return try discardBody()
  }
}

// MARK: - Upgrades

// The end of HTTP on a connection. Over TLS the program gets a connection whose bytes are carried: TLS+Carry.swift.

extension HTTPConnection {
  /// The protocols that the client offers to change to, in its order.
  ///
  /// None of a client of HTTP/1.0, whose `upgrade` may have come from behind a proxy that did not know it (RFC 9110,
  /// 7.8); and none if `connection` does not name the field.
  var offeredProtocols: [String] {
    guard let head = message?.pointee, head.is_upgrade != 0, head.minor_version > 0 else { return [] }
    let names = (values(of: .upgrade) ?? "").split(separator: ",")
    return names.map { String($0.filter { $0 != " " && $0 != "\t" }) }.filter { !$0.isEmpty }
  }

  func upgrade(_ head: ServerResponse.Head, _ body: (Connection, inout BufferedReader) throws -> Void) throws {
    guard exchange.phase == .new else { throw HTTPError.headSent }
    guard let message else { throw HTTPError.headSent }
    let named = head.fields?[.upgrade]
    let offered = offeredProtocols
    guard
      message.pointee.is_connect != 0
        || (named.map { named in offered.contains { $0.lowercased() == named.lowercased() } } ?? !offered.isEmpty)
    else {
      throw HTTPError.notUpgraded(namesProtocol: named != nil)
    }
    // The client sends the request's body first, and the protocol behind it.
    guard try readRestOfBody() else { throw HTTPError.bodyTooLarge }
    var head = head
    if message.pointee.is_connect != 0 {
      if head.status.kind != .successful { head.status = .ok }
      exchange.keepsAlive = true
      try appendHead(head, .upgrade)
    } else {
      head.status = .switchingProtocols
      var fields = head.fields ?? [:]
      if named == nil { fields[.upgrade] = offered[0] }
      head.fields = fields
      try appendHead(head, .upgrade)
      output.truncate(to: output.count - 2)
      output.append("connection: upgrade\r\n\r\n")
    }
    exchange.phase = .ended
    exchange.isUpgraded = true
    try writing { try flush() }
    try enter(.upgraded)
    guard let tls = transport.tls else {
      var reader = BufferedReader(connection, startingWith: Array(input.unread))
      return try body(connection, &reader)
    }
    try tls.withConnection(startingWith: Array(input.unread)) { connection in
      var reader = BufferedReader(connection)
      try body(connection, &reader)
    }
  }
}

// MARK: - The state of an exchange

// A request and its response.
//
//   response:  NEW --- send, or an error's answer ------------------> ENDED
//              NEW --- write: the head is sent --> BODY --- finish --> ENDED
//
// The framing of a body: its declared length; or in chunks; or, for HTTP/1.0, until the connection closes. A response
// to HEAD, and one with status 204 or 304, has no body: what is written is dropped. Behind the head of an upgrade the
// connection has another protocol.

struct Exchange {
  enum Phase { case new, body, ended }
  enum Framing: Equatable {
    case none, chunked, untilClose, upgrade
    case length(UInt64)
  }
  enum Body { case ended, length, chunks }

  // The request.
  var body = Body.ended
  /// Of a body with a length, the bytes that were not read.
  var remaining: UInt64 = 0
  var received = 0
  /// Bytes of chunk sizes and extensions.
  var framingBytes = 0
  var expectsContinue = false
  /// The part of the target that a request in absolute form has before the path; nil in other forms.
  var authority: Range<Int>?
  var path = 0..<0
  var query: Range<Int>?

  // The response.
  var phase = Phase.new
  var framing = Framing.none
  var written: UInt64 = 0
  var keepsAlive = false
  /// Whether a write has failed, or the response must not be completed.
  var isBroken = false
  /// The fields that the answer to an error keeps, because the handler or a function around it has set them.
  var fieldsOfErrors: HTTPFields?
  /// Whether a field was refused: the answer is 500.
  var isRefused = false
  var isUpgraded = false

  var hasBegun: Bool { phase != .new }

  mutating func begin() { self = Exchange() }
}

/// The call of a handler on its way to its stack, in the frame of `serveOne`.
///
/// No closure, because that would be an allocation for each request.
private struct HandlerCall: ~Copyable {
  var response: ServerResponse
  var error: (any Error)?

  init(_ connection: HTTPConnection) { response = ServerResponse(connection) }

  static func run(_ call: UnsafeMutableRawPointer?) {
    guard let call = call?.assumingMemoryBound(to: HandlerCall.self) else { return }
    do { try call.pointee.response.connection.handle(&call.pointee.response) } catch { call.pointee.error = error }
  }
}
#endif
