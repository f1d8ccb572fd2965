import Testing

@testable import Coroutine

@Suite("Limits of concurrency", .timeLimit(.minutes(10)))
struct LimitTests {
  /// Counts how many run at the same time.
  private final class Running: Sendable {
    private let counts = Locked((now: 0, most: 0))
    var most: Int { counts.withLock { $0.most } }
    func callAsFunction(_ time: Duration = .milliseconds(10)) throws {
      counts.withLock { ($0.now, $0.most) = ($0.now + 1, max($0.most, $0.now + 1)) }
      defer { counts.withLock { $0.now -= 1 } }
      try co_delay(time)
    }
  }

  @Test(.inWorlds) func `co_map works on at most the limit, and returns the results in order`() throws {
    let running = Running()
    let results = try co_map(0..<10, limit: 3) { number in
      try running(.milliseconds(10 * (10 - number)))
      return number * 2
    }
    #expect(results == (0..<10).map { $0 * 2 })
    #expect(running.most == 3)
    #expect(try co_map([Int](), limit: 3) { $0 } == [])
    #expect(try co_map([1, 2], limit: 100) { $0 } == [1, 2])
    #expect(outcome { try co_map([1], limit: 0) { $0 } } == "invalidCount")
  }

  @Test(.inWorlds) func `the first failure of a co_map cancels the others, and no other element begins`() throws {
    let begun = Locked<[Int]>([])
    let seen = outcome {
      try co_map(0..<10, limit: 2) { number in
        begun.withLock { $0.append(number) }
        try co_delay(.milliseconds(number == 1 ? 5 : 100))
        if number == 1 { throw Oops("one") }
      }
    }
    #expect(seen == "Oops(one)")
    #expect(begun.withLock { $0 }.sorted() == [0, 1])
    #expect(worldTime == .milliseconds(5))
  }

  @Test(.inWorlds) func `a co_map whose coroutine is cancelled throws the cancellation`() throws {
    let job = co_launch { try co_map(0..<10, limit: 2) { _ in try waitForCancellation() } }
    try settleWorld()
    job.cancel(Oops("stop"))
    #expect(outcome { try job.join() } == "Oops(stop)")
  }

  @Test(.inWorlds) func `withPermit releases at the end, also after an error, and a cancelled wait runs nothing`()
    throws
  {
    let semaphore = FairSemaphore(2)
    #expect(try semaphore.withPermit { semaphore.available } == 1)
    #expect(outcome { try semaphore.withPermit(2) { throw Oops("inside") } } == "Oops(inside)")
    #expect(semaphore.available == 2)
    try semaphore.withPermit(2) {
      let waiter = co_launch { try semaphore.withPermit { Issue.record("it has run") } }
      try settleWorld()
      waiter.cancel()
      #expect(outcome { try waiter.join() } == "CancellationError")
    }
    #expect(semaphore.available == 2)
  }

  @Test(.inWorlds) func `a flight says whether its result is shared`() throws {
    let flights = SingleFlight<String, Int>()
    let alone = try flights.runShared("a") { 1 }
    #expect(alone.value == 1 && !alone.isShared)
    let jobs = (0..<2).map { _ in
      co_launch {
        try flights.runShared("b") {
          try co_delay(.seconds(1))
          return 2
        }
        .isShared
      }
    }
    #expect(try jobs.map { try $0.join() } == [true, true])
  }
}
