import Coroutine
import Testing

@Suite("Promise: cancelling", .timeLimit(.minutes(10)))
struct CancellingTests {
  @Test func `cancel rejects, calls onCancel once, and does not affect a settled promise`() {
    let trace = Trace()
    let kept = Locked<Resumer<Int>?>(nil)
    let promise = Promise<Int>(onCancel: { trace("cancelled") }, { kept.current = $0 })
    promise.cancel()
    promise.cancel()
    #expect(promise.result.map { outcome($0) } == "CancellationError")
    #expect(trace.all == ["cancelled"])
    kept.current?.resume(1)
    #expect(promise.result.map { outcome($0) } == "CancellationError")

    let settled = Promise<Int>(onCancel: { trace("never") }, { $0.resume(1) })
    settled.cancel()
    #expect(settled.result.map { outcome($0) } == "1")
    #expect(trace.all == ["cancelled"])
  }

  @Test func `onCancel is released at settlement, in every case`() async throws {
    for how in 0..<4 {
      let released = Gate()
      let kept = Locked<Resumer<Int>?>(nil)
      let promise = Self.promise(Tracked { released.open() }, kept)
      switch how {
      case 0: kept.current?.resume(1)
      case 1: promise.fulfill(1)
      case 2: promise.reject(Oops("x"))
      default: promise.cancel()
      }
      try await onCoroutine { try released.pass() }
      promise.ignore()
      kept.current = nil
    }
  }

  private static func promise(_ held: Tracked, _ kept: Locked<Resumer<Int>?>) -> Promise<Int> {
    Promise(onCancel: { held.use() }, { kept.current = $0 })
  }

  @Test func `cancelling the only link reaches the work through any number of links`() {
    let (promise, trace, kept) = Self.work("work")
    let tail = promise.then { $0 + 1 }.recover { _ -> Int in 0 }.tap { _ in }.then { Promise.value($0) }
    tail.cancel()
    #expect(tail.result.map { outcome($0) } == "CancellationError")
    #expect(promise.result.map { outcome($0) } == "CancellationError")
    #expect(trace.all == ["work"])
    withExtendedLifetime(kept) {}
  }

  private static func work(_ name: String, _ trace: Trace = Trace()) -> (Promise<Int>, Trace, Locked<Resumer<Int>?>) {
    let kept = Locked<Resumer<Int>?>(nil)
    return (Promise(onCancel: { trace(name) }, { kept.current = $0 }), trace, kept)
  }

  @Test func `with two consumers the work is cancelled when the last of them is cancelled`() {
    let (promise, trace, kept) = Self.work("work")
    let (one, two) = (promise.then { $0 }, promise.then { $0 })
    one.cancel()
    #expect(promise.isPending && two.isPending && trace.all.isEmpty)
    two.cancel()
    #expect(promise.isRejected && trace.all == ["work"])
    withExtendedLifetime(kept) {}
  }

  @Test func `a waiting coroutine, a terminal handler and an observer are consumers`() async throws {
    let (promise, trace, kept) = Self.work("work")
    try await onSerialQueue {
      let waiter = co_launch { try co_await(promise) }
      try co_yield()
      promise.then { $0 }.cancel()
      #expect(trace.all.isEmpty)
      promise.fulfill(3)
      #expect(try waiter.join() == 3)
    }
    let (second, secondTrace, secondKept) = Self.work("work")
    second.catch { _ in }
    second.then { $0 }.cancel()
    #expect(secondTrace.all.isEmpty && second.isPending)
    let observation = second.observe { _ in }
    observation.cancel()
    second.fulfill(1)
    withExtendedLifetime((kept, secondKept)) {}
  }

  @Test func `cancelling reaches the members of a combinator, except those with other waiters`() {
    let trace = Trace()
    let works = (0..<3).map { Self.work("\($0)", trace) }
    let shared = works[1].0.then { $0 }
    let sum = Promise.all(works.map(\.0)).then { $0.reduce(0, +) }
    sum.cancel()
    #expect(trace.all == ["0", "2"])
    #expect(works[1].0.isPending)
    works[1].0.fulfill(1)
    withExtendedLifetime((works, shared)) {}
  }

  @Test func `cancelling reaches through nested combinators and every kind of them`() {
    let trace = Trace()
    let works = (0..<8).map { Self.work("\($0)", trace) }
    let p = works.map(\.0)
    let nested = Promise.any([
      Promise.race([p[0], p[1].then { $0 }]), (p[2] &&& p[3]).then { $0.0 }, p[4] ||| p[5],
      Promise.allSettled([p[6]]).then { $0.count }, Promise.all(["k": p[7]]).then { $0.count },
    ])
    nested.cancel()
    #expect(trace.all.sorted() == (0..<8).map { "\($0)" })
    withExtendedLifetime(works) {}
  }

  @Test func `cancelling reaches a promise that is followed, and one that a handler has returned`() async throws {
    let (followed, trace, kept) = Self.work("followed")
    let follower = Promise<Int>()
    follower.follow(followed)
    follower.cancel()
    #expect(followed.isRejected && trace.all == ["followed"])

    let (inner, innerTrace, innerKept) = Self.work("inner")
    try await onSerialQueue {
      let entered = Gate()
      let last = Promise.value(1)
        .then { _ -> Promise<Int> in
          entered.open()
          return inner
        }
        .then { $0 }
      // On a serial queue the handler has returned when this goes on.
      try entered.pass()
      last.cancel()
    }
    #expect(inner.isRejected && innerTrace.all == ["inner"])
    withExtendedLifetime((kept, innerKept)) {}
  }

  @Test func `cancelling never masks an earlier failure, also if its handler has not run yet`() async throws {
    let rejected = Promise<Int>()
    rejected.reject(Oops("first"))
    rejected.cancel()
    #expect(rejected.result.map { outcome($0) } == "Oops(first)")
    rejected.ignore()

    try await onSerialQueue {
      let promise = Promise<Int>()
      let tapped = promise.tap { _ in }
      let recovered = promise.recover { _ -> Int in 1 }
      promise.reject(Oops("first"))
      tapped.cancel()
      recovered.cancel()
      #expect(outcome { try co_await(tapped) } == "Oops(first)")
      #expect(outcome { try co_await(recovered) } == "Oops(first)")
    }
  }

  @Test func `cancelling a promise rejects its waiters`() async {
    let promise = Promise<Int>()
    let other = Promise<Int>()
    let all = Promise.all([promise, other])
    promise.cancel()
    #expect(await asyncOutcome { try await all.value } == "CancellationError")
  }

  @Test func `a late callback of cancelled work is not reported`() async throws {
    let errors = UnhandledErrors()
    let (promise, _, kept) = Self.work("work")
    promise.then { $0 }.cancel()
    kept.current?.fail(errors.failure("late"))
    kept.current = nil
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `an awaiting task is cancelled at once, and leaves a promise without work pending`() async {
    let promise = Promise<Int>()
    let task = Task { try await promise.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(promise.isPending)
    promise.fulfill(2)
    #expect(await asyncOutcome { try await promise.value } == "2")
  }

  @Test func `onCancel may do anything: settle, cancel and wait for other promises`() async throws {
    let other = Promise<Int>()
    let kept = Locked<Resumer<Int>?>(nil)
    let promise = Promise<Int>(onCancel: { other.fulfill(1) }, { kept.current = $0 })
    let chain = promise.then { $0 }
    let both = Promise.all([chain, other])
    both.cancel()
    #expect(other.result != nil)
    kept.current = nil
  }
}
