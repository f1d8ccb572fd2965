import Coroutine
import CoroutineTesting
import Testing

/// How simple a failing run becomes.
@Suite(.timeLimit(.minutes(5)))
struct ShrinkTests {
  /// Two coroutines that each add four times, and wait after each; a random failing run has many switches.
  @Sendable private static func race() throws {
    let balance = Cell(0)
    let jobs = (0..<2).map { _ in
      co_launch {
        for _ in 0..<4 {
          let seen = balance.value
          co_point()
          balance.value = seen + 1
          try co_yield()
        }
      }
    }
    for job in jobs { try job.join() }
    if balance.value != 8 { throw Lost() }
  }

  @Test(arguments: [Strategy.random(), .priorities(), .exhaustive()])
  func `a race of two coroutines is shrunk to few switches`(strategy: Strategy) throws {
    let failure = try #require(explore(strategy, Self.race).failure)
    #expect(failure.error is Lost)
    #expect(failure.switches <= 3)
    // A schedule without preemptions does not lose anything, so one is the least.
    #expect(failure.switches >= 1)
    let again = explore(.replay(failure.token), Self.race)
    #expect(again.failure?.error is Lost)
    #expect(again.failure?.switches == failure.switches)
  }
}
