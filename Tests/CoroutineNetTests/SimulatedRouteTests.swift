import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What of the sockets' interface a simulated network has, and what it refuses with an error that says so.
@Suite("Sockets of a world", .timeLimit(.minutes(10)))
struct SimulatedRouteTests {
  /// Runs a client against a server of one connection, in a world.
  private func inWorld(
    _ serve: @escaping @Sendable (Connection) throws -> Void,
    _ client: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    for seed in 0..<10 as Range<UInt64> {
      let world = World(seed: seed)
      world.network.setLatency(.milliseconds(1) ... .milliseconds(5), from: "server", to: "body")
      world.network.host("server") {
        let listener = try Listener.bind(.any(port: 7))
        try serve(try listener.accept())
      }
      try world.run {
        try World.current?.settle()
        let connection = try Connection.connect(host: "server", port: 7)
        try client(connection)
        connection.close()
      }
    }
  }

  @Test func `a reader holds, fills, consumes and hands over`() throws {
    try inWorld { connection in
      try connection.write("head\nbody".utf8)
      try connection.write(" and more".utf8)
      try connection.shutdownWrite()
      _ = try connection.readAll()
    } _: { connection in
      var reader = BufferedReader(connection)
      while reader.bufferedCount < 5 {
        let hasMore = try reader.fill()
        #expect(hasMore)
      }
      reader.withBuffered { #expect($0[4] == UInt8(ascii: "\n")) }
      reader.consume(5)
      let part = try reader.read(upTo: 2)
      #expect(!part.isEmpty && Array("body".utf8).starts(with: part))
      let hasMessage = try reader.waitForMessage()
      #expect(hasMessage)
      try co_select { reader.onReadable {} }
      var next = BufferedReader(connection, startingWith: reader.takeBuffered())
      let rest = try next.readAll(max: 100)
      #expect(part + rest == Array("body and more".utf8))
    }
  }

  @Test func `a lingering close lets the last answer arrive, and ends after its time`() throws {
    try inWorld { connection in
      _ = try connection.read(upTo: 1)
      try connection.write("refused".utf8)
      let start = World.current?.now ?? .zero
      try connection.closeLingering(for: .seconds(3))
      #expect((World.current?.now ?? .zero) - start == .seconds(3))
    } _: { connection in
      try connection.write([UInt8](repeating: 1, count: 10_000))
      #expect(try connection.readAll() == Array("refused".utf8))
      try co_delay(.seconds(4))
    }
  }

  @Test func `a copy connects two connections of a world`() throws {
    try inWorld { connection in
      let (near, far) = try Connection.pair()
      let echo = co_launch {
        try far.write(try far.readExactly(50_000))
        try far.shutdownWrite()
      }
      #expect(try co_copy(connection, near, idle: .seconds(10)) == (50_000, 50_000))
      try echo.join()
    } _: { connection in
      let sent = (0..<50_000).map { UInt8(truncatingIfNeeded: $0) }
      let writer = co_launch {
        try connection.write(sent)
        try connection.shutdownWrite()
      }
      let isSame = try connection.readAll() == sent
      #expect(isSame)
      try writer.join()
    }
  }

  @Test func `options without a meaning in a world have no effect`() throws {
    try World(seed: 1).run {
      var options = SocketOptions()
      options.receiveBuffer = 1_000
      options.sendBuffer = 1_000
      options.userTimeout = .seconds(1)
      options.keepAlive = .seconds(1)
      options.noDelay = nil
      options.broadcast = true
      var listening = Listener.Options()
      listening.socket = options
      let listener = try Listener.bind(.loopback(port: 7), options: listening)
      let connection = try Connection.connect(to: listener.address, options: options)
      _ = try listener.accept()
      connection.close()
      try DatagramSocket.bind(.loopback(port: 7), options: options).close()
    }
  }

  @Test func `what a world cannot do is refused with an error that says so`() throws {
    try World(seed: 1).run {
      let listener = try Listener.bind(.loopback(port: 7))
      var sourced = SocketOptions()
      sourced.source = .loopback(port: 9)
      var joined = SocketOptions()
      joined.multicast = [try .ipv4("239.1.1.1", port: 0)]
      let routes: [(String, () throws -> Void)] = [
        ("connecting from a source", { _ = try Connection.connect(to: listener.address, options: sourced) }),
        ("joining a group", { _ = try DatagramSocket.bind(.loopback(port: 7), options: joined) }),
        ("adopting a listener", { _ = try Listener.adopting(0) }),
        ("adopting a connection", { _ = try Connection.adopting(0) }),
        ("adopting datagrams", { _ = try DatagramSocket.adopting(0) }),
      ]
      for (name, route) in routes {
        let error = netError(route)
        #expect(error?.code == EOPNOTSUPP && error?.reason == .system, "\(name): \(String(describing: error))")
        #expect(error?.description.contains("a simulated network cannot do that") == true, "\(name)")
      }
      #expect(try Listener.inherited().isEmpty && DatagramSocket.inherited().isEmpty)
    }
  }

  @Test func `descriptors of a world's sockets are shown, and are -1 after a close`() throws {
    try World(seed: 1).run {
      let listener = try Listener.bind(.loopback(port: 7))
      let datagrams = try DatagramSocket.bind(.loopback(port: 7))
      listener.withUnsafeDescriptor { #expect($0 >= 0) }
      datagrams.withUnsafeDescriptor { #expect($0 >= 0) }
      listener.close()
      datagrams.close()
      listener.withUnsafeDescriptor { #expect($0 == -1) }
      datagrams.withUnsafeDescriptor { #expect($0 == -1) }
    }
  }
}
