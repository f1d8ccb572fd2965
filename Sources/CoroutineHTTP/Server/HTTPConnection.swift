#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet

// A connection: its coroutine reads a head, calls the handler, ends the response, and reads the next head.
//
// Invariants
//  1. One coroutine runs the loop, so the responses have the order of the requests.
//  2. Before a wait for input, every byte of output is written. So answers that are ready leave in one write, and a
//     client never waits for bytes that the server holds while it waits for the client.
//  3. A response that is incomplete is the last one, and its connection is closed at once. So no byte of another
//     response follows an unfinished one.
//  4. A connection that ends after a response ends its output first, and reads on for a while. If it were closed with
//     unread input, the system would reset it, and the client might lose the response.
//  5. All waits are in the scope that the table of the service knows, so that the sweep and the stop can end them.
//  The
//     answers after such an end are sent outside of it.
//
// Owner of each field: the coroutine, except `phase` and what the sweep keeps.

final class HTTPConnection: @unchecked Sendable {
  // Sound because all but `phase` is used by the connection's coroutine alone, and the fields of the sweep by it.
  //
  // `@exclusivity(unchecked)`: the checks took a twelfth of a request's instructions. No access of these fields lasts
  // over a call that accesses the same one.
  let service: HTTPService
  let transport: Transport
  let phase = Phase()
  @exclusivity(unchecked) var current: UInt64 = 0
  let input = InputBuffer()
  let output = OutputBuffer()
  /// The parser and the fields of the current message; nil while the connection is idle.
  @exclusivity(unchecked) var message: UnsafeMutablePointer<chttp_message>?
  @exclusivity(unchecked) var exchange = Exchange()

  // Of the sweep.
  @exclusivity(unchecked) private var lastSeen: UInt64 = 0
  @exclusivity(unchecked) private var lastWritten = 0
  @exclusivity(unchecked) private var unchanged = 0

  /// How the loop ended.
  enum End {
    /// Nothing more is written.
    case closed
    /// The last response is complete.
    case finished
    /// An error is answered before the end.
    case refused(HTTPError)
    /// The server stops, and a request may have arrived.
    case stopped
  }

  private init(_ transport: Transport, _ service: HTTPService) {
    self.transport = transport
    self.service = service
  }

  deinit { chttp_destroy(message) }

  static func serve(_ connection: Connection, _ service: HTTPService) throws {
    var tls: TLS.Stream?
    if let server = service.options.tls {
      do {
        tls = try co_timeout(service.options.headTime) { try server.accept(connection) }
      } catch  where !co_isCancelled && (error is TLSError || error is NetError || error is TimeoutError) {
        // No error of the server: anybody can send something other than TLS. The client should get the alert.
        return finishRefused(connection)
      }
    }
    let connection = HTTPConnection(Transport(connection: connection, tls: tls), service)
    try connection.serve()
  }

  private static func finishRefused(_ connection: Connection) {
    _ = try? co_timeout(.seconds(1)) {
      try connection.shutdownWrite()
      var size = 0
      while size < 65_536, case let count = try connection.read(upTo: 4_096).count, count > 0 { size += count }
    }
  }

  private func serve() throws {
    while true {
      let end = try co_scope(failures: .isolated) { scope in
        service.add(self, scope)
        defer { service.remove(self) }
        return try serveRequests()
      }
      switch end {
      case .closed: return
      case .finished: return try finish()
      case .refused(let error):
        phase.restart(&current)
        exchange.begin()
        exchange.keepsAlive = false
        try? co_timeout(.seconds(2)) { try respond(error.status, error.description) }
        return try finish()
      case .stopped:
        phase.restart(&current)
        // Of a request that came at the same time, the bytes are there.
        let room = input.room()
        guard let count = try? transport.receiveNow(into: room), count > 0 else { return }
        input.received(count)
      }
    }
  }

  // MARK: Steps

  /// Moves on; throws if the sweep or the stop has ended the connection.
  func enter(_ kind: Phase.Kind) throws {
    if !phase.enter(kind, from: &current) { throw phase.reason?.error ?? .peerHasGone }
  }

  /// Whether the sweep is to end the connection; called by the sweep.
  func hasExpired(_ most: HTTPService.Limits) -> Bool {
    let seen = phase.seen
    let written = transport.connection.bytesWritten
    guard seen == lastSeen, written == lastWritten else {
      (lastSeen, lastWritten, unchanged) = (seen, written, 0)
      return false
    }
    unchanged += 1
    switch Phase.kind(of: seen) {
    case .idle: return unchanged > most.idle && phase.end(seen, because: .idleForTooLong)
    case .head: return unchanged > most.head && phase.end(seen, because: .headLate)
    case .reading: return unchanged > most.pause && phase.end(seen, because: .bodyLate)
    case .writing: return unchanged > most.pause && phase.end(seen, because: .stalled)
    case .busy: return transport.connection.peerHasEnded && phase.end(seen, because: .peerHasGone)
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
      if let error = error as? HTTPError, error.isOfClient, !exchange.hasBegun { return .refused(error) }
      // A connection that the client has broken is no error of the server.
      if error is NetError || error is TLS.Failure || error is HTTPError { return .closed }
      throw error
    }
  }

  /// What the end by the sweep or the stop means; nil if there was none.
  private func endOfPhase() -> End? {
    switch phase.reason {
    case nil: nil
    case .stopped: .stopped
    case .headLate: .refused(.headLate)
    case .bodyLate where !exchange.hasBegun: .refused(.bodyLate)
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
    output.release()
    chttp_destroy(message)
    message = nil
  }

  /// Ends the output, and reads on for a while, so that the client gets the response.
  private func finish() throws {
    let most = 1 << 20
    do {
      try co_timeout(.seconds(2)) {
        try flush()
        try transport.shutdownWrite()
        var size = 0
        while size < most {
          input.endMessage()
          input.drop(input.unread.count)
          let count = try transport.receive { self.input.room() }
          if count == 0 { break }
          size += count
        }
      }
    } catch {
      if co_isCancelled { throw error }
    }
  }
}
#endif
