import CoroutineTesting
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Stops, cancellations and failures of servers; in worlds, where time is exact.
@Suite("Ends of servers", .timeLimit(.minutes(10)))
struct ServerEndTests {
  private static var address: SocketAddress { .loopback(port: 7) }

  /// Runs a server with an idle client, and then `end`; returns the time that the server has needed to end.
  ///
  /// `isFull`: the server is at its limit, so its acceptor waits for the end of a connection.
  private func timeToEnd(
    _ seed: UInt64,
    drain: Duration,
    isFull: Bool = false,
    _ end: @escaping @Sendable (Scope, Job<Void>) throws -> Void
  ) throws -> Duration {
    let world = World(seed: seed)
    return try world.run {
      var options = Server.Options()
      options.drain = drain
      if isFull { options.maxConnections = 1 }
      options.onError = { error, _ in Issue.record("seed \(seed): \(error)") }
      let server = Promise<Job<Void>>()
      let scope = Promise<Scope>()
      let owner = co_launch {
        try? co_scope { inside in
          server.fulfill(
            inside.launch { [options] in try Server.run(Self.address, options: options) { _ = try $0.read(upTo: 1) } }
          )
          scope.fulfill(inside)
        }
      }
      let job = try co_await(server)
      try world.settle()
      let client = try Connection.connect(to: Self.address)
      try world.settle()
      let start = world.now
      try end(try co_await(scope), job)
      try job.join()
      let time = world.now - start
      try owner.join()
      withExtendedLifetime(client) {}
      return time
    }
  }

  @Test(arguments: [false, true])
  func `a stopped server ends after its drain, also at its limit`(_ isFull: Bool) throws {
    for seed in 0..<20 as Range<UInt64> {
      let time = try timeToEnd(seed, drain: .seconds(1), isFull: isFull) { scope, _ in
        scope.stop(within: .seconds(1_000))
      }
      #expect(time == .seconds(1), "seed \(seed)")
    }
  }

  @Test(arguments: [
    .seconds(1e19), Duration(attoseconds: .max), .nanoseconds(Int64.max), .zero, .nanoseconds(-1), .seconds(-1e19),
    Duration(attoseconds: .min),
  ])
  func `a drain may be of any length`(_ drain: Duration) throws {
    for seed in 0..<5 as Range<UInt64> {
      let time = try timeToEnd(seed, drain: drain) { scope, _ in
        scope.stop(within: drain > .zero ? drain : .seconds(1))
        try co_delay(.seconds(1_000_000_000))
        scope.cancel()
      }
      #expect(time == .seconds(1_000_000_000), "seed \(seed)")
    }
  }

