#if Demo
import Coroutine
import CoroutineNet
import CoroutineTesting
import Histogram
import Synchronization
import Testing

@testable import CoroutineDemo

/// The load program in worlds whose network is slow, divided, or loses a host, and with servers that lose messages.
@Suite(.timeLimit(.minutes(10))) struct `The load over a bad network` {
  private static let port: UInt16 = 7_000

  private static var network: World.Network { World.current!.network }

  /// Adds a host "server" with a chat.
  private static func serve(on network: World.Network) {
    network.host("server") { _ = try ChatServer().run(at: .any(port: port)) }
  }

  private static func load(_ plan: LoadPlan, in world: World) -> ChatLoad {
    ChatLoad(plan) {
      world.now
    } connect: {
      try Connection.connect(host: "server", port: port)
    }
  }

  private static var plan: LoadPlan {
    var plan = LoadPlan()
    (plan.clients, plan.messages, plan.roomSize, plan.window) = (9, 10, 3, 2)
    plan.timeout = .seconds(60)
    return plan
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the load finds nothing lost over partitions that heal`() throws {
    let (world, network) = (World.current!, Self.network)
    Self.serve(on: network)
    network.setLatency(.milliseconds(1) ... .milliseconds(50), from: "body", to: "server")
    network.setLatency(.milliseconds(1) ... .milliseconds(50), from: "server", to: "body")
    try world.settle()
    let load = Self.load(Self.plan, in: world)
    let trouble = co_launch(name: "trouble") {
      for (from, to) in [("body", "server"), ("server", "body"), ("body", "server")] {
        try co_delay(.milliseconds(200))
        network.partition(from: from, to: to)
        try co_delay(.seconds(3))
        network.heal(from: from, to: to)
      }
    }
    let result = try load.run()
    trouble.cancel()
    #expect(result.failures.isEmpty, "\(result.failures)")
    #expect((result.sent, result.received) == (90, 270))
    #expect(result.isComplete)
    #expect(result.latencies.maxRecorded >= 1_000_000)
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the load connects again while a partition keeps it from the server`() throws {
    let (world, network) = (World.current!, Self.network)
    Self.serve(on: network)
    try world.settle()
    network.partition(from: "body", to: "server")
    var plan = Self.plan
    plan.timeout = .seconds(10)
    let load = Self.load(plan, in: world)
    co_launch {
      try co_delay(.seconds(25))
      network.heal(from: "body", to: "server")
    }
    let result = try load.run()
    #expect(result.failures.isEmpty && result.isComplete)
    // Two attempts of ten seconds, and a third one that the healing has reached.
    #expect(load.counters.retries.load(ordering: .relaxed) >= 2 * plan.clients)
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the load ends, and says why, if the server crashes in the middle`() throws {
    let (world, network) = (World.current!, Self.network)
    Self.serve(on: network)
    network.setLatency(.milliseconds(5) ... .milliseconds(50), from: "body", to: "server")
    try world.settle()
    let load = Self.load(Self.plan, in: world)
    co_launch {
      while load.counters.delivered.load(ordering: .relaxed) < 50 { try co_delay(.milliseconds(1)) }
      network.crash("server")
    }
    let result = try load.run()
    #expect(result.failures.count == Self.plan.clients)
    #expect(
      result.failures.allSatisfy { if case .lostConnection = $0.failure { true } else { false } },
      "\(result.failures)"
    )
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the load takes for lost what a partition keeps for longer than its patience`() throws {
    let (world, network) = (World.current!, Self.network)
    Self.serve(on: network)
    try world.settle()
    var plan = Self.plan
    plan.timeout = .seconds(20)
    plan.retry.attempts = 1
    // Without it all would be said at one instant.
    network.setLatency(.milliseconds(5) ... .milliseconds(50), from: "server", to: "body")
    let load = Self.load(plan, in: world)
    co_launch {
      while load.counters.delivered.load(ordering: .relaxed) < 50 { try co_delay(.milliseconds(1)) }
      network.partition(from: "server", to: "body")
    }
    let result = try load.run()
    // Every client has received what came in time, and then no answer to /quit.
    #expect(result.failures.count == Self.plan.clients)
    #expect(result.lost > 0 && result.lost == 3 * result.sent - result.received)
    #expect((result.duplicated, result.reordered) == (0, 0))
    #expect(!result.isComplete)
  }

  /// One client, and a server that loses, repeats and reorders.
  private static func meet(_ ending: FaultyServer.Ending) throws -> LoadResult {
    let (world, network) = (World.current!, Self.network)
    network.host("server") {
      let connection = try Listener.bind(.any(port: port)).accept()
      defer { connection.close() }
      try FaultyServer(ending: ending).serve(connection)
    }
    try world.settle()
    var plan = Self.plan
    (plan.clients, plan.messages, plan.roomSize, plan.window) = (1, 10, 1, 4)
    return try Self.load(plan, in: world).run()
  }

  @Test(.simulated(.random(seeds: 10)))
  func `the load finds what a server loses, repeats and reorders`() throws {
    let result = try Self.meet(.complete)
    #expect((result.sent, result.received) == (10, 9))
    #expect((result.lost, result.duplicated, result.reordered) == (1, 1, 1))
    #expect(result.failures.isEmpty && !result.isComplete)
  }

  @Test(.simulated(.random(seeds: 10)))
  func `a failure after the exchange does not hide a loss`() throws {
    let result = try Self.meet(.ignoresQuit)
    #expect((result.lost, result.duplicated, result.reordered) == (1, 1, 1))
    guard case .lostConnection(let reason)? = result.failures.first?.failure else {
      Issue.record("\(result.failures)")
      return
    }
    #expect(reason.hasPrefix("the server does not close it after /quit"))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `a client that is sent away says what the server has said, and what it has sent`() throws {
    let result = try Self.meet(.sendsAway)
    let reason = "the server has closed it, after the line: \(FaultyServer.reason)"
    #expect(result.failures.map(\.failure) == [.lostConnection(reason)])
    #expect((7...10).contains(result.sent))
    // It is the connection that failed: nothing is known of what came after.
    #expect((result.lost, result.reordered) == (0, 0))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `connecting is tried five times`() throws {
    let (world, network) = (World.current!, Self.network)
    Self.serve(on: network)
    try world.settle()
    network.partition(from: "body", to: "server")
    var plan = Self.plan
    plan.timeout = .seconds(10)
    let load = Self.load(plan, in: world)
    let result = try load.run()
    #expect(result.failures.allSatisfy { $0.failure == .connectingTimedOut })
    #expect(result.failures.count == plan.clients)
    #expect(load.counters.retries.load(ordering: .relaxed) == 4 * plan.clients)
    #expect(world.now >= .seconds(50))
  }
}
#endif
