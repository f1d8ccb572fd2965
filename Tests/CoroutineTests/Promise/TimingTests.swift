import Coroutine
import Dispatch
import Testing

@Suite("Promise: after, delay, timeout, retry", .timeLimit(.minutes(1)))
struct TimingTests {
  private func elapsed(_ body: () async throws -> Void) async rethrows -> Duration {
    try await ContinuousClock().measure { try await body() }
  }

  @Test func `after and delay are never early, and a failure is not delayed`() async throws {
    let after = try await elapsed { try await Promise.after(.milliseconds(20)).value }
    #expect(after >= .milliseconds(20))
    let delay = try await elapsed { _ = try await Promise.value(1).delay(.milliseconds(20)).value }
    #expect(delay >= .milliseconds(20))
    #expect(
      await asyncOutcome { try await Promise<Int>.failure(Oops("x")).delay(.seconds(3600)).value } == "Oops(x)"
    )
  }

  @Test func `cancelling after ends it at once`() async {
    let after = Promise.after(.seconds(3600))
    after.cancel()
    #expect(await asyncOutcome { try await after.value } == "CancellationError")
  }

  @Test func `a timeout is a TimeoutError and cancels the work, unless it has other waiters`() async throws {
    let cancelled = Gate()
    let kept = Locked<[Resumer<Int>]>([])
    let alone = Promise<Int>(onCancel: { cancelled.open() }, { done in kept.withLock { $0.append(done) } })
    #expect(await asyncOutcome { try await alone.timeout(.milliseconds(5)).value } == "TimeoutError")
    // On the timer's thread, after the waiters have been woken.
    try await cancelled.value
    #expect(alone.result.map { outcome($0) } == "CancellationError")
    let shared = Promise<Int>()
    let other = shared.then { $0 }
    #expect(await asyncOutcome { try await shared.timeout(.milliseconds(5)).value } == "TimeoutError")
    #expect(shared.fulfill(1))
    #expect(await asyncOutcome { try await other.value } == "1")
    let late = Promise<Int>()
    #expect(await asyncOutcome { try await late.timeout(.zero).value } == "TimeoutError")
    #expect(late.isRejected)
    kept.current = []
  }

  @Test func `a timeout that is not reached changes nothing, and its timer keeps nothing`() async throws {
    let released = Gate()
    try await Self.timed(Tracked { released.open() })
    try await onCoroutine { try released.pass() }
  }

  private static func timed(_ held: Tracked) async throws {
    let promise = Promise<Tracked>()
    let timed = promise.timeout(.seconds(3600))
    promise.fulfill(held)
    try await timed.value.use()
  }

  @Test func `retry ends with the first success, and passes the number of the attempt`() async {
    let trace = Trace()
    let promise = Promise<Int>.retry(attempts: 5) { attempt in
      trace("\(attempt)")
      return attempt < 3 ? .failure(Oops("\(attempt)")) : .value(attempt)
    }
    #expect(await asyncOutcome { try await promise.value } == "3")
    #expect(trace.all == ["1", "2", "3"])
  }

  @Test func `retry waits between attempts as specified, and ends with the last failure`() async {
    let trace = Trace()
    let time = await elapsed {
      let pause = Backoff { failed in
        trace("pause \(failed)")
        return .milliseconds(5 * failed)
      }
      let promise = Promise<Int>.retry(attempts: 3, delay: pause) { .failure(Oops("\($0)")) }
      #expect(await asyncOutcome { try await promise.value } == "Oops(3)")
    }
    #expect(trace.all == ["pause 1", "pause 2"])
    #expect(time >= .milliseconds(15))
  }

  @Test func `retry ends when the predicate is false, with no attempts, and when it is cancelled`() async {
    let unlessOops: @Sendable (any Error) -> Bool = { !($0 is Oops) }
    let once = Promise<Int>.retry(attempts: 9, while: unlessOops) { .failure(Oops("\($0)")) }
    #expect(await asyncOutcome { try await once.value } == "Oops(1)")
    #expect(await asyncOutcome { try await Promise<Int>.retry(attempts: 0) { _ in .value(1) }.value } == "InvalidCount")
    let work = Promise<Int>()
    let cancelled = Promise<Int>.retry(attempts: 9) { _ in work }
    cancelled.cancel()
    #expect(work.result.map { outcome($0) } == "CancellationError")
    #expect(await asyncOutcome { try await cancelled.value } == "CancellationError")
  }

  @Test func `cancelling a retry does not mask a failure before its decision, and ends a pause`()
    async throws
  {
    let (queue, attempts, decided) = (taggedQueue("held"), Trace(), Trace())
    let work = Promise<Int>()
    queue.suspend()
    let decide: @Sendable (any Error) -> Bool = { _ in
      decided("decided")
      return true
    }
    let retried = Promise<Int>.retry(attempts: 3, while: decide, on: queue) { attempt in
      attempts("\(attempt)")
      return work
    }
    work.reject(Oops("first"))
    retried.cancel()
    #expect(retried.result.map { outcome($0) } == "Oops(first)")
    queue.resume()
    try await onBlock(of: queue) {}
    #expect(attempts.all == ["1"] && decided.all.isEmpty)

    let paused = Gate()
    let pause = Backoff { _ in
      paused.open()
      return .seconds(3600)
    }
    let waiting = Promise<Int>.retry(attempts: 3, delay: pause, on: queue) { _ in .failure(Oops("second")) }
    try await paused.value
    try await onBlock(of: queue) {}
    waiting.cancel()
    #expect(waiting.result.map { outcome($0) } == "CancellationError")
  }

  @Test func `a retry that is settled directly makes no more attempts`() async throws {
    let (queue, attempts, work) = (taggedQueue("by hand"), Trace(), Promise<Int>())
    let retried = Promise<Int>.retry(attempts: 3, on: queue) { attempt in
      attempts("\(attempt)")
      return work
    }
    #expect(retried.fulfill(5))
    work.reject(Oops("late"))
    for _ in 0..<3 { try await onBlock(of: queue) {} }
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
