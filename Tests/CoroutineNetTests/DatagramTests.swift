import Glibc
import Synchronization
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Datagrams", .timeLimit(.minutes(10)))
struct DatagramTests {
  private func receive(_ socket: DatagramSocket, _ room: Int = 1_000) throws -> ([UInt8], SocketAddress) {
    try withUnsafeTemporaryAllocation(byteCount: room, alignment: 1) { buffer in
      let (count, from) = try socket.receive(into: buffer)
      return (Array(buffer.prefix(count)), from)
    }
  }

  @Test func `datagrams keep their bounds, and tell their sender`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      let other = try DatagramSocket.bind(.loopback(port: 0))
      for bytes in [[1, 2, 3], [], [4]] as [[UInt8]] { try one.send(bytes, to: other.address) }
      for bytes in [[1, 2, 3], [], [4]] as [[UInt8]] {
        let (received, from) = try receive(other)
        #expect(received == bytes)
        #expect(from == one.address)
      }
    }
  }

  @Test func `a datagram that is larger than the buffer is too long, and the next one is whole`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      try one.send([1, 2, 3, 4], to: one.address)
      try one.send([5, 6, 7], to: one.address)
      #expect(throws: NetError.tooLong) { try receive(one, 3) }
      #expect(try receive(one, 3).0 == [5, 6, 7])
    }
  }

  @Test func `receiving waits, for a datagram, a deadline or a close`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(2)) { try receive(one) } }
      let first = co_launch { try receive(one).0 }
      try one.untilAwaited(.reading)
      try one.send([1], to: one.address)
      #expect(try first.join() == [1])
      let second = co_launch { netError { try receive(one) } }
      try one.untilAwaited(.reading)
      one.close()
      #expect(try second.join() == .closed)
      #expect(throws: NetError.closed) { try one.send([1], to: one.address) }
      #expect(one.isClosed)
    }
  }

  @Test func `a socket for any address sends to IPv4, and hears from it`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.any(port: 0))
      let other = try DatagramSocket.bind(.loopback(port: 0))
      try one.send([1], to: other.address)
      let (bytes, from) = try receive(other)
      #expect(bytes == [1])
      #expect(from == .loopback(port: try #require(one.address.port)))
      try other.send([2], to: from)
      #expect(try receive(one).1 == other.address)
    }
  }

  @Test func `too much for a datagram is EMSGSIZE`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      #expect(code { try one.send([UInt8](repeating: 1, count: 70_000), to: one.address) } == EMSGSIZE)
    }
  }

  @Test func `Unix datagrams wait for a slow receiver, and none is lost`() async throws {
    try await onCoroutine {
      let path = freshPath("dgram")
      let one = try DatagramSocket.bind(.unix("@co-net-dgram-\(getpid())"))
      let other = try DatagramSocket.bind(.unix(path))
      let sender = co_launch { for index in 0..<2_000 { try one.send([UInt8(index & 255)], to: other.address) } }
      // The receiver's queue is full: the sender tries again after a pause.
      try until { sender.record.pointee.waitKind.load(ordering: .relaxed) == WaitKind.delay.rawValue }
      #expect(!sender.isFinished)
      for index in 0..<2_000 {
        let (bytes, from) = try receive(other)
        #expect(bytes == [UInt8(index & 255)] && from == one.address)
      }
      try sender.join()
      other.close()
      #expect(access(path, F_OK) != 0)
      #expect(code { try one.send([1], to: .unix(path)) } == ENOENT)
    }
  }

  // MARK: Connected

  @Test(arguments: ["ipv4", "ipv6", "unix"])
  func `a connected socket talks with its peer alone, and refuses to send to none if it is not connected`(
    _ family: String
  ) async throws {
    try await onCoroutine {
      let name = "@co-net-connected-\(getpid())"
      let own: (String) throws -> SocketAddress = {
        switch family {
        case "ipv4": .loopback(port: 0)
        case "ipv6": try .ipv6("::1", port: 0)
        default: try .unix(name + $0)
        }
      }
      let server = try DatagramSocket.bind(own("server"))
      let stranger = try DatagramSocket.bind(own("stranger"))
      let client = try DatagramSocket.connect(to: server.address)
      #expect(client.peer == server.address && server.peer == nil)
      try client.send([1])
      let (bytes, from) = try receive(server)
      #expect(bytes == [1] && from == client.address)
      if family == "unix" {
        #expect(code { try stranger.send([2], to: from) } == EPERM)
      } else {
        try stranger.send([2], to: from)
      }
      try server.send([3], to: from)
      #expect(try receive(client).0 == [3])
      #expect(code { try server.send([1]) } == EDESTADDRREQ)
      client.close()
      #expect(throws: NetError.closed) { try client.send([1]) }
    }
  }

  @Test func `a connected socket learns once that its peer is not there`() async throws {
    try await onCoroutine {
      // An address of its own: no other test is given the port that the server leaves.
      let server = try DatagramSocket.bind(ownLoopback())
      var options = SocketOptions()
      options.source = .loopback(port: 0)
      let client = try DatagramSocket.connect(to: server.address, options: options)
      server.close()
      // A process that another test is starting has a copy of the socket until it runs its program, and takes what is
      // sent meanwhile.
      var refusal: Int32?
      try until {
        // It waits before there is an error, which has to wake it. If it stays asleep, the next round's finds the error
        // at once and is never seen to wait, so the time is up.
        let reader = co_launch { try self.receive(client).0 }
        try client.untilAwaited(.reading)
        try client.send([1])
        refusal = code { try co_timeout(.seconds(10)) { try reader.join() } }
        reader.cancel()
        _ = try? reader.join()
        return refusal != nil
      }
      #expect(refusal == ECONNREFUSED)
      let again = try DatagramSocket.bind(server.address)
      try client.send([2])
      #expect(try receive(again).0 == [2])
      #expect(code { _ = try DatagramSocket.connect(to: .unix(freshPath("none"))) } == ENOENT)
    }
  }

  @Test func `a case of a select is ready when a datagram is there, and when the socket is closed`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      // A busy system delivers a datagram some time after it was sent.
      func isReadable(within time: Duration = .seconds(60)) throws -> Bool {
        try co_select {
          one.onReadable { true }
            .onTimeout(time) { false }
        }
      }
      #expect(try !isReadable(within: .milliseconds(1)))
      let waiting = co_launch { try co_select { one.onReadable { try self.receive(one).0 } } }
      try one.untilAwaited(.reading)
      try one.send([1], to: one.address)
      #expect(try waiting.join() == [1])
      try one.send([], to: one.address)
      #expect(try isReadable() && isReadable())
      #expect(try receive(one).0 == [])
      one.close()
      #expect(throws: NetError.closed) { try isReadable() }
    }
  }
}
