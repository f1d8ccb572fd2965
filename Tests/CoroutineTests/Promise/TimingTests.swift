import Coroutine
import CoroutineTesting
import Dispatch
import Testing

@Suite("Promise: after, delay, timeout, retry", .timeLimit(.minutes(10)))
struct TimingTests {
  // Made outside of worlds, a promise's timer is one of a scheduler of production.
  @Test(.tags(.realClock)) func `on the real clock after, delay and pauses of retry are never early`() async throws {
    func isEarly(_ least: Duration, _ body: () async -> Void) async -> Bool {
      await ContinuousClock().measure(body) < least
    }
    #expect(await !isEarly(.milliseconds(20)) { _ = try? await Promise.after(.milliseconds(20)).value })
    #expect(await !isEarly(.milliseconds(20)) { _ = try? await Promise.value(1).delay(.milliseconds(20)).value })
    let retried = {
      _ = try? await Promise<Int>.retry(attempts: 3, delay: .constant(.milliseconds(5))) { _ in .failure(Oops()) }.value
    }
    #expect(await !isEarly(.milliseconds(10), retried))
    let late = Promise<Int>()
    #expect(await !isEarly(.milliseconds(5)) { _ = try? await late.timeout(.milliseconds(5)).value })
    // The timer's thread rejects it after the timeout: who comes to wait between the two has the error before that.
    while late.isPending, !Task.isCancelled { await Task.yield() }
    #expect(late.isRejected)
  }

  @Test(.inWorlds)
  func `after and delay are never early, in a world never late, and a failure is not delayed`() throws {
    try co_await(Promise.after(.nanoseconds(20_000_001)))
    #expect(worldTime == .nanoseconds(20_000_001))
    #expect(try co_await(Promise.value(1).delay(.milliseconds(20))) == 1)
    #expect(worldTime == .nanoseconds(40_000_001))
    #expect(outcome { try co_await(Promise<Int>.failure(Oops("x")).delay(.seconds(3600))) } == "Oops(x)")
    #expect(worldTime == .nanoseconds(40_000_001))
  }

  @Test(.inWorlds) func `cancelling after ends it at once`() throws {
    let after = Promise.after(.seconds(3600))
    after.cancel()
    #expect(outcome { try co_await(after) } == "CancellationError")
    #expect(worldTime == .zero)
  }

  @Test(.inWorlds) func `a timeout is a TimeoutError and cancels the work, unless it has other waiters`() throws {
    let cancelled = Gate()
    let kept = Locked<[Resumer<Int>]>([])
    let alone = Promise<Int>(onCancel: { cancelled.open() }, { done in kept.withLock { $0.append(done) } })
    #expect(outcome { try co_await(alone.timeout(.milliseconds(5))) } == "TimeoutError")
    #expect(worldTime == .milliseconds(5))
    // After the waiters have been woken.
    try cancelled.pass()
    #expect(alone.result.map { outcome($0) } == "CancellationError")
    let shared = Promise<Int>()
    let other = shared.then { $0 }
    #expect(outcome { try co_await(shared.timeout(.milliseconds(5))) } == "TimeoutError")
    #expect(worldTime == .milliseconds(10))
    #expect(shared.fulfill(1))
    #expect(outcome { try co_await(other) } == "1")
    let late = Promise<Int>()
    #expect(outcome { try co_await(late.timeout(.zero)) } == "TimeoutError")
    #expect(late.isRejected)
    kept.current = []
  }

  @Test(.inWorlds) func `a timeout that is not reached changes nothing, and its timer keeps nothing`() throws {
    let released = Gate()
    try Self.timed(Tracked { released.open() })
    try released.pass()
    #expect(worldTime == .zero)
  }

  private static func timed(_ held: Tracked) throws {
    let promise = Promise<Tracked>()
    let timed = promise.timeout(.seconds(3600))
    promise.fulfill(held)
    try co_await(timed).use()
  }

  @Test(.inWorlds) func `retry ends with the first success, and passes the number of the attempt`() throws {
    let trace = Trace()
    let promise = Promise<Int>.retry(attempts: 5) { attempt in
      trace("\(attempt)")
      return attempt < 3 ? .failure(Oops("\(attempt)")) : .value(attempt)
    }
    #expect(outcome { try co_await(promise) } == "3")
    #expect(trace.all == ["1", "2", "3"])
  }