  @Test func `a cancelled server leaves its handlers their drain, whatever comes later`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let cancelled = try timeToEnd(seed, drain: .seconds(10)) { _, server in server.cancel() }
      #expect(cancelled == .seconds(10), "seed \(seed)")
      let stoppedLater = try timeToEnd(seed, drain: .seconds(10)) { scope, server in
        server.cancel()
        try co_delay(.seconds(1))
        scope.stop(within: .seconds(1))
        server.cancel()
      }
      #expect(stoppedLater == .seconds(10), "seed \(seed)")
    }
  }

  @Test func `handlers of a cancelled server are told to finish`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        let server = co_launch {
          try Server.run(Self.address) { connection in
            #expect(!co_isStopping)
            try co_await(co_stopping)
            #expect(co_isStopping && !co_isCancelled)
            try connection.write([1])
          }
        }
        try world.settle()
        let client = try Connection.connect(to: Self.address)
        try world.settle()
        let start = world.now
        server.cancel()
        #expect(try client.readAll() == [1], "seed \(seed)")
        try server.join()
        #expect(world.now == start, "seed \(seed)")
      }
    }
  }

  @Test func `a cancellation after a stop ends the drain at once`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let byStop = try timeToEnd(seed, drain: .seconds(1_000)) { scope, _ in scope.stop(within: .seconds(5)) }
      #expect(byStop == .seconds(5), "seed \(seed)")
      // As a second signal does in a program of co_main.
      let byScope = try timeToEnd(seed, drain: .seconds(1_000)) { scope, _ in
        scope.stop(within: .seconds(500))
        try co_delay(.seconds(2))
        scope.cancel()
      }
      #expect(byScope == .seconds(2), "seed \(seed)")
      // Before the server has seen the stop.
      let both = try timeToEnd(seed, drain: .seconds(1_000)) { scope, server in
        scope.stop(within: .seconds(500))
        server.cancel()
      }
      #expect(both == .zero, "seed \(seed)")
    }
  }

  @Test func `a listener that fails ends the server with its error, after the drain`() async throws {
    try await onCoroutine {
      var options = Server.Options()
      options.listener.reusePort = true
      options.drain = .milliseconds(10)
      let server = try ServerTests.Running(at: ownLoopback(), options) { connection in
        try connection.write([1])
        _ = try connection.read(upTo: 1)
      }
      let client = try Connection.connect(to: server.address)
      #expect(try client.read(upTo: 1) == [1])
      // accept(2) fails with EINVAL from now on.
      shutdown(try #require(Self.listening(at: server.address).first), Int32(SHUT_RDWR))
      #expect(code { try server.job.join() } == EINVAL)
      #expect(try client.readAll() == [])
      try waitUntilRefused(by: server.address)
    }
  }

  /// The descriptors of this process that listen at an address.
  private static func listening(at address: SocketAddress) -> [Int32] {
    (0..<16_384).filter { number in
      var isListening: Int32 = 0
      var size = socklen_t(MemoryLayout<Int32>.size)
      getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &size)
      return isListening == 1 && SocketAddress.local(of: number) == address
    }
  }

  @Test(arguments: [Int.max, Int.max / 2 + 1])
  func `the largest numbers of connections are no limit`(_ most: Int) async {
    await #expect(processExitsWith: .success) { [most] in
      await inCoroutine {
        var options = Server.Options()
        options.maxConnections = most
        let server = try ServerTests.Running(options: options)
        let clients = try (0..<3).map { _ in try Connection.connect(to: server.address) }
        for client in clients { try client.write([1]) }
        for client in clients { #expect(try client.read(upTo: 1) == [1]) }
        for client in clients { client.close() }
        try server.stop()
      }
    }
  }

  @Test(arguments: [1, 0, -5])
  func `a limit below one counts as one`(_ most: Int) throws {
    let world = World()
    try world.run {
      world.network.host("server") {
        var options = Server.Options()
        options.maxConnections = most
        try Server.run(.any(port: 7), options: options) { try $0.write($0.read(upTo: 1)) }
      }
      try world.settle()
      let clients = try (0..<2).map { _ in try Connection.connect(host: "server", port: 7) }
      for client in clients { try client.write([1]) }
      try world.settle()
      for client in clients { #expect(try client.readAll() == [1]) }
    }
  }

  // One acceptor for all workers would leave accepting to one of them.
  @Test func `with reusePort each worker of the caller's pool has a listener`() async throws {
    // A pool lives for ever, as the shared one does.
    let pool = Unmanaged.passRetained(WorkerPool(count: 3, label: "coroutine.tests.listeners")).takeUnretainedValue()
    for (shares, count) in [(true, 3), (false, 1)] {
      let bound = Promise<SocketAddress>()
      var options = Server.Options()
      options.listener.reusePort = shares
      let address = try ownLoopback()
      let server = co_launch(on: pool.workers[0].currentQueue) { [options] in
        try Server.run(address, options: options, onListening: { bound.fulfill($0) }) { _ in }
      }
      let chosen = try await bound.value
      #expect(Self.listening(at: chosen).count == count)
      server.cancel()
      try await server.value
    }
  }
}
