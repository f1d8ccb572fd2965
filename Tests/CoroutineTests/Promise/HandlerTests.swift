import Coroutine
import Dispatch
import Testing

@Suite("Promise: recover, rescue, tap, ensure, finally", .timeLimit(.minutes(10)))
struct HandlerTests {
  struct Other: Error {}

  @Test func `recover continues with a value, throws another error, and passes values on`() async {
    let failed = Promise<Int>.failure(Oops("a"))
    #expect(await asyncOutcome { try await failed.recover { _ -> Int in 7 }.value } == "7")
    #expect(await asyncOutcome { try await failed.recover { _ -> Int in throw Oops("b") }.value } == "Oops(b)")
    #expect(await asyncOutcome { try await Promise.value(1).recover { _ -> Int in 7 }.value } == "1")
  }

  @Test func `recover continues with a promise`() async {
    let inner = Promise<Int>()
    let recovered = Promise<Int>.failure(Oops("a")).recover { _ in inner }
    inner.fulfill(8)
    #expect(await asyncOutcome { try await recovered.value } == "8")
  }

  @Test func `recover handles a cancellation too`() async {
    let promise = Promise<Int>()
    let recovered = promise.recover { error in error is CancellationError ? 1 : 2 }
    promise.cancel()
    #expect(await asyncOutcome { try await recovered.value } == "1")
  }

