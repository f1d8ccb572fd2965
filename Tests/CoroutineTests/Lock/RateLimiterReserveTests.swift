import Testing

@testable import Coroutine

@Suite("RateLimiter: reservations and rates", .inWorlds, .timeLimit(.minutes(5)))
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

  @Test func `a reservation counts from the time that another thread has seen last`() throws {
    let limiter = RateLimiter(1, burst: 1)
    try limiter.acquire()
    // As a thread does that has read its clock later, and took the lock first.
    let later = Carrier.localTime + 500_000_000
    limiter.lock.withLock { limiter.refill(later) }
    let reservation = try limiter.reserve()
    #expect(reservation.timeLeft == .milliseconds(1_000))
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
    #expect(milliseconds == 3_090)
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
}
