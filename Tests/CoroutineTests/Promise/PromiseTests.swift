import Coroutine
import Testing

@Suite("Promise: settling and awaiting", .timeLimit(.minutes(10)))
struct PromiseTests {
  @Test func `the first settle returns true, later ones return false and change nothing`() {
    let fulfilled = Promise<Int>()
    #expect(fulfilled.fulfill(1))
    #expect(!fulfilled.fulfill(2))
    #expect(!fulfilled.reject(Oops("late")))
    #expect(fulfilled.result.map { outcome($0) } == "1")

    let rejected = Promise<Int>()
    #expect(rejected.reject(Oops("first")))
    #expect(!rejected.reject(Oops("late")))
    #expect(!rejected.fulfill(2))
    #expect(rejected.result.map { outcome($0) } == "Oops(first)")
    rejected.catch { _ in }
  }

  @Test func `result is nil while it is pending`() {
    let promise = Promise<Int>()
    #expect(promise.result == nil)
    promise.fulfill(1)
    #expect(promise.result != nil)
  }

  @Test func `a promise created with an outcome is settled`() {
    #expect(Promise.value(3).result.map { outcome($0) } == "3")
    let failed = Promise<Int>.failure(Oops("made"))
    #expect(failed.result.map { outcome($0) } == "Oops(made)")
    #expect(!failed.fulfill(1))
    failed.catch { _ in }
  }

  @Test func `an error may be a value`() {
    let promise = Promise<Oops>()
    promise.fulfill(Oops("value"))
    #expect((try? promise.result?.get()) == Oops("value"))
  }

  @Test func `every waiter gets the value, before and after settling`() async throws {
    let seen = try await onSerialQueue {
      let promise = Promise<Int>()
      let early = (0..<50).map { _ in co_launch { try co_await(promise) } }
      try co_yield()
      promise.fulfill(6)
      let late = (0..<50).map { _ in co_launch { try co_await(promise) } }
      return Set(try (early + late).map { try $0.join() })
    }
    #expect(seen == [6])
  }

  @Test func `waiters are served first come, first served`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let gate = Gate()
      let jobs = (0..<5).map { n in
        co_launch {
          try gate.pass()
          trace("\(n)")
        }
      }
      try co_yield()
      gate.open()
      trace("opened")
      for job in jobs { try job.join() }
    }
    #expect(trace.all == ["opened", "0", "1", "2", "3", "4"])
  }

  // MARK: made with a body

  @Test func `the body runs at once`() {
    let trace = Trace()
    let promise = Promise<Int> { done in
      trace("body")
      done.resume(2)
    }
    trace("made")
    #expect(trace.all == ["body", "made"])
    #expect(promise.result.map { outcome($0) } == "2")
  }

  @Test func `an error of the body rejects, and the resumer settles once, by any convention`() {
    let thrown = Promise<Int> { _ in throw Oops("body") }
    let failed = Promise<Int> { done in
      done(nil, Oops("callback"))
      done(1, nil)
    }
    let invalid = Promise<Int> { done in done(nil, nil) }
    #expect(thrown.result.map { outcome($0) } == "Oops(body)")
    #expect(failed.result.map { outcome($0) } == "Oops(callback)")
    #expect(invalid.result.map { outcome($0) } == "invalidCallback")
    for promise in [thrown, failed, invalid] { promise.catch { _ in } }
  }

  @Test func `a resumer that settles later, on another thread, wakes the waiters`() async throws {
    let value = try await onCoroutine {
      try co_await(Promise<Int> { done in startThread { done.resume(4) } })
    }
    #expect(value == 4)
  }

  @Test func `a resumer released unused rejects`() async throws {
    let seen = try await onCoroutine { outcome { try co_await(Promise<Int> { _ in }) } }
    #expect(seen == "abandoned")
  }

  @Test func `its value is released with the promise`() async throws {
    let released = Gate()
    try await settleAndDrop(Tracked { released.open() })
    try await onCoroutine { try released.pass() }
  }

  private func settleAndDrop(_ object: Tracked) async throws {
    let promise = Promise<Tracked>()
    promise.fulfill(object)
    _ = try await onCoroutine { try co_await(promise) }
  }
}
