import Coroutine
import Dispatch
import Testing

@Suite("Stress: delays and deadlines", .timeLimit(.minutes(10)))
struct DelayStressTests {
  @Test func `delays on the shared scheduler and on queues all end, none early`() async throws {
    let stress = Stress()
    let queues = queues(3)
    let rounds = stress.rounds(20)
    let jobs = (0..<400).map { part in
      co_launch(on: part.isMultiple(of: 2) ? queues[part % 3] : nil) {
        var random = stress.random(part)
        var early = 0
        for _ in 0..<rounds {
          let delay = Duration.microseconds(Int.random(in: 1...4_000, using: &random))
          if try ContinuousClock().measure({ try co_delay(delay) }) < delay { early += 1 }
          if Int.random(in: 0..<4, using: &random) == 0 { try co_yield() }
        }
        return early
      }
    }
    for job in jobs { #expect(try await job.value == 0, "\(stress.replay)") }
  }

  @Test func `a single delay on an otherwise idle scheduler always ends`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(1_500) {
      var random = stress.random(round)
      let delay = Duration.microseconds(Int.random(in: 1...300, using: &random))
      // Other jobs that start and end on the same workers while the timer is set.
      let companions = (0..<Int.random(in: 0...3, using: &random)).map { _ in co_launch { try co_yield() } }
      try await co_launch { try co_delay(delay) }.value
      for companion in companions { try await companion.value }
    }
  }

  @Test func `delays that are cancelled as they end have one outcome, and the next delay is whole`() async throws {
    let stress = Stress()
    let rounds = stress.rounds(2_000)
    for round in 0..<rounds {
      var random = stress.random(round)
      let started = Promise<Void>()
      let job = co_launch {
        started.fulfill(())
        do {
          try co_delay(.microseconds(100))
          return true
        } catch is Mark {
          let delay = Duration.microseconds(50)
          return try co_shield { try ContinuousClock().measure { try co_delay(delay) } >= delay }
        }
      }
      let wait = Duration.microseconds(Int.random(in: 20...200, using: &random))
      try await co_launch {
        try co_await(started)
        try co_delay(wait)
        job.cancel(Mark(number: round))
      }.value
      #expect(try await job.value, "\(stress.replay)")
    }
  }

  @Test func `nested deadlines that expire together, and cancellations among them, are distinguished`() async throws {
    let stress = Stress()
    let jobs = (0..<stress.rounds(2_000)).map { part in
      co_launch {
        var random = stress.random(part)
        let (outer, inner) = (Int.random(in: 1...400, using: &random), Int.random(in: 1...400, using: &random))
        var inside = "none"
        var outside = "none"
        do {
          try co_timeout(.microseconds(outer)) {
            do {
              try co_timeout(.microseconds(inner)) { try co_delay(.seconds(3600)) }
            } catch {
              inside = "\(type(of: error))"
              throw error
            }
          }
        } catch {
          outside = "\(type(of: error))"
        }
        try co_checkCancelled()
        return "\(inside) \(outside)"
      }
    }
    let legal = ["CancellationError TimeoutError", "TimeoutError TimeoutError"]
    for job in jobs {
      let seen = try await job.value
      #expect(legal.contains(seen), "\(seen), \(stress.replay)")
    }
  }
}
