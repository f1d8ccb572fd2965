import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

@Suite("Stress: blocking code", .timeLimit(.minutes(10)))
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

  @Test func `bodies that wait for bodies, against cancellations and changes of the limit, always end`() async throws {
    let stress = Stress()
    let limit = 4
    let pool = BlockingPool(limit: limit, idleTimeout: .microseconds(300))
    let (captures, most) = (Census(), Most())
    let (rounds, width) = (stress.rounds(200), 20)
    /// A body that waits for a job whose body does the same, `depth` times, and then for a promise of the round.
    @Sendable func descend(_ depth: Int, _ end: Promise<Void>) throws {
      let capture = captures.citizen()
      try pool.run {
        let counts = pool.counts
        most.see(counts.threads + counts.waiting)
        capture.use()
        try depth == 0 ? end.blockingWait() : co_launch { try descend(depth - 1, end) }.blockingWait()
      }
    }
    let job = co_launch {
      var random = stress.random(0)
      for _ in 0..<rounds {
        if Int.random(in: 0..<4, using: &random) == 0 { pool.setLimit(Int.random(in: 1...limit, using: &random)) }
        let end = Promise<Void>()
        let jobs = (0..<width).map { _ in
          let depth = Int.random(in: 0..<4, using: &random)
          return co_launch { try descend(depth, end) }
        }
        for _ in 0..<Int.random(in: 0..<3, using: &random) { try co_yield() }
        for job in jobs where Int.random(in: 0..<4, using: &random) == 0 { job.cancel() }
        end.fulfill(())
        for job in jobs { _ = try? job.join() }
        // Bodies go on after a cancellation.
        while captures.now > 0 { try co_yield() }
      }
      pool.setLimit(limit)
      try Self.meet(limit, in: pool)
    }
    try await job.value
    #expect(most.seen > limit, "\(stress.replay)")
    let counts = pool.counts
    #expect(counts.queued == 0 && counts.waiting == 0, "\(stress.replay)")
    #expect(counts.threads <= limit, "\(stress.replay)")
    #expect(captures.now == 0, "\(stress.replay)")
    pool.setLimit(1)
  }

  @Test func `of a delivery and a cancellation at the same moment, one wins, and each value has one receiver`()
    async throws
  {
    let stress = Stress()
    let pool = BlockingPool(limit: 8)
    let (rounds, width) = (stress.rounds(150), 32)
    /// How often each value was returned by its body, by the call, and given to `onUndelivered`.
    let (returned, delivered, undelivered) = (Tally(rounds * width), Tally(rounds * width), Tally(rounds * width))
    let job = co_launch {
      var random = stress.random(0)
      for round in 0..<rounds {
        // Some are cancelled by the driver, some by a deadline, some by their body at its end, and some not at all.
        let jobs = (0..<width).map { index in
          let number = round * width + index
          let (spins, way) = (Int.random(in: 0..<400, using: &random), Int.random(in: 0..<4, using: &random))
          let own = Own()
          own.job = co_launch(start: .lazy) {
            func call() throws {
              let value = try pool.run(onUndelivered: { undelivered.count($0) }) {
                for _ in 0..<spins { sched_yield() }
                if way == 0 { own.job?.cancel() }
                returned.count(number)
                return number
              }
              delivered.count(value)
            }
            if way == 1 { try co_timeout(.microseconds(spins)) { try call() } } else { try call() }
          }
          own.job?.start()
          return (own, way)
        }
        for _ in 0..<Int.random(in: 0..<6, using: &random) { try co_yield() }
        for (own, way) in jobs where way == 2 { own.job?.cancel() }
        for (own, _) in jobs { _ = try? own.job?.join() }
        for (own, _) in jobs { own.job = nil }
      }
      try Self.meet(8, in: pool)
    }
    try await job.value
    var (caught, lost, wrong) = (0, 0, 0)
    for number in 0..<rounds * width {
      let (one, other) = (delivered[number], undelivered[number])
      if returned[number] != one + other || one + other > 1 { wrong += 1 }
      caught += one
      lost += other
    }
    #expect(wrong == 0, "\(stress.replay)")
    #expect(caught > 0 && lost > 0, "\(stress.replay)")
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

/// A job that its own body may cancel.
private final class Own: @unchecked Sendable {
  // Sound because it is set before the job starts, and again when its body has ended.
  var job: Job<Void>?
}

/// Counts for each of some numbers, from any thread.
private final class Tally: @unchecked Sendable {
  // Sound because the memory is constant, and each count is atomic.
  private let counts: UnsafeMutablePointer<Atomic<Int>>

  init(_ count: Int) {
    counts = .allocate(capacity: count)
    for index in 0..<count { (counts + index).initialize(to: Atomic(0)) }
  }

  deinit { counts.deallocate() }

  func count(_ number: Int) { counts[number].wrappingAdd(1, ordering: .acquiringAndReleasing) }

  subscript(number: Int) -> Int { counts[number].load(ordering: .acquiring) }
}
