import Coroutine
import CoroutineTesting
import Testing

/// Old spellings, used without a warning: the compiler warns of a deprecated name, and a call by a protocol names none.
private protocol OldSpellings {
  func run() throws
}

private struct OldTypes: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    let (strategy, sharing): (Strategy, Sharing) = (.inOrder, .waits)
    #expect(explore(strategy, sharing: sharing) {}.runs == 1)
  }
}

private struct OldNetwork: OldSpellings {
  @available(*, deprecated)
  func run() throws {
    // Stored, as the contract has them: labels are no part of such a type.
    let partition: (Network) -> (String, String) -> Void = Network.partition
    let heal: (Network) -> (String, String) -> Void = Network.heal
    let world = World()
    let network: Network = world.network
    network.latency("one", "body", .seconds(2) ... .seconds(2))
    network.loss("body", "one", 0.5)
    network.clock("one", rate: 2)
    network.partition("body", "one")
    network.heal("body", "one")
    partition(network)("body", "one")
    heal(network)("body", "one")
    let log = Log()
    network.host("one") {
      try co_delay(.seconds(4))
      log("\(World.current!.now)")
    }
    try world.run { try co_delay(.seconds(3)) }
    #expect(log.lines == ["\(Duration.seconds(2))"])
  }
}

@Suite("Old spellings of CoroutineTesting", .timeLimit(.minutes(5)))
struct OldNamesTests {
  @Test func `of types mean the new ones`() throws { try (OldTypes() as any OldSpellings).run() }

  @Test func `of a network's functions do what the new ones do`() throws {
    try (OldNetwork() as any OldSpellings).run()
  }
}
