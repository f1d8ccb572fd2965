import Coroutine
import CoroutineNIO
import NIOCore
import NIOHTTP1
import NIOPosix

typealias HTTPChannel = NIOCoroutineChannel<HTTPServerRequestPart, HTTPServerResponsePart>

// A connection: its coroutine reads a head, calls the handler, ends the response, and reads the next head.
//
//   IDLE -- head --> EXCHANGE -- response and body ended --> IDLE
//     |                 |
//     |                 +-- the last response of the connection has ended --> ENDING --> closed
//     |                 +-- the response is incomplete --> closed
//     +-- end of input, idle for too long, malformed head, the server stops --> ENDING --> closed
//
// Invariants
//  1. One coroutine runs the loop, so the responses are in the order of the requests.
//  2. A request and a response are marked as over before the next head is read. Then a handler that has kept them, in
//     a coroutine that it has launched, can neither read from the next request nor write into its response. If such a
//     coroutine still waits in a read or a write when the handler returns, the connection ends.
//  3. A connection that ends first ends its output, and reads on for a while (ENDING). If it were closed with unread
//     input, the system would reset it, and the client might lose the response. What is read then is dropped in front
//     of the decoder, which would store it after an error or a request to upgrade.
//  4. A response that is incomplete is the last one, and its connection is closed at once. So bytes of the next
//     response never follow an unfinished one.
final class HTTPConnection {
  let channel: HTTPChannel
  let limits: HTTPLimits
  private let quiescing: QuiescingHandler
  private let discarding: DiscardingHandler
  private let onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?
  private let handle: NIOHTTPServer.Handler
  private var date = HTTPDate()
  /// The error of the decoder, which decodes nothing after it.
  private var malformed: HTTPServerError?
  /// Whether the connection was closed with an incomplete response; a handler like TLS may delay the close.
  private var isClosed = false

  init(
    _ channel: HTTPChannel,
    _ limits: HTTPLimits,
    _ onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?,
    _ handle: @escaping NIOHTTPServer.Handler
  ) throws {
    self.channel = channel
    self.limits = limits
    self.onError = onError
    self.handle = handle
    let pipeline = channel.channel.pipeline.syncOperations
    quiescing = try pipeline.handler(type: QuiescingHandler.self)
    discarding = try pipeline.handler(type: DiscardingHandler.self)
  }

  /// Whether the server stops, so that this connection ends after the current response.
  ///
  /// Asked of the scope, because the event may still be on its way to this loop. It takes the lock of each enclosing
  /// scope, twice a request, which is little beside a system call.
  var isStopping: Bool { quiescing.isStopping || co_isStopping }

  /// The value of the header `date`.
  var now: String { date.now() }

  func serve() throws {
    do {
      while let head = try nextHead() {
        guard try exchange(head) else { break }
      }
      try end()
    } catch {
      // A connection that the client has reset is no error of the server.
      if co_isCancelled || channel.channel.isActive { throw error }
    }
  }

  /// Reads a head; nil if the connection ends.
  private func nextHead() throws -> HTTPRequestHead? {
    if isStopping { return nil }
    do {
      let part = try quiescing.waiting { try co_timeout(limits.idle) { try channel.read() } }
      guard case .head(let head) = part else { return nil }
      quiescing.tookHead()
      return head
    } catch let error as HTTPParserError {
      try refuse(HTTPServerError(error))
      return nil
    } catch {
      // Idle for too long, or reset by the client: nothing was asked that could be answered.
      if co_isCancelled { throw error }
      return nil
    }
  }

  /// Answers a head that cannot be parsed.
  private func refuse(_ error: HTTPServerError) throws {
    let head = HTTPRequestHead(version: .http1_1, method: .GET, uri: "")
    let response = HTTPResponse(self, head, keepsAlive: false)
    try response.sendFailure(HTTPStatusError(error.status))
  }

  // MARK: Exchanges

  /// Serves one request; returns whether the connection goes on.
  private func exchange(_ head: HTTPRequestHead) throws -> Bool {
    // After a request to upgrade, NIO's decoder reads no further request.
    let isUpgrade = head.method == .CONNECT || head.headers.contains(name: "upgrade")
    let response = HTTPResponse(self, head, keepsAlive: head.isKeepAlive && !isUpgrade)
    let request = HTTPRequest(self, head, response)
    defer {
      request.end()
      response.end()
    }
    do {
      try request.check()
      try handle(request, response)
      // An error of a write that the handler has caught is the handler's; `endExchange` closes the connection.
      if !response.isBroken { try response.finish() }
    } catch {
      guard try answer(error, response) else { return false }
    }
    return try endExchange(request, response)
  }

