import Coroutine
import CoroutineTesting
import Testing

/// How simple a failing run becomes.
@Suite(.timeLimit(.minutes(5)))
struct ShrinkTests {
  @Test(arguments: [Strategy.random(), .priorities(), .exhaustive()])
  func `a race of two coroutines is shrunk to few switches`(strategy: Strategy) throws {
    let failure = try #require(explore(strategy, Programs.race).failure)
    #expect(failure.error is Lost)
    #expect(failure.switches <= 3)
    // A schedule without preemptions does not lose anything, so one is the least.
    #expect(failure.switches >= 1)
    let again = explore(.replay(failure.token), Programs.race)
    #expect(again.failure?.error is Lost)
    #expect(again.failure?.switches == failure.switches)
  }}
