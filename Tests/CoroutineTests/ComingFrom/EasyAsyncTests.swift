import Coroutine
import Dispatch
import Testing

/// One test for each promise that EasyAsync made, or broke; docs/coming-from/easyasync.md shows what is written here.
@Suite("Coming from EasyAsync", .timeLimit(.minutes(10)))
struct EasyAsyncTests {
  struct Other: Error {}

  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `resolve and reject: the reason is an error, the first settle wins`() async {
    let (promise, error) = (Promise<Int>(), Oops("reason"))
    #expect(promise.reject(error))
    #expect(!promise.fulfill(1))
    #expect(await outcomeOf(promise) == "Oops(reason)")
  }

  @Test func `a body runs at once, with no main queue`() async {
    let trace = Trace()
    let promise = Promise<Int> { done in
      trace("body")
      done.resume(1)
    }
    #expect(trace.all == ["body"] && promise.isFulfilled)
  }

  @Test func `settled ones`() async {
    let error = Oops("x")
    #expect(Promise.value(1).isFulfilled)
    let failed = Promise<Int>.failure(error)
    #expect(failed.isRejected)
    failed.ignore()
  }

  @Test func `peeks: state, value, reason`() async {
    let promise = Promise<Int>()
    #expect(promise.isPending)
    promise.fulfill(1)
    #expect(try! promise.result?.get() == 1)
    let failed = Promise<Int>.failure(Oops("x"))
    #expect(failed.error as? Oops == Oops("x"))
    failed.ignore()
  }

  @Test func `handlers run under no lock: two that touch each other's promises end`() async throws {
    for _ in 0..<50 {
      let (one, two) = (Promise<Int>(), Promise<Int>())
      let (first, second) = (Promise<Bool>(), Promise<Bool>())
      one.then { _ in first.fulfill(two.then { $0 } !== two) }.ignore()
      two.then { _ in second.fulfill(one.then { $0 } !== one) }.ignore()
      async let left = onOwnThread { one.fulfill(1) }
      async let right = onOwnThread { two.fulfill(2) }
      let settled = [try await left, try await right]
      #expect(settled == [true, true])
      for handled in [first, second] { #expect(try await handled.value) }
    }
  }

  @Test func `then maps, and a failure passes`() async {
    let promise = Promise.value(1)
    #expect(await outcomeOf(promise.then { $0 + 1 }) == "2")
    #expect(await outcomeOf(promise.then { _ -> Int in throw Oops("t") }.then { $0 + 1 }) == "Oops(t)")
  }

  @Test func `then with a promise`() async {
    let promise = Promise.value(1)
    #expect(await outcomeOf(promise.then { fetch($0) }) == "fetched 1")
  }

  @Test func `a terminal handler of one type reports what it does not match`() async throws {
    let errors = UnhandledErrors()
    Self.catchOops(errors.failure("unmatched"))
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["unmatched"])

    let (promise, caught) = (Promise<Int>.failure(Oops("x")), Promise<String>())
    promise.catch(only: Oops.self) { error in caught.fulfill(error.label) }
    #expect(await outcomeOf(caught) == "x")
  }

  @inline(never)
  private static func catchOops(_ error: any Error) {
    Promise<Int>.failure(error).catch(only: Oops.self) { _ in Issue.record("it is no Oops") }
  }

  @Test func `rescue by type: values and other errors pass, the callee's fulfilment too`() async {
    let failed = Promise<Int>.failure(Oops("four"))
    #expect(await outcomeOf(failed.rescue { (error: Oops) in error.label.count }) == "4")
    #expect(await outcomeOf(failed.rescue { (_: Oops) in Promise.value(9) }) == "9")
    #expect(await outcomeOf(failed.rescue { (_: Other) in 5 }) == "Oops(four)")
    #expect(await outcomeOf(Promise.value(1).rescue { (_: Oops) in 5 }) == "1")
  }

  @Test func `anyway: ensure keeps the outcome, thenResult makes another of it`() async {
    let trace = Trace()
    let failed = Promise<Int>.failure(Oops("x"))
    #expect(await outcomeOf(failed.ensure { trace("anyway") }) == "Oops(x)")
    #expect(trace.all == ["anyway"])
    #expect(await outcomeOf(failed.thenResult { result in (try? result.get()) ?? 0 }) == "0")
    #expect(await outcomeOf(Promise.value(1).thenResult { result in try result.get() + 1 }) == "2")
    #expect(await outcomeOf(failed.thenResult { _ in fetch(5) }) == "fetched 5")
    #expect(await outcomeOf(failed.thenResult { result in try result.get() + 1 }) == "Oops(x)")
  }

