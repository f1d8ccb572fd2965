import Testing

@testable import Coroutine

@Suite("RateLimiter: reservations and rates", .inWorlds, .timeLimit(.minutes(10)))
struct RateLimiterReserveTests {
  private var milliseconds: Int { Int(worldTime / .milliseconds(1)) }

  @Test func `reservations take tokens from the future, one after the other`() throws {
    let limiter = RateLimiter(10, burst: 2)
    let times = try (0..<5).map { _ in Int(try limiter.reserve().timeLeft / .milliseconds(1)) }
    #expect(times == [0, 0, 100, 200, 300])
    #expect(limiter.tokens == -3)
    // Who comes later is behind them.
    try limiter.acquire()
    #expect(milliseconds == 400)
    #expect(limiter.tokens == 0)
    #expect(outcome { _ = try limiter.reserve(3) } == "wouldDeadlock")
  }

  @Test func `what was given up is free for others, and nothing else moves`() throws {
    let limiter = RateLimiter(10, burst: 1)
    let kept = try (0..<6).map { _ in try limiter.reserve() }
    #expect(kept[2].cancel() && kept[3].cancel())
    #expect(limiter.tokens == -3)
    // Two places are free, one of them in the middle, and one behind all.
    let times = try (0..<3).map { _ in Int(try limiter.reserve().timeLeft / .milliseconds(1)) }
    #expect(times == [200, 300, 600])
    #expect(kept[5].cancel())
    try co_delay(.milliseconds(450))
    try limiter.acquire()
    #expect(milliseconds == 500)
    try limiter.acquire()
    #expect(milliseconds == 700)
  }

  @Test func `who gives up before a reservation leaves its tokens, but not at the time of the reservation`() throws {
    let limiter = RateLimiter(10, burst: 1)
    try limiter.acquire()
    let waiter = co_launch { try limiter.acquire() }
    try settleWorld()
    let reservation = try limiter.reserve()
    #expect(reservation.timeLeft == .milliseconds(200))
    waiter.cancel()
    _ = try? waiter.join()
    try co_delay(.milliseconds(50))
    try limiter.acquire()
    #expect(milliseconds == 100)
    try limiter.acquire()
    #expect(milliseconds == 300)
  }

  @Test func `a cancelled reservation gives its tokens to those behind it, once`() throws {
    let limiter = RateLimiter(10, burst: 1)
    try limiter.acquire()
    let reservation = try limiter.reserve()
    let waiter = co_launch { try limiter.acquire() }
    try settleWorld()
    try co_delay(.milliseconds(50))
    #expect(reservation.cancel() && !reservation.cancel())
    try waiter.join()
    #expect(milliseconds == 100)
    // One whose time has come cannot be cancelled.
    let other = try limiter.reserve()
    try co_delay(until: other.instant)
    #expect(milliseconds == 200 && !other.cancel())
  }

  @Test func `a reservation does not delay a coroutine that waits already, and comes after it`() throws {
    let limiter = RateLimiter(10, burst: 5)
    try limiter.acquire(5)
    let waiter = co_launch { () -> Int in
      try limiter.acquire(4)
      return milliseconds
    }
    try settleWorld()
    let reservation = try limiter.reserve(2)
    #expect(reservation.timeLeft == .milliseconds(600))
    #expect(try waiter.join() == 400)
    try limiter.acquire()
    #expect(milliseconds == 700)
  }

  @Test func `a new rate holds for coroutines that wait already`() throws {
    let limiter = RateLimiter(1, per: .seconds(10))
    try limiter.acquire()
    let waiter = co_launch { () -> Int in
      try limiter.acquire()
      return milliseconds
    }
    try co_delay(.seconds(1))
    // A tenth of a token has come; the rest comes at ten a second.
    limiter.setRate(10)
    #expect(try waiter.join() == 1_090)
    limiter.setRate(1, per: .seconds(2))
    try limiter.acquire()
    // A part of a nanosecond at ten a second is up to 20 ns at one in two seconds.
    #expect((3_089...3_090).contains(milliseconds))
  }

