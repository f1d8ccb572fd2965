import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("A close that lets the last answer arrive", .timeLimit(.minutes(10)))
struct LingerTests {
  /// Refuses a peer that goes on sending, and returns what the peer has read before its connection ended.
  private func answer(_ end: @escaping @Sendable (Connection) throws -> Void) async throws -> (String, NetError?) {
    try await onCoroutine {
      let pair = try TCPPair()
      try pair.client.write([UInt8](repeating: 1, count: 200_000))
      try until { Socket.isReadable(pair.server.socket.number) }
      let server = co_launch {
        _ = try pair.server.read(upTo: 10)
        try pair.server.write("too large".utf8)
        try end(pair.server)
      }
      // The client reads only when the server has closed, or lingers.
      let reader = co_launch {
        try pair.server.untilAwaited(.reading, orClosed: pair.server)
        let text = String(decoding: try pair.client.read(upTo: 100), as: UTF8.self)
        let rest = failure { try pair.client.read(upTo: 100) }
        pair.client.close()
        return (text, rest as? NetError)
      }
      let (text, rest) = try reader.join()
      try server.join()
      return (text, rest)
    }
  }

  @Test func `the answer arrives although the server has not read the request, and then the end`() async throws {
    // For long: the server may stop for seconds before it has read what the client has sent.
    let (text, rest) = try await answer { try $0.closeLingering(for: .seconds(60)) }
    #expect(text == "too large")
    #expect(rest == nil)
  }

  @Test func `the answer arrives although the time was over before the bytes that have come were read`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      try pair.client.write([UInt8](repeating: 1, count: 50_000))
      try until { pair.client.unsentCount == 0 }
      try pair.server.write("too large".utf8)
      try pair.server.closeLingering(for: .nanoseconds(1))
      #expect(try pair.client.read(upTo: 100).elementsEqual("too large".utf8))
      #expect(try pair.client.read(upTo: 100).isEmpty)
    }
  }

  @Test func `a plain close with unread bytes resets the connection, which is why there is the other one`() async throws
  {
    do {
      let (_, rest) = try await answer { $0.close() }
      #expect(rest?.code == ECONNRESET)
    } catch let error as NetError {
      #expect(error.code == ECONNRESET)
    }
  }

  @Test func `a peer that never ends its stream is closed after the time`() async throws {
    try await onCoroutine {
      for flood in [false, true] {
        let pair = try TCPPair()
        let writer = co_launch { while flood { try pair.client.write([UInt8](repeating: 1, count: 10_000)) } }
        try pair.server.closeLingering(for: .milliseconds(20))
        #expect(pair.server.isClosed)
        pair.client.close()
        _ = try? writer.join()
      }
    }
  }

  @Test func `no time closes at once, and a second call does nothing`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      for time in [Duration.zero, .seconds(-1), .seconds(1)] {
        try pair.server.closeLingering(for: time)
        #expect(pair.server.isClosed)
      }
      #expect(try pair.client.read(upTo: 1).isEmpty)
    }
  }

  @Test func `a cancellation and an outer deadline close at once, and are thrown`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      let job = co_launch { try pair.server.closeLingering(for: .seconds(1_000)) }
      try pair.server.untilAwaited(.reading)
      job.cancel()
      #expect(failure { try job.join() } is CancellationError)
      #expect(pair.server.isClosed)

      let second = try TCPPair()
      #expect(throws: TimeoutError.self) {
        try co_timeout(.milliseconds(5)) { try second.server.closeLingering(for: .seconds(1_000)) }
      }
      #expect(second.server.isClosed)
    }
  }

  @Test func `a reset of the peer is no error, another user of the connection is`() async throws {
    try await onCoroutine {
      let pair = try TCPPair()
      pair.client.reset()
      try pair.server.closeLingering()
      #expect(pair.server.isClosed)

      for direction in [WatchedDescriptor.Direction.reading, .writing] {
        let pair = try TCPPair()
        let other = co_launch {
          if direction == .reading { _ = try pair.server.read(upTo: 1) } else { _ = try pair.server.fillAndWait() }
        }
        try pair.server.untilAwaited(direction)
        #expect(netError { try pair.server.closeLingering() } == .busy)
        #expect(pair.server.isClosed)
        #expect(failure { try other.join() } as? NetError == .closed)
      }
    }
  }

  @Test func `a cancellation throws its reason, whatever that is`() async throws {
    for reason in [TimeoutError(), NetError.closed] as [any Error] {
      try await onCoroutine {
        let (one, other) = try Connection.pair()
        let lingering = co_launch(start: .immediate) { try one.closeLingering(for: .seconds(600)) }
        try one.untilAwaited(.reading)
        lingering.cancel(reason)
        let error = failure { try lingering.join() }
        #expect(error.map { type(of: $0) == type(of: reason) } == true, "\(String(describing: error))")
        #expect(one.isClosed)
        other.close()
      }
    }
  }
}

extension Connection {
  fileprivate func untilAwaited(_ direction: WatchedDescriptor.Direction, orClosed other: Connection) throws {
    try until { socket.isAwaited(direction) || other.isClosed }
  }

  /// Writes until the peer's and the system's buffers are full, and waits there.
  fileprivate func fillAndWait() throws {
    while true { try write([UInt8](repeating: 0, count: 1 << 20)) }
  }
}
