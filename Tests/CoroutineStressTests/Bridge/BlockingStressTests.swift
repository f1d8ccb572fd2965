import Dispatch
import Synchronization
import Testing

@testable import Coroutine

@Suite("Stress: blocking code", .timeLimit(.minutes(5)))
struct BlockingStressTests {
  @Test func `bodies that race with cancellations and changes of the limit run at most once, and leak nothing`()
    async throws
  {
    let stress = Stress()
    let limit = 6
    let pool = BlockingPool(limit: limit, idleTimeout: .microseconds(300))
    let (started, running, captures, results) = (Census(), Census(), Census(), Census())
    let most = Most()
    let (rounds, width) = (stress.rounds(400), 50)
    let job = co_launch {
      var random = stress.random(0)
      var (values, cancellations) = (0, 0)
      for _ in 0..<rounds {
        if Int.random(in: 0..<4, using: &random) == 0 { pool.setLimit(Int.random(in: 1...limit, using: &random)) }
        let jobs = (0..<width).map { number in
          co_launch {
            let capture = captures.citizen()
            let (same, result) = try pool.run {
              started.change()
              most.see(running.change())
              capture.use()
              running.change(by: -1)
              return (number, results.citizen())
            }
            result.use()
            return same == number
          }
        }
        for _ in 0..<Int.random(in: 0..<3, using: &random) { try co_yield() }
        for job in jobs where Bool.random(using: &random) {
          job.cancel()
          if Int.random(in: 0..<8, using: &random) == 0 { try co_yield() }
        }
        for job in jobs {
          do {
            if try job.join() { values += 1 }
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
    #expect(values + cancellations == rounds * width, "\(stress.replay)")
    #expect((values...rounds * width).contains(started.now), "\(stress.replay)")
    #expect(most.seen <= limit, "\(stress.replay)")
    #expect(captures.now == 0, "\(stress.replay)")
    #expect(results.now == 0, "\(stress.replay)")
    #expect(pool.counts.queued == 0, "\(stress.replay)")
    pool.setLimit(1)
  }

  /// Runs `count` bodies that wait for each other: afterwards every thread of the pool has finished its previous body.
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

/// The maximum of numbers, from any thread.
private final class Most: Sendable {
  private let number = Atomic(0)
  var seen: Int { number.load(ordering: .acquiring) }
  func see(_ count: Int) { number.max(count, ordering: .relaxed) }
}
