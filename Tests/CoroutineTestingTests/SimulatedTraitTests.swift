import Coroutine
import CoroutineTesting
import Testing

/// Tests whose bodies run in worlds.
@Suite(.timeLimit(.minutes(10)))
struct SimulatedTraitTests {
  @Test(.simulated(.exhaustive())) func `a body runs in a coroutine of a world, in every schedule`() throws {
    let world = try #require(World.current)
    let balance = Cell(0)
    let lock = FairMutex()
    let jobs = (0..<2).map { _ in
      co_launch {
        try lock.withLock {
          let seen = balance.value
          try co_delay(.seconds(60))
          balance.value = seen + 1
        }
      }
    }
    for job in jobs { try job.join() }
    #expect(balance.value == 2)
    #expect(world.now == .seconds(120))
  }

  @Test(.simulated(.random(seeds: 3)), arguments: [1, 2]) func `each argument has its worlds`(argument: Int) throws {
    try co_delay(.seconds(argument))
    #expect(World.current?.now == .seconds(argument))
  }

  @Test(.simulated(.inOrder)) func `a body may await what is not in the world`() async throws {
    await Task.yield()
  }
}
