import CoroutineTesting
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("Servers", .timeLimit(.minutes(10)))
struct ServerTests {
  /// A server that runs beside the test.
  final class Running: Sendable {
    let job: Job<Void>
    let address: SocketAddress

    init(
      at address: SocketAddress = .loopback(port: 0),
      _ options: Server.Options = .init(),
      _ handle: @escaping @Sendable (Connection) throws -> Void
    ) throws {
      let bound = Promise<SocketAddress>()
      job = co_launch(name: "server") {
        do {
          try Server.run(address, options: options, onListening: { bound.fulfill($0) }, handle)
        } catch {
          bound.reject(error)
          throw error
        }
      }
      self.address = try co_await(bound)
    }

    func stop() throws {
      job.cancel()
      try job.join()
    }
  }

  @Sendable private static func echo(_ connection: Connection) throws {
    while true {
      let bytes = try connection.read(upTo: 4_096)
      if bytes.isEmpty { return }
      try connection.write(bytes)
    }
  }

  @Test(arguments: [false, true])
  func `every connection has a coroutine, and a cancelled server returns without an error`(_ shares: Bool) async throws
  {
    try await onCoroutine {
      var options = Server.Options()
      options.listener.reusePort = shares
      let server = try Running(at: ownLoopback(), options: options)
      try co_scope { scope in
        for index in 0..<200 {
          scope.launch {
            let client = try Connection.connect(to: server.address)
            let text = [UInt8](repeating: UInt8(index), count: 100 * index)
            let reader = co_launch { try client.readAll() }
            try client.write(text)
            try client.shutdownWrite()
            #expect(try reader.join() == text)
          }
        }
      }
      try server.stop()
      try waitUntilRefused(by: server.address)
    }
  }

  @Test func `a server on a serial queue serves there, one coroutine at a time`() async throws {
    let key = DispatchSpecificKey<Bool>()
    let queue = DispatchQueue(label: "server")
    queue.setSpecific(key: key, value: true)
    let bound = Promise<SocketAddress>()
    var options = Server.Options()
    options.listener.reusePort = true
    let inside = Locked(0)
    let server = co_launch(on: queue) { [options] in
      try Server.run(.loopback(port: 0), options: options, onListening: { bound.fulfill($0) }) { connection in
        while true {
          let bytes = try connection.read(upTo: 10)
          if bytes.isEmpty { return }
          #expect(DispatchQueue.getSpecific(key: key) == true)
          let now = inside.withLock {
            $0 += 1
            return $0
          }
          #expect(now == 1)
          inside.withLock { $0 -= 1 }
          try connection.write(bytes)
        }
      }
    }
    try await onCoroutine {
      let address = try co_await(bound)
      try co_scope { scope in
        for index in UInt8(0)..<20 {
          scope.launch {
            let client = try Connection.connect(to: address)
            for _ in 0..<10 {
              try client.write([index])
              #expect(try client.read(upTo: 10) == [index])
            }
          }
        }
      }
      server.cancel()
      try server.join()
    }
  }

  @Test func `a server on Unix sockets serves, and leaves no file`() async throws {
    try await onCoroutine {
      let path = freshPath("server")
      var options = Server.Options()
      options.listener.reusePort = true
      let server = try Running(at: .unix(path), options) { try Self.echo($0) }
      let client = try Connection.connect(to: server.address)
      try client.write([1])
      #expect(try client.read(upTo: 2) == [1])
      client.close()
      try server.stop()
      #expect(access(path, F_OK) != 0)
    }
  }

