@_spi(Hosting) import Coroutine
import Synchronization
import Testing

/// A coroutine of `host` that waits for `waiters`, and then tells `trace`.
private func launchWaiter(_ host: HostedScheduler, _ waiters: HostedWaiters, _ trace: Trace) -> Job<Void> {
  co_launch(on: host) {
    try HostedWaiters.begin()
    try waiters.wait()
    trace("woken")
  }
}

@Suite("A host that runs what it wakes", .timeLimit(.minutes(10)))
struct HostedWakeTests {
  /// Calls `body` on the loop's thread, in calls of their own, until it returns a value.
  private func call<Value: Sendable>(_ loop: Loop, _ body: @escaping @Sendable () -> Value?) async throws -> Value {
    let result = Promise<Value>()
    @Sendable func attempt() {
      if let value = body() { result.fulfill(value) } else { loop.execute(attempt) }
    }
    loop.execute(attempt)
    return try await result.value
  }

  @Test func `the coroutine runs within the call`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let (waiters, trace) = (HostedWaiters(), Trace())
    let job = launchWaiter(host, waiters, trace)
    // False while the drain of the launch is submitted.
    let seen = try await call(loop) {
      if waiters.isEmpty || !host.drain.run(waking: waiters) { return nil as [String]? }
      return trace.all
    }
    #expect(seen == ["woken"])
    try await job.value
  }

  @Test func `nothing is woken while a drain is submitted, and the next call wakes`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let (waiters, trace) = (HostedWaiters(), Trace())
    let job = launchWaiter(host, waiters, trace)
    let hasRun = Flag()
    let seen = try await call(loop) {
      if waiters.isEmpty { return nil as (Bool, Bool, Bool)? }
      // It submits a drain, unless one is submitted already.
      co_launch(on: host) { hasRun.raise() }
      return (host.drain.run(waking: waiters), waiters.isEmpty, hasRun.isRaised)
    }
    #expect(seen == (false, false, false))
    _ = try await call(loop) { host.drain.run(waking: waiters) ? true : nil }
    try await job.value
    #expect(hasRun.isRaised)
  }

  @Test func `nothing is woken by a coroutine`() async throws {
    let loop = Loop()
    let host = HostedScheduler(loop)
    let (waiters, trace) = (HostedWaiters(), Trace())
    let job = launchWaiter(host, waiters, trace)
    try await co_launch(on: host) {
      while waiters.isEmpty { try co_yield() }
      #expect(!host.drain.run(waking: waiters))
      #expect(!waiters.isEmpty)
      waiters.wakeAll()
    }.value
    try await job.value
  }
}
