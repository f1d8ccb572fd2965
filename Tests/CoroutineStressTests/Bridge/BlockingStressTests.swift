import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("Stress: blocking code", .timeLimit(.minutes(5)))
struct BlockingStressTests {
  /// What the bodies of a run have in common.
  private final class Tally: Sendable {
    let running = Atomic<Int>(0)
    let most = Atomic<Int>(0)
    let started = Atomic<Int>(0)
    let captures = Atomic<Int>(0)
    let results = Atomic<Int>(0)

    func body() {
      started.wrappingAdd(1, ordering: .relaxed)
      let now = running.wrappingAdd(1, ordering: .acquiringAndReleasing).newValue
      most.max(now, ordering: .relaxed)
      running.wrappingSubtract(1, ordering: .acquiringAndReleasing)
    }
  }

  /// An object that is counted while it lives.
  private final class Counted: Sendable {
    private let change: @Sendable (Int) -> Void
    init(_ change: @escaping @Sendable (Int) -> Void) {
      self.change = change
      change(1)
    }
    deinit { change(-1) }
  }

  @Test func `bodies that race with cancellations and with changes of the limit run once or never, and leak nothing`()
    async throws
  {
    let stress = BridgeStress()
    let limit = 6
    let pool = BlockingPool(limit: limit, patience: .microseconds(300))
    let tally = Tally()
    let rounds = stress.rounds(400)
    let job = co_launch {
      var random = stress.random(0)
      var (values, cancellations) = (0, 0)
      for _ in 0..<rounds {
        if Int.random(in: 0..<4, using: &random) == 0 { pool.setLimit(Int.random(in: 1...limit, using: &random)) }
        let jobs = (0..<50).map { number in
          co_launch {
            let capture = Counted { tally.captures.wrappingAdd($0, ordering: .relaxed) }
            let result = try pool.run { (number, Self.work(capture, tally)) }
            precondition(result.0 == number)
          }
        }
        for _ in 0..<Int.random(in: 0..<3, using: &random) { try co_yield() }
        for job in jobs where Bool.random(using: &random) {
          job.cancel()
          if Int.random(in: 0..<8, using: &random) == 0 { try co_yield() }
        }
        for job in jobs {
          do {
            try job.join()
            values += 1
          } catch is CancellationError {
            cancellations += 1
          }
        }
      }
      pool.setLimit(limit)
      try Self.meet(limit, in: pool)
      return (values, cancellations)
    }
    let (values, cancellations) = try await job.value
    #expect(values + cancellations == rounds * 50, "\(stress.replay)")
    #expect(values <= tally.started.load(ordering: .acquiring), "\(stress.replay)")
    #expect(tally.started.load(ordering: .acquiring) <= rounds * 50, "\(stress.replay)")
    #expect(tally.most.load(ordering: .acquiring) <= limit, "\(stress.replay)")
    #expect(tally.captures.load(ordering: .acquiring) == 0, "\(stress.replay)")
    #expect(tally.results.load(ordering: .acquiring) == 0, "\(stress.replay)")
    #expect(pool.counts.queued == 0, "\(stress.replay)")
    pool.setLimit(1)
  }

  private static func work(_ capture: Counted, _ tally: Tally) -> Counted {
    tally.body()
    return Counted { tally.results.wrappingAdd($0, ordering: .relaxed) }
  }

  /// Runs `count` bodies that wait for one another: afterwards each of the pool's threads is through with what it ran before.
  private static func meet(_ count: Int, in pool: BlockingPool) throws {
    let all = DispatchGroup()
    for _ in 0..<count { all.enter() }
    let jobs = (0..<count).map { _ in
      co_launch {
        try pool.run {
          all.leave()
          all.wait()
        }
      }
    }
    for job in jobs { try job.join() }
  }
}
