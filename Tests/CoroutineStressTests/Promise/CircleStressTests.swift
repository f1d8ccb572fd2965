import Coroutine
import Dispatch
import Testing

/// Cycles of pending promises, closed by one thread per promise at the same time.
///
/// Each thread closes by another way of waiting. The last edge finds the cycle: its promise rejects with `cycle`, and
/// so do all.
@Suite("Stress: cycles that several threads close together", .timeLimit(.minutes(10)))
struct CircleStressTests {
  /// A promise, a function that makes it wait for another, from any thread, and the other promises it waits for, which
  /// must not be abandoned.
  private typealias Edge = (promise: Promise<Int>, close: @Sendable (Promise<Int>) -> Void, gate: Promise<Int>)

  private static func edge(_ kind: Int) -> Edge {
    let waiter = Promise<Int>()
    // The last kind waits for this first; the closing thread settles it.
    let (gate, target) = (Promise<Int>(), Target())
    switch kind {
    case 0: return (waiter, { waiter.follow($0) }, gate)
    case 1: return (waiter, { waiter.follow($0.then { $0 }.asVoid().then { 1 }) }, gate)
    case 2: return (waiter, { waiter.follow(Promise.race([gate, $0])) }, gate)
    case 3: return (waiter, { waiter.follow(Promise.all(gate, $0).then { $0.1 }) }, gate)
    case 4:
      let link = gate.then { $0 }
      return (link, { link.follow($0) }, gate)
    case 5:
      let race = Promise.race([gate])
      return (race, { race.follow($0.timeout(.seconds(3600))) }, gate)
    default:
      waiter.follow(gate.then { _ in target.promise })
    }
    return (
      waiter,
      {
        target.promise = $0
        gate.fulfill(0)
      },
      gate
    )
  }

  /// Set by the thread that then opens the gate, read by handlers behind the gate.
  private final class Target: @unchecked Sendable {
    // Sound because settling the gate orders the one write before every read.
    var promise: Promise<Int> {
      get { stored! }
      set { stored = newValue }
    }
    private var stored: Promise<Int>?
  }

  @Test func `every promise of the ring rejects with cycle, and none hangs`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(400) {
      var random = stress.random(round)
      let kinds = (0..<Int.random(in: 2...5, using: &random)).map { _ in Int.random(in: 0..<7, using: &random) }
      let ring = kinds.map { Self.edge($0) }
      try await onThreads(ring.count) { ring[$0].close(ring[($0 + 1) % ring.count].promise) }
      for edge in ring {
        let result = await Task { try await edge.promise.timeout(.seconds(60)).value }.result
        guard case .failure(CoroutineError.cycle) = result else {
          Issue.record("\(result) in a ring of \(kinds), round \(round), \(stress.replay)")
          return
        }
      }
      withExtendedLifetime(ring) {}
    }
  }
}