  private func fetch(_ number: Int) -> Promise<String> { .value("fetched \(number)") }

  @Test func `chain(after:) is follow, which locks in; to itself it is a cycle`() async {
    let (promise, other) = (Promise<Int>(), Promise<Int>())
    promise.follow(other)
    #expect(!promise.fulfill(0))
    other.fulfill(1)
    #expect(await outcomeOf(promise) == "1")
    let itself = Promise<Int>()
    itself.follow(itself)
    #expect(await outcomeOf(itself) == "cycle")
  }

  @Test func `&&& has both values, and the first failure`() async {
    let (a, b) = (Promise<Int>(), Promise<String>())
    let both = a &&& b
    b.fulfill("b")
    a.fulfill(1)
    #expect(await outcomeOf(both) == "(1, \"b\")")
    #expect(await outcomeOf(Promise<Int>() &&& Promise<Int>.failure(Oops("x"))) == "Oops(x)")
  }

  @Test func `&&& carries a plain value along, on either side`() async {
    let (promise, value) = (Promise.value(1), "v")
    #expect(await outcomeOf(promise &&& value) == "(1, \"v\")")
    #expect(await outcomeOf(value &&& promise) == "(\"v\", 1)")
  }

  @Test func `||| has the first value, of one type or of two, and both failures`() async throws {
    let (a, b) = (Promise<Int>(), Promise<Int>())
    let first = a ||| b
    b.fulfill(2)
    #expect(await outcomeOf(first) == "2")
    a.fulfill(1)
    let (number, text) = (Promise<Int>(), Promise<String>())
    let either: Promise<AnyPromise.Either<Int, String>> = number ||| text
    text.fulfill("t")
    #expect(try await either.value == .second("t"))
    number.cancel()
    let (c, d) = (Promise<Int>.failure(Oops("c")), Promise<String>.failure(Oops("d")))
    #expect(await outcomeOf(c ||| d) == "AggregateError[Oops(c), Oops(d)]")
  }

  @Test func `grouping needs no operator: all of several types`() async {
    let (a, b, c) = (Promise.value(1), Promise.value("b"), Promise.value(2.5))
    #expect(await outcomeOf(Promise.all(a, b, c)) == "(1, \"b\", 2.5)")
  }

  @Test func `discard: the block once, no-op when settled, released at settle`() async throws {
    let (trace, released) = (Trace(), Gate())
    let (promise, resolver) = Self.discardable(trace, Tracked { released.open() })
    promise.cancel()
    promise.cancel()
    #expect(trace.all == ["discarded"])
    resolver.resume(1)
    #expect(await outcomeOf(promise) == "CancellationError")
    try await released.value
    promise.ignore()
  }

  private static func discardable(_ trace: Trace, _ held: Tracked) -> (promise: Promise<Int>, resolver: Resumer<Int>) {
    Promise<Int>.pending(onCancel: {
      trace("discarded")
      held.use()
    })
  }

  @Test func `discarding what is derived reaches the source, when nobody else wants it`() async {
    let trace = Trace()
    let (source, resolver) = Promise<Int>.pending(onCancel: { trace("stopped") })
    let (one, two) = (source.then { $0 }, source.then { $0 })
    one.cancel()
    #expect(trace.all.isEmpty)
    two.cancel()
    #expect(trace.all == ["stopped"] && source.isRejected)
    withExtendedLifetime(resolver) {}
  }

  @Test func `the reason is one type for all`() async {
    let promise = Promise<Int>()
    let text = promise.then { "\($0)" }.rescue { (_: CancellationError) in "cancelled" }
    promise.cancel()
    #expect(await outcomeOf(text) == "cancelled")
  }

  @Test func `handlers are dropped at settlement: a cycle through one ends`() async throws {
    let released = Gate()
    Self.cycle(Tracked { released.open() })
    try await released.value
  }

  @inline(never)
  private static func cycle(_ held: Tracked) {
    let promise = Promise<Int>()
    promise.then { value in
      held.use()
      _ = promise.isSettled
    }
    .ignore()
    promise.fulfill(1)
  }
}
