import Coroutine
import CoroutineTesting
import Testing

/// The interface as it is promised: each name with exactly its type, as a program may store or pass it.
@Suite(.timeLimit(.minutes(5)))
struct ContractTests {
  @Test func `every strategy has its parameters and their defaults`() {
    #expect(Exploration.Strategy.random() == .random(seeds: 100, from: 0))
    #expect(Exploration.Strategy.priorities() == .priorities(depth: 3, runs: 1_000))
    #expect(Exploration.Strategy.exhaustive() == .exhaustive(preemptions: 2, most: 1_000_000))
    #expect(Set<Exploration.Strategy>([.inOrder, .replay("10"), .replay("10")]).count == 2)
  }

  @Test func `an exploration is a strategy and a body`() throws {
    struct Wrong: Error {}
    let explore: (Exploration.Strategy, @Sendable () throws -> Void) -> Exploration = explore(_:_:)
    var found = explore(.inOrder) { throw Wrong() }
    let (runs, isComplete): (Int, Bool) = (found.runs, found.isComplete)
    #expect(runs == 1 && !isComplete)
    var failure: Exploration.RunError = try #require(found.failure)
    let error: any Error = failure.error
    let (token, switches, text): (String, Int, String) = (failure.token, failure.switches, failure.description)
    #expect(error is Wrong && switches == 0 && text.contains(token))
    #expect(explore(.replay(token)) { throw Wrong() }.failure?.error is Wrong)
    // The parts of a result may be changed.
    (failure.token, failure.switches, failure.description, failure.error) = ("", 0, "", Wrong())
    (found.runs, found.isComplete, found.failure) = (0, true, failure)
    // A failure can be thrown, and leaves its thread.
    let thrown: any Error & CustomStringConvertible & Sendable = failure
    #expect(throws: Exploration.RunError.self) { throw thrown }
  }

  @Test func `a world has its functions`() throws {
    let make: (UInt64?) -> World = World.init(seed:)
    let run: (World) -> (@escaping @Sendable () throws -> Int) throws -> Int = World.run
    let advance: (World) -> (Duration) throws -> Void = World.advance(by:)
    let settle: (World) -> () throws -> Void = World.settle
    let world = make(7)
    let passed = try run(world)({
      let current: World? = World.current
      #expect(current === world)
      try world.advance(by: .seconds(2))
      try world.settle()
      return Int(world.now.components.seconds)
    })
    #expect(passed == 2)
    #expect(throws: CoroutineError.self) { try advance(world)(.seconds(1)) }
    #expect(throws: CoroutineError.self) { try settle(world)() }
    #expect(World().now == .zero)
  }

  @Test func `a network has its functions`() throws {
    let host: (World.Network) -> (String, @escaping @Sendable () throws -> Void) -> Void = World.Network.host
    let latency: (World.Network) -> (ClosedRange<Duration>, String, String) -> Void =
      World.Network.setLatency(_:from:to:)
    let partition: (World.Network) -> (String, String) -> Void = World.Network.partition(from:to:)
    let heal: (World.Network) -> (String, String) -> Void = World.Network.heal(from:to:)
    let crash: (World.Network) -> (String) -> Void = World.Network.crash
    let restart: (World.Network) -> (String) -> Void = World.Network.restart
    let world = World()
    let network: World.Network = world.network
    let starts = Counter()
    host(network)("one") {
      _ = starts.next()
      try co_delay(.seconds(100))
    }
    latency(network)(.zero ... .seconds(1), "one", "body")
    partition(network)("one", "body")
    heal(network)("one", "body")
    // Sound because each of them is called inside of the world, as they ask for.
    nonisolated(unsafe) let calls = (crash(network), restart(network))
    try world.run {
      try world.settle()
      calls.0("one")
      calls.1("one")
      try world.settle()
    }
    #expect(starts.next() == 3)
  }

  @Test func `the world's own errors are errors that leave their thread`() {
    let kinds: [any (Error & Sendable).Type] = [
      World.DeadlockError.self, World.LeftRunningError.self, World.RealWaitError.self,
      Exploration.NondeterminismError.self,
    ]
    #expect(kinds.count == 4)
  }

  @Test func `points and faults are functions of the library`() {
    let point: () -> Void = co_point
    let fault: (StaticString) -> Bool = co_fault
    point()
    #expect(!fault("disk"))
  }

  @Test(.simulated(.exhaustive())) func `a test can run in worlds`() throws {
    #expect(World.current != nil)
    try co_delay(.seconds(1))
  }
}
