import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Servers at several addresses", .timeLimit(.minutes(10)))
struct SeveralAddressesTests {
  @Test func `a server answers at each of its addresses, in the order in which they were given`() async throws {
    try await onCoroutine {
      let path = freshPath("several")
      let bound = Promise<[SocketAddress]>()
      let addresses = [try ownLoopback(), try ownLoopback(), try .unix(path)]
      let server = co_launch {
        try Server.run(addresses, onListening: { bound.fulfill($0) }) { try $0.write("\($0.localAddress)".utf8) }
      }
      let listening = try co_await(bound)
      #expect(listening.map(\.host) == addresses.map(\.host) && listening[2] == addresses[2])
      for address in listening {
        let client = try Connection.connect(to: address)
        #expect(String(decoding: try client.readAll(), as: UTF8.self) == "\(address)")
      }
      server.cancel()
      try server.join()
      for address in listening.prefix(2) { try waitUntilRefused(by: address) }
      #expect(access(path, F_OK) != 0)
    }
  }

  @Test func `all addresses share one limit of connections`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        var options = Server.Options()
        options.maxConnections = 3
        let most = Locked(0)
        let live = Locked(0)
        let addresses = [SocketAddress.loopback(port: 1), .loopback(port: 2), .loopback(port: 3)]
        let server = co_launch { [options] in
          try Server.run(addresses, options: options) { connection in
            let now = live.withLock { count in
              count += 1
              return count
            }
            most.withLock { $0 = max($0, now) }
            try co_delay(.seconds(1))
            live.withLock { $0 -= 1 }
            try connection.write([1])
          }
        }
        try world.settle()
        let start = world.now
        try co_scope { scope in
          for index in 0..<12 {
            scope.launch { _ = try Connection.connect(to: addresses[index % 3]).readAll() }
          }
        }
        #expect(most.current == 3, "seed \(seed)")
        #expect(world.now - start == .seconds(4), "seed \(seed)")
        server.cancel()
        try server.join()
      }
    }
  }

  @Test func `one address that cannot be bound keeps the others unbound`() async throws {
    try await onCoroutine {
      let taken = try Listener.bind(try ownLoopback())
      let free = try ownLoopback()
      let first = try Listener.bind(free)
      let port = try #require(first.address.port)
      first.close()
      let addresses = [free.with(port: port), taken.address]
      #expect(code { try Server.run(addresses) { _ in } } == EADDRINUSE)
      try waitUntilRefused(by: addresses[0])
      let none = netError { try Server.run([]) { _ in } }
      #expect(none?.description == "a server needs an address to serve")
    }
  }

  @Test func `a server takes listeners that exist, and closes them at its end`() async throws {
    try await onCoroutine {
      let listeners = [try Listener.bind(try ownLoopback()), try Listener.bind(try ownLoopback())]
      let server = co_launch { try Server.run(listeners: listeners) { try $0.write([7]) } }
      for listener in listeners {
        #expect(try Connection.connect(to: listener.address).readAll() == [7])
      }
      server.cancel()
      try server.join()
      #expect(listeners.allSatisfy { $0.isClosed })
    }
  }

  @Test func `a listener that is closed from outside ends the server, with its error`() async throws {
    try await onCoroutine {
      let listeners = [try Listener.bind(try ownLoopback()), try Listener.bind(try ownLoopback())]
      let server = co_launch { try Server.run(listeners: listeners) { _ in } }
      while !listeners[1].socket.isAwaited(.reading) { try co_yield() }
      listeners[1].close()
      #expect(failure { try server.join() } as? NetError == .closed)
      #expect(listeners[0].isClosed)
    }
  }

  @Test func `idle connections end at once when a server drains, those in a message have the time`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        var options = Server.Options()
        options.drain = .seconds(10)
        options.onError = { error, _ in Issue.record("seed \(seed): \(error)") }
        let address = SocketAddress.loopback(port: 7)
        let server = co_launch { [options] in
          try Server.run(address, options: options) { connection in
            var reader = BufferedReader(connection)
            while try reader.waitForMessage() {
              guard let line = try reader.readLine() else { return }
              try connection.write("\(line)\n".utf8)
            }
          }
        }
        try world.settle()
        let idle = try (0..<5).map { _ in try Connection.connect(to: address) }
        let busy = try Connection.connect(to: address)
        try idle[0].write("one\n".utf8)
        #expect(try idle[0].readExactly(4) == Array("one\n".utf8))
        try busy.write("tw".utf8)
        try world.settle()
        let start = world.now
        server.cancel()
        for connection in idle { #expect(try connection.readAll().isEmpty, "seed \(seed)") }
        #expect(world.now == start, "seed \(seed)")
        try co_delay(.seconds(2))
        try busy.write("o\n".utf8)
        #expect(try busy.readAll() == Array("two\n".utf8), "seed \(seed)")
        try server.join()
        #expect(world.now - start == .seconds(2), "seed \(seed)")
      }
    }
  }
}
