import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Where a datagram was sent to, and from where its answer goes.
@Suite("The addresses of datagrams", .timeLimit(.minutes(10)))
struct MessageTests {
  private func receive(
    _ socket: DatagramSocket,
    _ room: Int = 100
  ) throws -> (bytes: [UInt8], from: SocketAddress, to: SocketAddress) {
    try withUnsafeTemporaryAllocation(byteCount: room, alignment: 1) { buffer in
      let (count, from, to) = try socket.receiveMessage(into: UnsafeMutableRawBufferPointer(buffer))
      return (Array(buffer.prefix(count)), from, to)
    }
  }

  private static let everywhere: [(String, @Sendable () throws -> SocketAddress)] = [
    ("IPv4", { try .ipv4("0.0.0.0", port: 0) }), ("both families", { .any(port: 0) }),
  ]

  @Test func `a socket for all addresses learns which one was asked, and answers from it`() async throws {
    try await onCoroutine {
      for (name, address) in Self.everywhere {
        let server = try DatagramSocket.bind(try address())
        let port = try #require(server.address.port)
        let client = try DatagramSocket.bind(try .ipv4("127.0.0.1", port: 0))
        for host in ["127.0.0.1", "127.8.9.10", "127.200.0.3"] {
          let asked = try SocketAddress.ipv4(host, port: port)
          try client.send([1, 2], to: asked)
          let question = try receive(server)
          #expect(question.bytes == [1, 2] && question.from == client.address, "\(name)")
          #expect(question.to == asked, "\(name)")
          try server.send([3], to: question.from, from: question.to)
          let answer = try receive(client)
          #expect(answer.bytes == [3] && answer.from == asked, "\(name), \(host)")
          // Without the address, the system chooses one by its routes: 127.0.0.1, whatever was asked.
          try server.send([4], to: question.from)
          #expect(try receive(client).from == (try .ipv4("127.0.0.1", port: port)), "\(name)")
        }
      }
    }
  }

  @Test func `a socket for IPv6 learns it as well`() async throws {
    try await onCoroutine {
      let server: DatagramSocket
      let client: DatagramSocket
      do {
        client = try DatagramSocket.bind(try .ipv6("::1", port: 0))
        server = try DatagramSocket.bind(.any(port: 0))
      } catch let error as NetError where error.code == EADDRNOTAVAIL || error.code == EAFNOSUPPORT {
        try Test.cancel("this machine has no IPv6")
      }
      let asked = try SocketAddress.ipv6("::1", port: try #require(server.address.port))
      try client.send([1], to: asked)
      let question = try receive(server)
      #expect(question.to == asked && question.from == client.address)
      try server.send([2], to: question.from, from: asked.with(port: 0))
      #expect(try receive(client).from == asked)
    }
  }

  @Test func `a datagram that is cut short is too long, and the next one is whole`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      for bytes in [[1, 2, 3, 4], [5, 6, 7], []] as [[UInt8]] { try one.send(bytes, to: one.address) }
      #expect(throws: NetError.tooLong) { try receive(one, 3) }
      #expect(try receive(one, 3).bytes == [5, 6, 7])
      #expect(try receive(one, 1).bytes == [])
    }
  }

  @Test func `a wait for a message ends with a datagram, a deadline or a close`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(.loopback(port: 0))
      #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(2)) { try receive(one) } }
      let first = co_launch { try receive(one).bytes }
      try one.untilAwaited(.reading)
      try one.send([1], to: one.address, from: one.address)
      #expect(try first.join() == [1])
      let second = co_launch { netError { try receive(one) } }
      try one.untilAwaited(.reading)
      one.close()
      #expect(try second.join() == .closed)
      #expect(throws: NetError.closed) { try one.send([1], to: one.address, from: one.address) }
    }
  }

  @Test func `an address that is not the socket's to send from is refused`() async throws {
    try await onCoroutine {
      let one = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 0))
      let target = try SocketAddress.ipv4("127.0.0.1", port: 9)
      func refusal(_ source: SocketAddress) -> Int32? { code { try one.send([1], to: target, from: source) } }
      #expect(refusal(try .ipv4("127.0.0.1", port: one.address.port == 1 ? 2 : 1)) == EADDRNOTAVAIL)
      let foreign = refusal(try .ipv4("192.0.2.1", port: 0))
      #expect(foreign == EINVAL || foreign == EADDRNOTAVAIL || foreign == ENETUNREACH)
      #expect(refusal(try .ipv6("::1", port: 0)) == EAFNOSUPPORT)
      #expect(refusal(try .unix("@nobody")) == EAFNOSUPPORT)
      let path = try SocketAddress.unix("@co-net-message-\(getpid())")
      let local = try DatagramSocket.bind(path)
      #expect(code { try local.send([1], to: path, from: path) } == EAFNOSUPPORT)
      try local.send([7], to: path)
      let message = try receive(local)
      #expect(message.bytes == [7] && message.to == path)
    }
  }

  @Test func `a world's datagrams say where they were sent to, and come from where they are said to`() throws {
    let world = World(seed: 1)
    let asked = Locked<[SocketAddress]>([])
    world.network.host("server") {
      let socket = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 53))
      for _ in 0..<2 {
        let question = try receive(socket)
        asked.withLock { $0.append(question.to) }
        try socket.send([9], to: question.from, from: question.to)
      }
      let foreign = code { try socket.send([9], to: .loopback(port: 53), from: try .ipv4("192.0.2.1", port: 53)) }
      #expect(foreign == EADDRNOTAVAIL)
    }
    try world.run {
      let server = try SocketAddress.resolve("server", port: 53)[0]
      let client = try DatagramSocket.bind(try .ipv4("0.0.0.0", port: 0))
      try World.current?.settle()
      for _ in 0..<2 {
        try client.send([1], to: server)
        let answer = try receive(client)
        #expect(answer.from == server && answer.bytes == [9])
      }
      #expect(asked.current == [server, server])
    }
  }
}
