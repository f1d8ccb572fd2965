import Coroutine
import Testing

/// What docs/coming-from/go.md shows, compiled and run.
@Suite("Coming from Go", .inWorlds, .timeLimit(.minutes(5)))
struct GoTests {
  private func f() throws -> Int {
    try co_yield()
    return 1
  }

  @Test func `goroutines and their ends`() throws {
    let job = co_launch { try co_yield() }
    try job.join()
    try co_scope { scope in
      scope.launch { try co_yield() }
    }
    try co_scope(limit: 8) { scope in
      try scope.launch { try co_yield() }
      _ = scope.tryLaunch { try co_yield() }
    }
    let results = try co_map([1, 2, 3], limit: 8) { $0 * 2 }
    #expect(results == [2, 4, 6])
    try co_yield()
    #expect(CoroutineRuntime.liveCount >= 0 && CoroutineRuntime.workerCount > 0)
  }

  @Test func `channels`() throws {
    let ch = Channel<Int>(2)
    #expect(ch.capacity.limit == 2)
    let (input, output) = (ch.sendOnly, ch.receiveOnly)
    try input.send(1)
    try ch.send(2)
    #expect(ch.count == 2)
    let v = try output.receive()
    ch.close()
    try ch.forEach { value in #expect(value == 2) }
    while let value = try ch.receive() { Issue.record("\(value)") }
    #expect(v == 1)
  }

  @Test func `select and time`() throws {
    let (ch, d) = (Channel<Int>(1), Duration.milliseconds(5))
    let chosen = try co_select {
      ch.onReceive { _ in 1 }
        .onTimeout(d) { 2 }
    }
    #expect(chosen == 2)
    let polled = try co_select {
      ch.onReceive { _ in 1 }
        .otherwise { 2 }
    }
    #expect(polled == 2)
    let ticker = co_ticker(every: d)
    try ticker.next()
    let start = co_now
    try co_delay(d)
    #expect(co_now - start == d)
    let ticked = try co_select { ticker.onTick { count in count } }
    #expect(ticked == 1)
  }

  @Test func `contexts`() throws {
    let (d, deadline) = (Duration.seconds(1), co_now + .seconds(2))
    let first = try co_timeout(d) { try f() }
    let second = try co_timeout(until: deadline) { try f() }
    let left = try co_timeout(d) { co_timeLeft }
    #expect(first == 1 && second == 1 && left == d && co_deadline == nil)
    let interrupt: @Sendable () -> Void = { Issue.record("cancelled") }
    try co_onCancel(interrupt) { try co_yield() }
    try co_shield { try co_yield() }
  }

  @Test func `sync and x`() throws {
    let (semaphore, key) = (FairSemaphore(10), "key")
    try semaphore.withPermit { try co_yield() }
    let flights = SingleFlight<String, Int>()
    let (value, isShared) = try flights.runShared(key) { 1 }
    #expect(value == 1 && !isShared)
    let limiter = RateLimiter(50, burst: 5)
    try limiter.acquire()
    let reservation = try limiter.reserve()
    try co_delay(until: reservation.instant)
    reservation.cancel()
    limiter.setRate(100)
    #expect(limiter.tokens == 3)
    let acquired = try co_select { limiter.onAcquire { true } }
    #expect(acquired)
  }
}
