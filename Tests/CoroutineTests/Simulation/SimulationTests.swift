import Testing

@testable import Coroutine

/// Virtual time, deadlocks and seeded order.
@Suite(.timeLimit(.minutes(1)))
struct SimulationTests {
  @Test func `an hour passes at once, and to the nanosecond`() async throws {
    try await onOwnThread {
      let simulation = Simulation()
      let started = simulation.now
      let began = Clock.now
      let log = Trace()
      try simulation.run {
        let late = co_launch {
          try co_delay(.nanoseconds(3_600_000_000_001))
          log("late \(simulation.now - started)")
        }
        let early = co_launch {
          try co_delay(.seconds(3600))
          log("early \(simulation.now - started)")
        }
        try late.join()
        try early.join()
      }
      #expect(log.all == ["early 3600000000000", "late 3600000000001"])
      #expect(Clock.now - began < 30_000_000_000)
    }
  }

  @Test func `time stands still while anything can run`() async throws {
    try await onOwnThread {
      let simulation = Simulation()
      let seen = try simulation.run {
        let timer = co_launch {
          try co_delay(.nanoseconds(1))
          return simulation.now
        }
        let before = simulation.now
        for _ in 0..<1000 { try co_yield() }
        let during = simulation.now
        return (before, during, try timer.join())
      }
      #expect(seen.1 == seen.0)
      #expect(seen.2 == seen.0 + 1)
    }
  }

  @Test func `a deadline of virtual time ends a wait`() async throws {
    try await onOwnThread {
      let simulation = Simulation()
      #expect(throws: TimeoutError.self) {
        try simulation.run { try co_timeout(.seconds(60)) { try co_delay(.seconds(61)) } }
      }
    }
  }

  @Test func `a deadlock is reported at once, with the waiting coroutines and their sources`() async throws {
    try await onOwnThread {
      let simulation = Simulation()
      let never = Promise<Int>()
      let failure = #expect(throws: Simulation.Deadlock.self) {
        _ = try simulation.run {
          let one = co_launch(name: "one") { try co_await(never) }
          return try one.join()
        }
      }
      let text = failure?.description ?? ""
      #expect(text.contains("\"one\" waiting for a promise"))
      #expect(text.contains("\"simulated\" waiting for a job"))
      never.fulfill(1)
    }
  }

  @Test func `work outside the simulation is awaited, and is not a deadlock`() async throws {
    try await onOwnThread {
      let seen = try Simulation().run {
        [try co_blocking { 1 }, try co_await { 2 }]
      }
      #expect(seen == [1, 2])
    }
  }

  @Test func `a seed decides the order, and the same seed replays it`() async throws {
    try await onOwnThread {
      func order(_ seed: UInt64?) throws -> [String] {
        let log = Trace()
        try Simulation(seed: seed).run {
          try co_scope { scope in
            for number in 0..<8 {
              scope.launch {
                for step in 0..<4 {
                  log("\(number).\(step)")
                  try co_yield()
                }
              }
            }
          }
        }
        return log.all
      }
      let first = try order(nil)
      #expect(first.prefix(8) == (0..<8).map { "\($0).0" }[...], "without a seed: first in, first out")
      var orders: Set<[String]> = []
      for seed in 1...5 as ClosedRange<UInt64> {
        let once = try order(seed)
        #expect(try order(seed) == once, "seed \(seed)")
        #expect(once.sorted() == first.sorted(), "seed \(seed)")
        orders.insert(once)
      }
      #expect(orders.count == 5)
    }
  }
}