  @Test func `rescue handles its type; values and other errors pass untouched`() async {
    let rescue: @Sendable (Oops) throws -> Int = { $0.label.count }
    #expect(await asyncOutcome { try await Promise<Int>.failure(Oops("four")).rescue(rescue).value } == "4")
    #expect(await asyncOutcome { try await Promise<Int>.failure(Other()).rescue(rescue).value } == "Other")
    #expect(await asyncOutcome { try await Promise.value(9).rescue(rescue).value } == "9")
    #expect(
      await asyncOutcome {
        try await Promise<Int>.failure(Oops("x")).rescue { (_: Oops) in Promise.value(3) }.value
      } == "3"
    )
  }

  @Test func `of several rescues the first match handles the error, the others pass its value on`() async {
    let trace = Trace()
    let chain = Promise<Int>.failure(Oops("x"))
      .rescue { (_: Other) -> Int in
        trace("other")
        return 1
      }
      .rescue { (_: Oops) -> Int in
        trace("oops")
        return 2
      }
      .recover { _ -> Int in
        trace("any")
        return 3
      }
    #expect(await asyncOutcome { try await chain.value } == "2")
    #expect(trace.all == ["oops"])
  }

  @Test func `tap sees either outcome and does not change it`() async {
    let trace = Trace()
    let good = Promise.value(1).tap { trace(outcome($0)) }
    #expect(await asyncOutcome { try await good.value } == "1")
    let bad = Promise<Int>.failure(Oops("x")).tap { trace(outcome($0)) }
    #expect(await asyncOutcome { try await bad.value } == "Oops(x)")
    #expect(trace.all == ["1", "Oops(x)"])
  }

  @Test func `ensure runs on either outcome, before the waiters, and does not change it`() async {
    let trace = Trace()
    let good = Promise.value(1).ensure { trace("good") }
    #expect(await asyncOutcome { try await good.value } == "1")
    let bad = Promise<Int>.failure(Oops("x")).ensure { trace("bad") }
    #expect(await asyncOutcome { try await bad.value } == "Oops(x)")
    #expect(trace.all == ["good", "bad"])
  }

  @Test func `ensureThen passes the outcome on when the promise of its body has settled`() async throws {
    try await onSerialQueue {
      let (entered, cleanup) = (Gate(), Gate())
      let cleaned = Promise.value(1).ensureThen {
        entered.open()
        return cleanup
      }
      try entered.pass()
      for _ in 0..<3 { try co_yield() }
      #expect(cleaned.result == nil)
      cleanup.open()
      #expect(try co_await(cleaned) == 1)
    }
  }

  @Test func `a failing cleanup is reported and changes nothing`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("cleanup")
    let good = Promise.value(1).ensureThen { Promise<Void>.failure(failure) }
    let bad = Promise<Int>.failure(Oops("first")).ensureThen { Promise<Void>.failure(failure) }
    #expect(await asyncOutcome { try await good.value } == "1")
    #expect(await asyncOutcome { try await bad.value } == "Oops(first)")
    _ = try await errors.jobs(count: 2)
    #expect(try await errors.settledLabels() == ["cleanup", "cleanup"])
  }

  @Test func `ensure and tap run once when their own link is cancelled, with the cancellation`() async throws {
    let trace = Trace()
    let (done, tapped) = (Gate(), Gate())
    let (first, second) = (Promise<Int>(), Promise<Int>())
    let ensured = first.ensure {
      trace("ensure")
      done.open()
    }
    let observed = second.tap {
      trace(outcome($0))
      tapped.open()
    }
    ensured.cancel()
    observed.cancel()
    #expect(ensured.result.map { outcome($0) } == "CancellationError")
    #expect(first.result.map { outcome($0) } == "CancellationError")
    try await onCoroutine {
      try done.pass()
      try tapped.pass()
    }
    #expect(Set(trace.all) == ["ensure", "CancellationError"] && trace.count == 2)
  }

  @Test func `finally runs after the catch handler, also if there was nothing to catch`() async throws {
    let trace = Trace()
    let (failed, fulfilled) = (Gate(), Gate())
    Promise<Int>.failure(Oops("x"))
      .catch { _ in trace("catch") }
      .finally {
        trace("finally")
        failed.open()
      }
    try await onCoroutine { try failed.pass() }
    Promise.value(1).catch { _ in trace("never") }.finally { fulfilled.open() }
    try await onCoroutine { try fulfilled.pass() }
    #expect(trace.all == ["catch", "finally"])
  }

  @Test func `get observes the value and passes it on; its throw rejects`() async {
    let trace = Trace()
    #expect(await asyncOutcome { try await Promise.value(1).get { trace("\($0)") }.value } == "1")
    #expect(await asyncOutcome { try await Promise.value(1).get { _ in throw Oops("get") }.value } == "Oops(get)")
    #expect(trace.all == ["1"])
    #expect(await asyncOutcome { try await Promise.value(1).asVoid().value } == "()")
  }

  @Test func `a handler's closure is released when it has run, and when it never will`() async throws {
    let (ran, skipped, cancelled) = (Gate(), Gate(), Gate())
    let first = Self.then(Promise.value(1), Tracked { ran.open() })
    let second = Self.then(Promise.failure(Oops("x")), Tracked { skipped.open() })
    let third = Self.then(Promise(), Tracked { cancelled.open() })
    third.cancel()
    try await onCoroutine {
      try ran.pass()
      try skipped.pass()
      try cancelled.pass()
    }
    second.ignore()
    withExtendedLifetime((first, second, third)) {}
  }

  private static func then(_ promise: Promise<Int>, _ held: Tracked) -> Promise<Int> {
    promise.then { value -> Int in
      held.use()
      return value
    }
  }

  @Test func `a handler that is attached late does not overtake those that another thread has sent`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      let first = promise.then { _ in trace("first") }
      // Blocks the queue's thread, so that the other thread's messages stay in the inbox.
      let settled = DispatchSemaphore(value: 0)
      startThread {
        promise.fulfill(1)
        settled.signal()
      }
      settled.wait()
      let second = promise.then { _ in trace("second") }
      try co_await(second)
      try co_await(first)
    }
    #expect(trace.all == ["first", "second"])
  }

  /// The first handler does not run: its release attaches the late one while the second has not been told.
  @Test func `a handler that is attached while others are told does not overtake them`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      Self.then(promise, Tracked { promise.recover { _ in Self.seen("late", trace) }.ignore() }).ignore()
      let second = promise.recover { _ in Self.seen("second", trace) }
      promise.reject(Oops())
      _ = try co_await(second)
      while trace.all.count < 2 { try co_yield() }
    }
    #expect(trace.all == ["second", "late"])
  }

  private static func seen(_ name: String, _ trace: Trace) -> Int {
    trace(name)
    return 0
  }

  @Test func `every function with a handler runs it on the queue given by on:`() async throws {
    let (queue, trace) = (taggedQueue("named"), Trace())
    let seen: @Sendable (String) -> Void = { trace("\($0) \(currentTag ?? "elsewhere")") }
    let value = Promise.value(1)
    let failed = Promise<Int>.failure(Oops())
    var ends: [AnyPromise] = [
      value.then(on: queue) { _ in seen("then") },
      value.then(on: queue) { (_: Int, done: Resumer<Int>) in
        seen("then")
        done.resume(1)
      },
      value.then(on: queue) {
        seen("then")
        return Promise.value($0)
      },
      value.thenResult(on: queue) { _ in seen("thenResult") },
      value.compactMap(on: queue) { _ in seen("compactMap") },
      Promise.value([1]).thenMap(on: queue) { (element: Int) -> Promise<Int> in
        seen("thenMap")
        return .value(element)
      },
      value.validate(on: queue) { _ in
        seen("validate")
        return true
      },
      failed.recover(on: queue) { _ -> Int in
        seen("recover")
        return 1
      },
      failed.rescue(on: queue) { (_: Oops) -> Int in
        seen("rescue")
        return 1
      },
      failed.rescue(only: Oops(), on: queue) { () -> Int in
        seen("rescue")
        return 1
      },
      failed.recovered(on: queue) { _ in
        seen("recovered")
        return 1
      }.promise,
      value.tap(on: queue) { _ in seen("tap") },
      value.get(on: queue) { _ in seen("get") },
      value.ensure(on: queue) { seen("ensure") },
      value.ensureThen(on: queue) {
        seen("ensureThen")
        return .value(())
      },
      Promise<Int>.running(on: queue) {
        seen("running")
        return 1
      },
    ]
    let caught = (Gate(), Gate(), Gate(), Gate())
    failed.catch(on: queue) { _ in
      seen("catch")
      caught.0.open()
    }.finally(on: queue) {
      seen("finally")
      caught.1.open()
    }
    failed.catch(only: Oops.self, on: queue) { _ in
      seen("catch")
      caught.2.open()
    }.finally(on: queue) {
      seen("finally")
      caught.3.open()
    }
    ends += [caught.0, caught.1, caught.2, caught.3]
    for end in ends { await until(end) }
    #expect(trace.count == 20 && trace.all.allSatisfy { $0.hasSuffix(" named") }, "\(trace.all)")
  }

  @Test func `a handler that a handler attaches stays on the same queue`() async {
    let queue = taggedQueue("handlers")
    let tag = Promise.value(1).then(on: queue) { _ in Promise.value(2).then { _ in currentTag ?? "none" } }
    #expect(await asyncOutcome { try await tag.value } == "handlers")
  }

  @Test func `a coroutine that only yields lets the handlers of its queue run`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      Promise.value(1).then { _ in trace("handler") }.ignore()
      try co_yield()
      trace("after the yield")
    }
    #expect(trace.all == ["handler", "after the yield"])
  }

  @Test func `a queue is released when its bound handlers have run or were dropped, on any thread`() async throws {
    for isDropped in [true, false] {
      let released = Gate()
      let head = Promise<Int>()
      let link = Locked<Promise<Int>?>(try await Self.linkOnQueue(to: head, Tracked { released.open() }))
      if isDropped {
        link.current?.cancel()
        link.current?.ignore()
        startThread { link.current = nil }
      } else {
        head.fulfill(1)
        _ = await asyncOutcome { try await link.current!.value }
      }
      try await released.value
      link.current = nil
    }
  }

  private static let tracked = DispatchSpecificKey<Tracked>()

  /// A link whose handler is bound to an otherwise unreferenced queue, and that releases `held` at its own end.
  private static func linkOnQueue(to head: Promise<Int>, _ held: Tracked) async throws -> Promise<Int> {
    let queue = DispatchQueue(label: "coroutine.tests.dropped")
    queue.setSpecific(key: tracked, value: held)
    return try await co_launch(on: queue) { head.then { $0 + 1 } }.value
  }

  @Test func `a recover and a rescue whose body only throws need no annotation`() async {
    struct Wrapped: Error { let error: any Error }
    let failed = Promise<Int>.failure(Oops("inner"))
    let recovered = failed.recover { throw Wrapped(error: $0) }
    let rescued = failed.rescue { (_: Oops) in throw CancellationError() }
    await #expect(throws: Wrapped.self) { _ = try await recovered.value }
    await #expect(throws: CancellationError.self) { _ = try await rescued.value }
  }
}

/// Suspends until it has settled, with any outcome.
private func until(_ promise: AnyPromise) async {
  while promise.isPending { await Task.yield() }
}