  @Test func `a handler that throws ends its connection alone, and its error is told`() async throws {
    try await onCoroutine {
      struct Oops: Error {}
      let told = Channel<SocketAddress>(.unbounded)
      var options = Server.Options()
      options.onError = { error, address in if error is Oops { _ = told.trySend(address) } }
      let server = try Running(options: options) { connection in
        let bytes = try connection.read(upTo: 1)
        if bytes == [0] { throw Oops() }
        try connection.write(bytes)
      }
      for index in 0..<20 {
        let client = try Connection.connect(to: server.address)
        try client.write([UInt8(index % 2)])
        #expect(try client.readAll() == (index % 2 == 0 ? [] : [1]))
        if index % 2 == 0 { #expect(try told.receive() == client.localAddress) }
      }
      try server.stop()
    }
  }

  @Test func `an error without onError is an unhandled one`() async {
    await #expect(processExitsWith: .success) {
      struct Oops: Error {}
      let told = Promise<Void>()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in if unhandled.error is Oops { told.fulfill(()) } }
      try await co_launch {
        let server = try Running { _ in throw Oops() }
        let client = try Connection.connect(to: server.address)
        #expect(try client.readAll() == [])
        try co_await(told)
        try server.stop()
      }
      .value
    }
  }

  @Test func `a cancellation that is not the handler's own is such an error as well`() async {
    await #expect(processExitsWith: .success) {
      let told = Promise<Void>()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        if unhandled.error is CancellationError { told.fulfill(()) }
      }
      try await co_launch {
        let server = try Running { _ in
          let other = co_launch { try co_await(Promise<Void>()) }
          other.cancel()
          try other.join()
        }
        let client = try Connection.connect(to: server.address)
        #expect(try client.readAll() == [])
        try co_timeout(.seconds(200)) { try co_await(told) }
        try server.stop()
      }
      .value
    }
  }

  @Test func `at the limit connections wait until one ends`() async throws {
    try await onCoroutine {
      var options = Server.Options()
      options.maxConnections = 2
      options.listener.reusePort = true
      let most = Locked((now: 0, most: 0))
      let server = try Running(options: options) { connection in
        most.withLock {
          $0.now += 1
          $0.most = max($0.most, $0.now)
        }
        defer { most.withLock { $0.now -= 1 } }
        try Self.echo(connection)
      }
      let clients = try (0..<3).map { _ in try Connection.connect(to: server.address) }
      for client in clients { try client.write([1]) }
      try until { try clients.count(where: Self.hasAnswer) == 2 }
      for client in clients { try client.shutdownWrite() }
      for client in clients { _ = try co_timeout(.seconds(60)) { try client.readAll() } }
      try co_scope { scope in
        for _ in 0..<30 {
          scope.launch {
            let client = try Connection.connect(to: server.address)
            try client.write([5])
            #expect(try client.read(upTo: 1) == [5])
          }
        }
      }
      try server.stop()
      #expect(most.withLock { $0.most } == 2)
    }
  }

  @Test func `at the limit the next connection is served when one has ended, and not before`() throws {
    for seed in 0..<20 as Range<UInt64> {
      let world = World(seed: seed)
      try world.run {
        world.network.host("server") {
          var options = Server.Options()
          options.maxConnections = 2
          try Server.run(.any(port: 7), options: options, Self.echo)
        }
        try world.settle()
        let clients = try (0..<3).map { _ in try Connection.connect(host: "server", port: 7) }
        for client in clients { try client.write([1]) }
        var waiting = clients
        // Everything that can run has run, so the third connection waits.
        for served in [2, 1] {
          try world.settle()
          let answered = try waiting.indices.filter { try Self.hasAnswer(waiting[$0]) }
          #expect(answered.count == served, "seed \(seed)")
          for index in answered.reversed() {
            let client = waiting.remove(at: index)
            try client.shutdownWrite()
            #expect(try client.readAll() == [1])
          }
        }
      }
    }
  }

  /// Whether a client can read without waiting.
  private static func hasAnswer(_ client: Connection) throws -> Bool {
    try co_select {
      client.onReadable { true }
        .otherwise { false }
    }
  }

  /// A server whose handlers are asked, answer again when `mayEnd` is fulfilled, and then tell `ends` how they ended.
  private static func patient(
    drain: Duration,
    _ mayEnd: Promise<Void>,
    _ ends: Channel<String>
  ) throws -> Running {
    var options = Server.Options()
    options.drain = drain
    return try Running(at: ownLoopback(), options: options) { connection in
      // Nobody asks on the connections by which a test finds out that the server listens no more.
      if try connection.read(upTo: 1).isEmpty { return }
      try connection.write([0])
      do {
        try co_await(mayEnd)
        try connection.write([7])
        _ = ends.trySend("finished")
      } catch {
        _ = ends.trySend("\(type(of: error))")
        throw error
      }
    }
  }

  @Test func `handlers finish within the drain`() async throws {
    try await onCoroutine {
      let (mayEnd, ends) = (Promise<Void>(), Channel<String>(.unbounded))
      let server = try Self.patient(drain: .seconds(1_000), mayEnd, ends)
      let client = try Connection.connect(to: server.address)
      try client.write([1])
      #expect(try client.read(upTo: 1) == [0])
      server.job.cancel()
      // The server stops listening after the cancellation has reached it.
      try waitUntilRefused(by: server.address)
      #expect(!server.job.isFinished)
      mayEnd.fulfill(())
      #expect(try client.readAll() == [7])
      #expect(try ends.receive() == "finished")
      try server.job.join()
    }
  }

  @Test func `handlers that last longer than the drain are cancelled, and waited for`() async throws {
    try await onCoroutine {
      let (never, ends) = (Promise<Void>(), Channel<String>(.unbounded))
      let server = try Self.patient(drain: .milliseconds(20), never, ends)
      let client = try Connection.connect(to: server.address)
      try client.write([1])
      #expect(try client.read(upTo: 1) == [0])
      server.job.cancel()
      try server.job.join()
      var end = "none"
      if case .received(let text) = ends.tryReceive() { end = text }
      #expect(end == "CancellationError")
      #expect(try client.readAll() == [])
      withExtendedLifetime(never) {}
    }
  }

  @Test func `a server without connections ends at once, and a deadline ends it as a cancel does`() async throws {
    try await onCoroutine {
      // Waiting for the drain would break the suite's limit.
      var options = Server.Options()
      options.drain = .seconds(1_000)
      let server = try Running(options: options) { _ in }
      try server.stop()
      let hasServed = Locked(false)
      let address = try ownLoopback()
      let connect = { (bound: SocketAddress) in _ = co_launch { try? Connection.connect(to: bound).close() } }
      do {
        try co_timeout(.milliseconds(20)) {
          try Server.run(address, onListening: connect) { _ in hasServed.withLock { $0 = true } }
        }
      } catch is TimeoutError where !hasServed.current {
        // The deadline came first: a server that listens has not begun to accept yet.
      }
      // Who is told the address may cancel the server, which ends as one that has served.
      let own = Locked<Job<Bool>?>(nil)
      let told = co_launch {
        while own.current == nil { try co_yield() }
        try Server.run(.loopback(port: 0), onListening: { _ in own.current?.cancel() }) { _ in }
        return co_isCancelled
      }
      own.withLock { $0 = told }
      #expect(try told.join())
      let cancelled = co_launch { try Server.run(.loopback(port: 0)) { _ in } }
      cancelled.cancel()
      _ = try? cancelled.join()
    }
  }

  @Test func `an address that cannot be bound is the error of run`() async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      #expect(code { try Server.run(listener.address) { _ in } } == EADDRINUSE)
    }
    #expect(throws: CoroutineError.self) { try Server.run(.loopback(port: 0)) { _ in } }
  }
}

extension ServerTests.Running {
  convenience init(at address: SocketAddress = .loopback(port: 0), options: Server.Options) throws {
    try self.init(at: address, options) { connection in
      while true {
        let bytes = try connection.read(upTo: 4_096)
        if bytes.isEmpty { return }
        try connection.write(bytes)
      }
    }
  }

  convenience init(
    at address: SocketAddress = .loopback(port: 0),
    options: Server.Options,
    _ handle: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    try self.init(at: address, options, handle)
  }
}
