import Testing

@testable import Coroutine

/// In worlds: exact to the nanosecond, without real waiting, in many orders.
@Suite("RateLimiter", .timeLimit(.minutes(10)))
struct RateLimiterTests {
  /// The time since the beginning of the world.
  private var milliseconds: Double { worldTime / .milliseconds(1) }

  @Test(.inWorlds) func `a full bucket is given out at once, then tokens come evenly`() throws {
    let limiter = RateLimiter(10, burst: 3)
    let times = try (0..<6).map { _ in
      try limiter.acquire()
      return milliseconds
    }
    #expect(times == [0, 0, 0, 100, 200, 300])
  }

  @Test(.inWorlds) func `after a pause the bucket holds no more than the burst`() throws {
    let limiter = RateLimiter(10, burst: 2)
    try limiter.acquire(2)
    try co_delay(.seconds(60))
    let times = try (0..<4).map { _ in
      try limiter.acquire()
      return milliseconds - 60_000
    }
    #expect(times == [0, 0, 100, 200])
  }

  @Test(.inWorlds) func `nothing is lost by rounding, however many tokens and whatever the rate`() throws {
    let limiter = RateLimiter(7, per: .seconds(3), burst: 1)
    let rounds = isSanitized ? 100 : 1_000
    for _ in 0...(7 * rounds) { try limiter.acquire() }
    #expect(milliseconds == 3_000 * Double(rounds))
  }

  @Test(.inWorlds) func `waiters are served in order, whatever amounts they want`() throws {
    let (limiter, row) = (RateLimiter(10, burst: 5), Queueing())
    try limiter.acquire(5)
    let jobs = try [("a", 4), ("b", 1), ("c", 2)].map { label, count in
      try row.enqueue(label) {
        try limiter.acquire(count)
        row.trace("\(label) at \(Int(milliseconds))")
      }
    }
    try co_delay(.milliseconds(150))
    #expect(!limiter.tryAcquire(), "a token is there, but somebody waits")
    for job in jobs { try job.join() }
    #expect(row.trace.all.filter { $0.contains("at") } == ["a at 400", "b at 500", "c at 700"])
  }

  @Test(.inWorlds) func `coroutines that come at the same time are served evenly, in some order`() throws {
    let (limiter, trace) = (RateLimiter(10, burst: 1), Trace())
    try co_scope { scope in
      for label in ["a", "b", "c"] {
        scope.launch {
          try limiter.acquire()
          trace("\(Int(milliseconds)) \(label)")
        }
      }
    }
    #expect(trace.all.map { $0.prefix { $0 != " " } } == ["0", "100", "200"])
    #expect(Set(trace.all.compactMap(\.last)) == ["a", "b", "c"])
  }

  @Test(.inWorlds, arguments: [0, 1, 2])
  func `the tokens of a cancelled waiter go to those behind it`(_ position: Int) throws {
    let (limiter, row) = (RateLimiter(10, burst: 1), Queueing())
    try limiter.acquire()
    let jobs = try ["a", "b", "c"].map { label in
      try row.enqueue(label) {
        try limiter.acquire()
        row.trace("\(label) at \(Int(milliseconds))")
      }
    }
    try co_delay(.milliseconds(50))
    jobs[position].cancel(Oops("\(Int(milliseconds))"))
    for job in jobs { try job.join() }
    let trace = row.trace.all.filter { $0.contains("at") || $0.contains("Oops") }
    let rest = ["a", "b", "c"].enumerated().filter { $0.offset != position }.map(\.element)
    #expect(trace == ["\(["a", "b", "c"][position]): Oops(50)", "\(rest[0]) at 100", "\(rest[1]) at 200"])
  }

  @Test(.inWorlds) func `a deadline ends the wait, and in a shield it goes on`() throws {
    let limiter = RateLimiter(1, burst: 1)
    try limiter.acquire()
    let timedOut = outcome { try co_timeout(.milliseconds(10)) { try limiter.acquire() } }
    #expect(timedOut == "TimeoutError")
    #expect(milliseconds == 10)
    let job = co_launch { try co_shield { try limiter.acquire() } }
    try settleWorld()
    job.cancel()
    _ = try? job.join()
    #expect(milliseconds == 1_000)
  }

  @Test(.inWorlds) func `trying takes available tokens and never waits`() throws {
    let limiter = RateLimiter(10, burst: 2)
    #expect(!limiter.tryAcquire(3))
    #expect(limiter.tryAcquire(2))
    #expect(!limiter.tryAcquire())
    #expect(limiter.tryAcquire(0))
    try co_delay(.nanoseconds(99_999_999))
    #expect(!limiter.tryAcquire())
    try co_delay(.nanoseconds(1))
    #expect(limiter.tryAcquire())
  }

  @Test(.inWorlds) func `taking no tokens never waits, more than the burst is refused`() throws {
    let limiter = RateLimiter(1, burst: 2)
    try limiter.acquire(2)
    try limiter.acquire(0)
    #expect(outcome { try limiter.acquire(3) } == "wouldDeadlock")
    #expect(milliseconds == 0)
  }

  @Test func `outside a coroutine it may be tried, on the real clock`() async throws {
    let limiter = RateLimiter(1, per: .seconds(3600), burst: 2)
    #expect(outcome { try limiter.acquire() } == "notInCoroutine")
    #expect(limiter.tryAcquire(2))
    #expect(!limiter.tryAcquire())
  }

  // The limiter reads the clock of its coroutine's scheduler; outside of worlds that is the real one.
  @Test(.tags(.realClock)) func `in real time it is never early`() async throws {
    let limiter = RateLimiter(1_000, burst: 1)
    let (start, end) = try await onCoroutine {
      let start = Clock.now
      for _ in 0..<11 { try limiter.acquire() }
      return (start, Clock.now)
    }
    #expect(end - start >= 10_000_000)
  }

  @Test(.inWorlds) func `a coroutine that is cancelled already takes no tokens`() throws {
    let limiter = RateLimiter(1, burst: 1)
    let job = co_launch {
      _ = outcome { try waitForCancellation() }
      try limiter.acquire()
    }
    try settleWorld()
    job.cancel()
    #expect(outcome { try job.join() } == "CancellationError")
    #expect(limiter.tryAcquire())
  }

  @Test(arguments: ["tokens", "period", "burst", "acquire", "tryAcquire"])
  func `an invalid number ends the process`(_ what: String) async {
    let died: ExitTest.Result? =
      switch what {
      case "tokens":
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { _ = RateLimiter(0) }
      case "period":
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
          _ = RateLimiter(1, per: .zero)
        }
      case "burst":
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { _ = RateLimiter(1, burst: -1) }
      case "acquire":
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
          try await onCoroutine { try RateLimiter(1).acquire(-1) }
        }
      default:
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
          _ = RateLimiter(1).tryAcquire(-1)
        }
      }
    #expect(died?.said("A RateLimiter cannot") == true)
  }
}