  @Test(.inWorlds) func `retry waits between attempts as specified, and ends with the last failure`() throws {
    let trace = Trace()
    let pause = Backoff { failed in
      trace("pause \(failed)")
      return .milliseconds(5 * failed)
    }
    let world = World.current!
    let promise = Promise<Int>.retry(attempts: 3, delay: pause) { attempt in
      trace("attempt \(attempt) at \(Int(world.now / .milliseconds(1)))")
      return .failure(Oops("\(attempt)"))
    }
    #expect(outcome { try co_await(promise) } == "Oops(3)")
    #expect(trace.all == ["attempt 1 at 0", "pause 1", "attempt 2 at 5", "pause 2", "attempt 3 at 15"])
    #expect(worldTime == .milliseconds(15))
  }

  @Test(.inWorlds) func `a retry under a timeout makes no attempt after it`() throws {
    let attempts = Trace()
    let retried = Promise<Int>.retry(attempts: 100, delay: .constant(.seconds(2))) { attempt in
      attempts("\(attempt)")
      return Promise.after(.seconds(1)).then { () throws -> Int in throw Oops() }
    }
    #expect(outcome { try co_await(retried.timeout(.milliseconds(6_500))) } == "TimeoutError")
    #expect(worldTime == .milliseconds(6_500))
    try co_delay(.seconds(3600))
    #expect(attempts.all == ["1", "2", "3"])
  }

  @Test(.inWorlds, arguments: [1, 5, 20]) func `a retry with scattered pauses waits no longer than their sum`(
    attempts: Int
  ) throws {
    let promise = Promise<Int>.retry(
      attempts: attempts,
      delay: .exponential(from: .milliseconds(10), limit: .milliseconds(55))
    ) { _ in .failure(Oops()) }
    #expect(outcome { try co_await(promise) } == "Oops()")
    let most = [10, 20, 40].prefix(attempts - 1).reduce(0, +) + max(0, attempts - 4) * 55
    #expect(worldTime >= .milliseconds(most) / 2 && worldTime <= .milliseconds(most))
  }

  @Test(.inWorlds) func `retry ends when the predicate is false, with no attempts, and when it is cancelled`() throws {
    let unlessOops: @Sendable (any Error) -> Bool = { !($0 is Oops) }
    let once = Promise<Int>.retry(attempts: 9, while: unlessOops) { .failure(Oops("\($0)")) }
    #expect(outcome { try co_await(once) } == "Oops(1)")
    #expect(outcome { try co_await(Promise<Int>.retry(attempts: 0) { _ in .value(1) }) } == "invalidCount")
    let work = Promise<Int>()
    let cancelled = Promise<Int>.retry(attempts: 9) { _ in work }
    cancelled.cancel()
    #expect(work.result.map { outcome($0) } == "CancellationError")
    #expect(outcome { try co_await(cancelled) } == "CancellationError")
  }

  @Test(.inWorlds) func `cancelling a retry prevents the decision about a failure, and ends a pause`() throws {
    let (queue, attempts, decided) = (taggedQueue("other"), Trace(), Trace())
    let work = Promise<Int>()
    let decide: @Sendable (any Error) -> Bool = { _ in
      decided("decided")
      return true
    }
    let retried = Promise<Int>.retry(attempts: 3, while: decide, on: queue) { attempt in
      attempts("\(attempt)")
      return work
    }
    // No other coroutine runs between the two, so the decision comes after both.
    work.reject(Oops("first"))
    retried.cancel()
    #expect(retried.result.map { outcome($0) } == "CancellationError")
    try settleWorld()
    #expect(attempts.all == ["1"] && decided.all.isEmpty)

    let pause = Backoff { _ in .seconds(3600) }
    let waiting = Promise<Int>.retry(attempts: 3, delay: pause, on: queue) { _ in .failure(Oops("second")) }
    try settleWorld()
    waiting.cancel()
    #expect(waiting.result.map { outcome($0) } == "CancellationError")
    #expect(worldTime == .zero)
  }

  @Test(.inWorlds) func `a retry that is settled directly makes no more attempts`() throws {
    let (attempts, work) = (Trace(), Promise<Int>())
    let retried = Promise<Int>.retry(attempts: 3) { attempt in
      attempts("\(attempt)")
      return work
    }
    #expect(retried.fulfill(5))
    work.reject(Oops("late"))
    try settleWorld()
    #expect(attempts.all == ["1"])
  }

  @Test func `an exponential back-off doubles, up to its limit, and scatters`() {
    let backoff = Backoff.exponential(from: .milliseconds(10), limit: .milliseconds(55))
    for (attempt, most) in [(1, 10), (2, 20), (3, 40), (4, 55), (400, 55)] {
      let pauses = (0..<50).map { _ in backoff.pause(after: attempt) }
      #expect(pauses.allSatisfy { $0 >= .milliseconds(most) / 2 && $0 <= .milliseconds(most) })
      #expect(Set(pauses).count > 1)
    }
  }
}