  /// Answers an error of the handler; returns false if the client has closed the connection.
  private func answer(_ error: any Error, _ response: HTTPResponse) throws -> Bool {
    if co_isCancelled { throw error }
    let failure: HTTPStatusError
    switch error {
    case let error as HTTPStatusError: failure = error
    case let error as HTTPServerError where error.isOfClient:
      failure = HTTPStatusError(error.status)
      response.closes()
    default:
      guard channel.channel.isActive else { return false }
      failure = HTTPStatusError(.internalServerError)
      // An error that has broken off a response is reported by the server.
      if !response.hasBegun || response.hasEnded { onError?(error, channel.channel) }
    }
    // The client has the whole response.
    if response.hasEnded { return true }
    if response.hasBegun {
      if (error as? HTTPServerError)?.isOfClient == true {
        // No error of the server; the client sees that the response is incomplete.
        closeNow()
        return false
      }
      throw error
    }
    try response.sendFailure(failure)
    return true
  }

  private func endExchange(_ request: HTTPRequest, _ response: HTTPResponse) throws -> Bool {
    // The response is incomplete, or a coroutine that the handler has launched still uses the request. Such a coroutine
    // must not receive what `end` reads, and the client must not wait for the rest of the response.
    if response.isBroken || !response.hasEnded || response.isWriting || request.isReading {
      closeNow()
      return false
    }
    return try response.keepsAlive && request.discard(upTo: limits.discardedSize)
  }

  // MARK: The end

  /// Ends the output, and reads until the client closes, for two seconds at most.
  private func end() throws {
    guard !isClosed, channel.channel.isActive else { return }
    discarding.isDiscarding = true
    do {
      try endOutput()
    } catch let error as ChannelError where error == .operationUnsupported {
      // A handler of `configure` has no half-closure.
    } catch {
      closeNow()
      if co_isCancelled { throw error }
      return
    }
    try? co_timeout(.seconds(2)) {
      while true {
        // Errors of what the decoder has received before.
        do { if try channel.read() == nil { return } } catch is HTTPParserError {} catch is ByteToMessageDecoderError {}
      }
    }
  }

  /// Ends the output when the client has taken what was written.
  private func endOutput() throws {
    // In a coroutine of its own, because a wait that continues after a deadline must not end `finish`.
    let ending = co_launch(on: channel.channel.eventLoop, name: "ending the output") { [channel] in
      try channel.finish()
    }
    defer { ending.cancel() }
    try whileClientTakes { try ending.join() }
  }

  private func closeNow() {
    isClosed = true
    channel.channel.close(promise: nil)
  }

  // MARK: Parts, for the request and the response

  func read() throws -> HTTPServerRequestPart? {
    if let malformed { throw malformed }
    do {
      return try co_timeout(limits.pause) { try channel.read() }
    } catch let error as HTTPParserError {
      let error = HTTPServerError(error)
      malformed = error
      throw error
    } catch is TimeoutError where !co_isCancelled {
      throw HTTPServerError.bodyLate
    }
  }

  func write(_ part: HTTPServerResponsePart) throws {
    // Waits only if the channel is not writable, so only then is a deadline needed.
    if channel.channel.isWritable { return try channel.write(part) }
    try whileClientTakes { try channel.write(part) }
  }

  /// Calls `wait`, which waits for the client to take bytes, again and again until it does not reach its deadline.
  ///
  /// A part may be of any size, so the client may take it for longer than the deadline. The deadline ends the
  /// connection only if the channel has as many bytes to send as when it began.
  private func whileClientTakes(_ wait: () throws -> Void) throws {
    var unsent = unsentBytes
    while true {
      do {
        return try co_timeout(limits.pause) { try wait() }
      } catch is TimeoutError where !co_isCancelled {
        let rest = unsentBytes
        guard rest < unsent else { throw HTTPServerError.clientStalled }
        unsent = rest
      }
    }
  }

  /// The number of bytes that the system has not taken; 0 if the channel does not know it.
  private var unsentBytes: Int { (try? channel.channel.syncOptions?.getOption(.bufferedWritableBytes)) ?? 0 }
}
