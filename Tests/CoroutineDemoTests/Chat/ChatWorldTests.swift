#if Demo
import Coroutine
import CoroutineNet
import CoroutineTesting
import Testing

@testable import CoroutineDemo

/// The server in worlds whose network is slow, divided, or loses a host.
///
/// The server is on a host of its own, and so are the clients "alice" and "bob"; their coroutines belong to the test.
@Suite(.timeLimit(.minutes(10))) struct `A chat over a bad network` {
  private static let port: UInt16 = 7_000

  /// Adds a host "server" with a chat; the function that is returned tells it to stop.
  @discardableResult
  private static func serve(_ options: ChatOptions, on network: World.Network) -> @Sendable () -> Void {
    let stop = Promise<Void>()
    network.host("server") {
      try co_scope { scope in
        let serving = scope.launch(name: "chat") { _ = try ChatServer(options).run(at: .any(port: port)) }
        let stopping = scope.launch(name: "stop") {
          try co_await(stop)
          scope.stop(within: .seconds(600))
        }
        defer { stopping.cancel() }
        try serving.join()
      }
    }
    return { stop.fulfill(()) }
  }

  /// Runs `body` on a host, and returns what it returns.
  private static func on<Output: Sendable>(
    _ host: String,
    of network: World.Network,
    _ body: @escaping @Sendable () throws -> Output
  ) -> Promise<Output> {
    let result = Promise<Output>()
    network.host(host) {
      do { result.fulfill(try body()) } catch { result.reject(error) }
    }
    return result
  }

  private static func connect(_ name: String) throws -> ChatClient {
    let client = try ChatClient(Connection.connect(host: "server", port: port))
    _ = try client.line()
    try client.say("/nick \(name)")
    try client.say("/join tea")
    try client.skip(to: "* \(name) has joined tea.")
    return client
  }

  private struct Wrong: Error, CustomStringConvertible {
    var description: String
  }

  private static var network: World.Network { World.current!.network }

  @Test(.simulated(.random(seeds: 20)))
  func `everybody hears the same, whatever each line takes`() throws {
    let network = Self.network
    Self.serve(ChatOptions(), on: network)
    try World.current!.settle()
    for name in ["alice", "bob", "carol"] {
      network.setLatency(.milliseconds(1) ... .milliseconds(300), from: name, to: "server")
      network.setLatency(.milliseconds(1) ... .milliseconds(300), from: "server", to: name)
    }
    let everybodyIsHere = Latch(3)
    let heard = ["alice", "bob", "carol"].map { name in
      Self.on(name, of: network) {
        let client = try Self.connect(name)
        everybodyIsHere.countDown()
        try everybodyIsHere.wait()
        for number in 0..<5 { try client.say("\(number)") }
        var lines: [String] = []
        while lines.count < 15, let line = try client.line() {
          if !line.hasPrefix("* ") { lines.append(line) }
        }
        return lines
      }
    }
    let all = try heard.map { try co_await($0) }
    #expect(all[0] == all[1] && all[1] == all[2])
    for name in ["alice", "bob", "carol"] {
      #expect(all[0].filter { $0.hasPrefix(name) } == (0..<5).map { "\(name): \($0)" })
    }
  }

  @Test(.simulated(.random(seeds: 20)))
  func `a partition that heals delays messages, and loses none`() throws {
    let network = Self.network
    Self.serve(ChatOptions(), on: network)
    try World.current!.settle()
    let bobIsHere = Promise<Void>()
    let bob = Self.on("bob", of: network) {
      let client = try Self.connect("bob")
      bobIsHere.fulfill(())
      var lines: [String] = []
      while lines.count < 50, let line = try client.line() {
        if line.hasPrefix("alice: ") { lines.append(line) }
      }
      return lines
    }
    try co_await(bobIsHere)
    let alice = Self.on("alice", of: network) {
      let client = try Self.connect("alice")
      for number in 0..<50 {
        if number == 10 { network.partition(from: "server", to: "bob") }
        // Alice hears of each at once: bob's silence is nothing to her.
        guard try client.ask("\(number)") == "alice: \(number)" else { throw Wrong(description: "not heard") }
      }
    }
    try co_await(alice)
    let partition = World.current!.now
    try co_delay(.seconds(5))
    network.heal(from: "server", to: "bob")
    #expect(try co_await(bob) == (0..<50).map { "alice: \($0)" })
    #expect(World.current!.now >= partition + .seconds(5))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `behind a partition that lasts, a client is sent away and hears everything up to then`() throws {
    let network = Self.network
    var options = ChatOptions()
    (options.backlog, options.patience) = (20, .seconds(60))
    Self.serve(options, on: network)
    try World.current!.settle()
    let bobIsHere = Promise<Void>()
    let bob = Self.on("bob", of: network) {
      let client = try Self.connect("bob")
      bobIsHere.fulfill(())
      return try client.rest()
    }
    try co_await(bobIsHere)
    let padding = String(repeating: "x", count: 900)
    network.partition(from: "server", to: "bob")
    let alice = Self.on("alice", of: network) {
      let client = try Self.connect("alice")
      var sent = 0
      while try client.ask("\(sent) \(padding)") != "* bob has left (too slow)." { sent += 1 }
      return sent
    }
    let sent = try co_await(alice)
    try co_delay(.seconds(5))
    network.heal(from: "server", to: "bob")
    let heard = try co_await(bob)
    let messages = heard.filter { $0.hasPrefix("alice: ") }
    #expect(messages == (0..<messages.count).map { "alice: \($0) \(padding)" })
    #expect(messages.count >= 20 && messages.count <= sent)
    #expect(heard.last?.hasPrefix("* You read too slowly: 20 ") == true)
  }

  @Test(.simulated(.random(seeds: 10)))
  func `what a client says behind a partition arrives in order, or it is idle and has left`() throws {
    let network = Self.network
    var options = ChatOptions()
    options.idle = 30
    Self.serve(options, on: network)
    try World.current!.settle()
    let alice = try Self.connect("alice")
    let bob = Self.on("bob", of: network) {
      let client = try Self.connect("bob")
      network.partition(from: "bob", to: "server")
      for number in 0..<3 { try client.say("\(number)") }
      try co_delay(.seconds(29))
      network.heal(from: "bob", to: "server")
      try client.skip(to: "bob: 2")
      network.partition(from: "bob", to: "server")
      for number in 3..<6 { try client.say("\(number)") }
      let start = World.current!.now
      try client.skip(to: "* You have said nothing for 30 s. Good-bye.")
      return World.current!.now - start
    }
    try alice.skip(to: "* bob has joined tea.")
    #expect(try (0..<3).map { _ in try alice.line() } == (0..<3).map { "bob: \($0)" })
    // Her own signs of life.
    try alice.say("")
    try co_delay(.seconds(20))
    try alice.say("")
    #expect(try co_await(bob) == .seconds(30))
    #expect(try alice.line() == "* bob has left (idle).")
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the end of the server does not wait for a client behind a partition`() throws {
    let network = Self.network
    var options = ChatOptions()
    options.drain = .seconds(5)
    let stop = Self.serve(options, on: network)
    try World.current!.settle()
    let alice = try Self.connect("alice")
    let bob = Self.on("bob", of: network) {
      let client = try Self.connect("bob")
      return try client.rest()
    }
    try alice.skip(to: "* bob has joined tea.")
    network.partition(from: "server", to: "bob")
    let start = World.current!.now
    stop()
    #expect(try alice.rest() == ["* The server stops. Good-bye."])
    while (try? Connection.connect(host: "server", port: Self.port)) != nil { try co_delay(.milliseconds(100)) }
    #expect(World.current!.now - start <= .seconds(5))
    network.heal(from: "server", to: "bob")
    #expect(try co_await(bob).last == "* The server stops. Good-bye.")
  }

  @Test(.simulated(.random(seeds: 10)))
  func `a client whose host crashes has left`() throws {
    let network = Self.network
    Self.serve(ChatOptions(), on: network)
    try World.current!.settle()
    let alice = try Self.connect("alice")
    network.host("bob") {
      let client = try Self.connect("bob")
      _ = try client.rest()
    }
    try alice.skip(to: "* bob has joined tea.")
    network.crash("bob")
    #expect(try alice.line() == "* bob has left (gone).")
  }

  @Test(.simulated(.random(seeds: 3)))
  func `a client that says more than the hub can handle is not read from until the hub has room`() throws {
    let (world, network) = (World.current!, Self.network)
    let hasRoom = Promise<Void>()
    let handled = Promise<[String]>()
    let hub = co_actor(of: ChatEvent.self, name: "busy hub", mailbox: .bounded(4)) { mailbox in
      try co_await(hasRoom)
      var lines: [String] = []
      var outbox: Outbox?
      while let event = try mailbox.receive() {
        switch event {
        case .entered(_, let entered): outbox = entered
        case .line(_, let line): lines.append(line)
        case .ended(_, let ending):
          outbox?.close(ending)
          handled.fulfill(lines)
        case .longLine, .closing: handled.reject(Wrong(description: "\(event)"))
        }
      }
    }
    network.host("server") {
      let connection = try Listener.bind(.any(port: Self.port)).accept()
      defer { connection.close() }
      try ChatSession(id: 1, connection: connection, hub: hub, options: ChatOptions()).run()
    }
    try world.settle()
    let lines = (0..<1_500).map { "\($0) " + String(repeating: "x", count: 900) }
    let written = Count()
    let connection = try Connection.connect(host: "server", port: Self.port)
    let writer = co_launch {
      for line in lines {
        try connection.write("\(line)\n".utf8)
        written.increment()
      }
      try connection.shutdownWrite()
    }
    // What was written may be read in pieces, some of them later.
    try world.advance(by: .seconds(60))
    let before = written.current
    #expect((1..<1_500).contains(before))
    // A wait for the hub is no silence.
    try world.advance(by: .seconds(3_600))
    #expect(written.current == before)
    hasRoom.fulfill(())
    #expect(try co_await(handled) == lines)
    try writer.join()
    connection.close()
    hub.stop()
  }
}
#endif