  @Test func `a select takes tokens when they come, and leaves them if another case is chosen`() throws {
    let (limiter, channel) = (RateLimiter(10, burst: 1), Channel<Int>(1))
    func choose(_ time: Duration = .seconds(60)) throws -> String {
      try co_select(biased: true) {
        channel.onReceive { "received \($0 ?? 0)" }
        limiter.onAcquire { "acquired" }
          .onTimeout(time) { "timeout" }
      }
    }
    #expect(try choose() == "acquired")
    #expect(try choose(.milliseconds(30)) == "timeout")
    #expect(milliseconds == 30)
    try channel.send(1)
    #expect(try choose() == "received 1")
    // Neither has cost a token.
    #expect(try choose() == "acquired")
    #expect(milliseconds == 100)
    let job = co_launch { try choose() }
    try settleWorld()
    job.cancel()
    #expect(outcome { try job.join() } == "CancellationError")
    try limiter.acquire()
    #expect(milliseconds == 200)
    #expect(outcome { try co_select { limiter.onAcquire(2) {} } } == "wouldDeadlock")
  }

  // MARK: The law

  /// Grants, with the times from which they may be used.
  private final class Grants: Sendable {
    private let list = Locked<[(time: Duration, count: Int)]>([])
    func note(_ count: Int, at time: Duration = worldTime) { list.withLock { $0.append((time, count)) } }

    /// The tokens beyond burst + t · rate in the worst time t.
    func excess(burst: Int, tokens: Int, per period: Duration) -> Double {
      let all = list.withLock { $0 }.sorted { $0.time < $1.time }
      var worst = -Double.infinity
      for first in all.indices {
        var sum = 0
        for last in first..<all.count {
          sum += all[last].count
          let added = (all[last].time - all[first].time) / period * Double(tokens)
          worst = max(worst, Double(sum - burst) - added)
        }
      }
      return worst
    }
    var count: Int { list.withLock { $0.count } }
  }

  /// One call of a random program, by a coroutine that gives up in many of them.
  private func call(_ limiter: RateLimiter, _ burst: Int, _ random: inout SeededNumbers, _ grants: Grants) throws {
    let count = Int.random(in: 1...burst, using: &random)
    let patience = Duration.milliseconds(Int.random(in: 0...900, using: &random))
    switch Int.random(in: 0..<7, using: &random) {
    case 0:
      try limiter.acquire(count)
      grants.note(count)
    case 1:
      do {
        try co_timeout(patience) { try limiter.acquire(count) }
        grants.note(count)
      } catch is TimeoutError {}
    case 2: if limiter.tryAcquire(count) { grants.note(count) }
    case 3:
      let reservation = try limiter.reserve(count)
      let time = worldTime + reservation.timeLeft
      try co_delay(patience)
      if Bool.random(using: &random), reservation.cancel() { return }
      grants.note(count, at: time)
    case 4:
      let isTaken = try co_select {
        limiter.onAcquire(count) { true }
          .onTimeout(patience) { false }
      }
      if isTaken { grants.note(count) }
    case 5:
      // A select that does not wait, or whose other case is ready.
      let channel = Channel<Int>(1)
      try channel.send(1)
      let isTaken = try co_select {
        limiter.onAcquire(count) { true }
        channel.onReceive { _ in false }
      }
      if isTaken { grants.note(count) }
    default:
      let waiter = co_launch {
        try limiter.acquire(count)
        grants.note(count)
      }
      try co_delay(patience)
      waiter.cancel()
      _ = try? waiter.join()
    }
  }

  @Test(arguments: [(10, 1, 1), (10, 1, 3), (7, 3, 2), (3, 7, 5)])
  func `in any time t at most burst + t · rate tokens are given`(_ tokens: Int, _ seconds: Int, _ burst: Int) throws {
    let (limiter, grants) = (RateLimiter(tokens, per: .seconds(seconds), burst: burst), Grants())
    try co_scope { scope in
      for number in 0..<8 {
        scope.launch {
          var random = SeededNumbers(UInt64(number * 31 + tokens))
          for _ in 0..<25 {
            try call(limiter, burst, &random, grants)
            if number % 3 == 0 { try co_delay(.milliseconds(Int.random(in: 0...2_000, using: &random))) }
          }
        }
      }
    }
    #expect(grants.count > 20)
    #expect(grants.excess(burst: burst, tokens: tokens, per: .seconds(seconds)) < 1e-6)
    // Nobody waits, so after a pause the bucket is full: nothing that was given up is missing.
    try co_delay(.seconds(burst * seconds * 100))
    #expect(limiter.tokens == burst && limiter.tryAcquire(burst))
  }
}

/// Random numbers from a seed.
private struct SeededNumbers: RandomNumberGenerator {
  private var state: UInt64
  init(_ seed: UInt64) { state = seed &* 0x9E37_79B9_7F4A_7C15 &+ 1 }
  mutating func next() -> UInt64 {
    state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
    return state ^ state >> 33
  }
}
