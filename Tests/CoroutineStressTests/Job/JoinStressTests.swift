import Coroutine
import Dispatch
import Testing

@Suite("Stress: joining", .timeLimit(.minutes(10)))
struct JoinStressTests {
  /// At the same time one thread lets the job end, one cancels it, and one cancels some of its joiners.
  @Test func `joiners that are not cancelled agree on the outcome, whatever races with the end`() async throws {
    let stress = Stress()
    let queues = queues(3)
    for round in 0..<stress.rounds(1_000) {
      var random = stress.random(round)
      let gate = Promise<Void>()
      let job = co_launch(on: queues[0]) {
        try co_await(gate)
        return round
      }
      let joiners = (0..<12).map { n in co_launch(on: queues[n % 3]) { try job.join() } }
      let quitting = Set((0..<12).filter { _ in Int.random(in: 0..<3, using: &random) == 0 })
      let cancelsJob = Bool.random(using: &random)
      try await onThreads(3) { thread in
        switch thread {
        case 0: gate.fulfill(())
        case 1: if cancelsJob { job.cancel(Mark(number: -1)) }
        default: for n in quitting { joiners[n].cancel(Mark(number: n)) }
        }
      }
      let end = await Self.result(of: job)
      if !cancelsJob { #expect(end == .success(round), "\(stress.replay)") }
      for (n, joiner) in joiners.enumerated() {
        let seen = await Self.result(of: joiner)
        let isRight = seen == end || quitting.contains(n) && seen == .failure(Mark(number: n))
        #expect(isRight, "joiner \(n): \(seen), job: \(end), \(stress.replay)")
      }
    }
  }

  private static func result(of job: Job<Int>) async -> Result<Int, Mark> {
    do {
      return .success(try await job.value)
    } catch {
      return .failure(error as? Mark ?? Mark(number: .min))
    }
  }

  @Test func `finally, attached by threads around the end, runs once each`() async throws {
    let stress = Stress()
    let size = 10
    for _ in 0..<stress.rounds(1_000) {
      let (ran, all) = (Census(), Promise<Void>())
      let gate = Promise<Void>()
      let job = co_launch { try co_await(gate) }
      try await onThreads(3) { thread in
        if thread == 0 {
          _ = gate.fulfill(())
          return
        }
        for _ in 0..<size {
          job.finally {
            if ran.change() == 2 * size { all.fulfill(()) }
          }
        }
      }
      try await co_launch { try co_await(all) }.value
      try await job.value
      #expect(ran.now == 2 * size, "\(stress.replay)")
    }
  }
}
