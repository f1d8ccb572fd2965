import Coroutine
import Dispatch
import Testing

@Suite("Stress: cancellation against completion", .timeLimit(.minutes(10)))
struct CancellationStressTests {
  /// The outcomes of the waits of one batch.
  private struct Tally: Sendable {
    var values = 0
    var reasons = 0
    var strangers = 0
  }

  /// Two threads end the same waits at the same time, one by value and one by cancellation, in a random order per wait.
  @Test func `a million waits that are resumed and cancelled at once have one outcome each, and leak nothing`()
    async throws
  {
    let stress = Stress()
    let size = 2_000
    let (objects, cancellations) = (Census(), Census())
    var total = Tally()
    for batch in 0..<stress.rounds(1_000_000 / size) {
      let before = cancellations.now
      let tally = try await Self.batch(stress.random(batch), size, objects, cancellations)
      #expect(tally.values + tally.reasons == size, "\(stress.replay)")
      #expect(tally.strangers == 0, "\(stress.replay)")
      // onCancel runs exactly for the waits that a cancellation ended.
      #expect(cancellations.now - before == tally.reasons, "\(stress.replay)")
      total.values += tally.values
      total.reasons += tally.reasons
    }
    await until(objects, shows: 0)
    // Both sides must win sometimes.
    #expect(total.values > 0 && total.reasons > 0, "\(total), \(stress.replay)")
  }

  private static func batch(
    _ random: SeededRandom,
    _ size: Int,
    _ objects: Census,
    _ cancellations: Census
  ) async throws -> Tally {
    var random = random
    let board = ResumerBoard<Int>(size)
    let queue = DispatchQueue(label: "coroutine.stress.cancellation")
    let jobs = (0..<size).map { index in
      co_launch(on: index.isMultiple(of: 2) ? queue : nil) {
        let held = objects.citizen()
        defer { held.use() }
        return try co_suspend(
          onCancel: { cancellations.change() },
          { (done: Resumer<Int>) in board.lay(done, at: index) }
        )
      }
    }
    try await board.isFull()
    // Both threads handle every wait; which one cancels is random.
    let roles = jobs.map { _ in Bool.random(using: &random) }
    let order = Array(0..<size).shuffled(using: &random)
    try await onThreads(2) { thread in
      for index in order {
        if roles[index] == (thread == 0) {
          board[index]?.resume(index)
        } else {
          jobs[index].cancel(Mark(number: index))
        }
      }
    }
    var tally = Tally()
    for (index, job) in jobs.enumerated() {
      do {
        tally.values += 1
        if try await job.value != index { tally.strangers += 1 }
      } catch let mark as Mark {
        tally.values -= 1
        tally.reasons += 1
        if mark.number != index { tally.strangers += 1 }
      }
    }
    return tally
  }

  @Test func `jobs that are cancelled around their start run completely, partly or never, and leak nothing`()
    async throws
  {
    let stress = Stress()
    let size = 500
    let objects = Census()
    for round in 0..<stress.rounds(200) {
      let (started, ended) = (Census(), Census())
      let queue = DispatchQueue(label: "coroutine.stress.start")
      let launched = Promise<[Job<Int>]>()
      var random = stress.random(round)
      let order = Array(0..<size).shuffled(using: &random)
      let canceller = co_launch {
        let jobs = try co_await(launched)
        for index in order { jobs[index].cancel(Mark(number: index)) }
      }
      let jobs = (0..<size).map { index in
        co_launch(on: queue) { [held = objects.citizen()] in
          started.change()
          defer {
            ended.change()
            held.use()
          }
          try co_yield()
          return index
        }
      }
      launched.fulfill(jobs)
      try await canceller.value
      for (index, job) in jobs.enumerated() {
        do {
          #expect(try await job.value == index, "\(stress.replay)")
        } catch {
          #expect(error as? Mark == Mark(number: index), "\(stress.replay)")
        }
      }
      #expect(started.now == ended.now, "\(stress.replay)")
    }
    await until(objects, shows: 0)
  }
}
