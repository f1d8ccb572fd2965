import Coroutine
import Dispatch
import Testing

/// One test for each promise that PromiseKit made, or broke: making, settling, chains.
///
/// docs/coming-from/promisekit.md shows what is written here.
@Suite("Coming from PromiseKit: making and chaining", .timeLimit(.minutes(10)))
struct PromiseKitTests {
  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `Promise and Guarantee: the same chain, with and without an error path`() async throws {
    let guarantee = Guarantee<Int> { done in done(1) }
    #expect(try await guarantee.then { $0 + 1 }.value == 2)
    #expect(await outcomeOf(guarantee.promise.then { _ -> Int in throw Oops("from here on") }) == "Oops(from here on)")
    #expect(try await guarantee.promise.value == 1)
  }

  @Test func `value, empty, error, and bridged from another`() async {
    let error = Oops("x")
    #expect(Promise.value(1).isFulfilled && Promise<Int>().isPending)
    #expect(await outcomeOf(Promise<Int>.failure(error)) == "Oops(x)")
    let (promise, thenable) = (Promise<Int>(), Promise.value(1))
    promise.follow(thenable)
    #expect(await outcomeOf(promise) == "1")
  }

  @Test func `the body with a seal runs at once; its throw rejects if still open`() async {
    let promise = Promise<Int> { seal in seal.resume(1) }
    #expect(promise.isFulfilled)
    let both = Promise<Int> { seal in
      seal.resume(1)
      throw Oops("late")
    }
    #expect(await outcomeOf(both) == "1")
  }

  @Test func `pending gives the promise and what settles it`() async {
    let (promise, resolver) = Promise<Int>.pending()
    #expect(promise.isPending)
    resolver.resume(1)
    #expect(await outcomeOf(promise) == "1")
  }

  @Test func `resolver: every shape of callback; an error wins, neither is invalid, later ones do nothing`() async {
    let error = Oops("e")
    let results = Promise<Int>.fromResultCallback { done in done(Result<Int, Oops>.success(1)) }
    #expect(await outcomeOf(results) == "1")
    #expect(await outcomeOf(Promise<Int>.fromCallback { done in done(1, nil) }) == "1")
    #expect(await outcomeOf(Promise<Int>.fromCallback { done in done(1, error) }) == "Oops(e)")
    #expect(await outcomeOf(Promise<Int>.fromCallback { done in done(nil, nil) }) == "invalidCallback")
    #expect(await outcomeOf(Promise<Int>.fromErrorFirstCallback { done in done(nil, 1) }) == "1")
    #expect(await outcomeOf(Promise<Void>.fromErrorCallback { done in done(nil) }) == "()")
    #expect(await outcomeOf(Promise<Int>.fromValueCallback { done in done(1) }) == "1")
    #expect(await outcomeOf(Promise<Void>.fromPlainCallback { done in done() }) == "()")
    #expect(await outcomeOf(Promise<Int>.fromErrnoCallback { done in done(42) }) == "42")
    #expect(await outcomeOf(Promise<Int>.fromErrnoCallback { done in done(-2) }) == "ErrnoError")
    #expect("\(ErrnoError(2))" == "No such file or directory (error number 2)")
  }

  @Test func `a resolver that is gone unused rejects with abandoned`() async {
    let promise = Promise<Int>.pending().promise
    #expect(await outcomeOf(promise) == "abandoned")
  }

  @Test func `peeks and description`() async {
    let promise = Promise<Int>()
    #expect(promise.isPending && !promise.isSettled && "\(promise)" == "Promise<Int>(pending)")
    promise.fulfill(1)
    #expect(promise.isFulfilled && promise.isSettled && "\(promise)" == "Promise<Int>(fulfilled: 1)")
    let failed = Promise<Int>.failure(Oops("x"))
    #expect(failed.isRejected && failed.error != nil && failed.result != nil)
    #expect("\(failed)" == "Promise<Int>(rejected: Oops(label: \"x\"))")
    failed.ignore()
  }

  @Test func `handlers run where on says, else on the queue of the coroutine that attaches them`() async throws {
    let queue = taggedQueue("named")
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      let promise = Promise.value(1)
      return [
        try co_await(promise.then { _ in currentTag ?? "none" }),
        try co_await(promise.then(on: queue) { _ in currentTag ?? "none" }),
      ]
    }
    #expect(seen == ["home", "named"])
  }

  @Test func `then finds every cycle, direct or not`() async {
    let (start, box) = (Promise<Int>(), Locked<Promise<Int>?>(nil))
    let direct = start.then { _ in box.current! }
    box.current = direct
    start.fulfill(1)
    #expect(await outcomeOf(direct) == "cycle")
    box.current = nil
    let head = Promise<Int>()
    head.follow(head.then { $0 }.then { $0 })
    #expect(await outcomeOf(head) == "cycle")
  }

  @Test func `map and compactMap`() async {
    let promise = Promise.value("7")
    #expect(await outcomeOf(promise.then { $0 + "!" }) == "7!")
    #expect(await outcomeOf(promise.compactMap { Int($0) }) == "7")
    #expect(await outcomeOf(Promise.value("x").compactMap { Int($0) }) == "PromiseValueMissingError")
    let missing = PromiseValueMissingError(value: "x", wanted: Int.self)
    #expect("\(missing)".contains("no Int can be made of x"))
  }

  @Test func `done: a link without a value`() async {
    let (promise, trace) = (Promise.value(1), Trace())
    #expect(await outcomeOf(promise.then { value in trace("\(value)") }) == "()")
    #expect(trace.all == ["1"])
  }

  @Test func `get observes the value and passes it on; its throw rejects`() async {
    let (promise, trace) = (Promise.value(1), Trace())
    #expect(await outcomeOf(promise.get { value in trace("\(value)") }) == "1")
    #expect(await outcomeOf(promise.get { _ in throw Oops("get") }) == "Oops(get)")
    #expect(trace.all == ["1"])
  }

  @Test func `tap observes the outcome and passes it on`() async {
    let trace = Trace()
    let (promise, failed) = (Promise.value(1), Promise<Int>.failure(Oops("x")))
    #expect(await outcomeOf(promise.tap { result in trace(outcome(result)) }) == "1")
    #expect(await outcomeOf(failed.tap { result in trace(outcome(result)) }) == "Oops(x)")
    #expect(trace.all == ["1", "Oops(x)"])
  }

  @Test func `asVoid and thenMap; the rest is plain Swift`() async throws {
    let promise = Promise.value([3, 1, 2])
    #expect(await outcomeOf(promise.asVoid()) == "()")
    #expect(await outcomeOf(promise.thenMap { Promise.value($0 * 2) }) == "[6, 2, 4]")
    let sorted = try await onCoroutine { try co_await(promise).sorted().filter { $0 > 1 } }
    #expect(sorted == [2, 3])
  }

  @Test func `firstly runs at once; its throw rejects`() async {
    #expect(await outcomeOf(Promise<Int>.trying { try compute() }.then { $0 + 1 }) == "8")
    #expect(await outcomeOf(Promise<Int>.trying { () throws -> Int in throw Oops("first") }) == "Oops(first)")
  }

  private func compute() throws -> Int { 7 }

  @Test func `catch is terminal and skips nothing, cancellations neither`() async {
    let (promise, caught) = (Promise<Int>(), Promise<String>())
    promise.catch { error in caught.fulfill(name(of: error)) }
    promise.cancel()
    #expect(await outcomeOf(caught) == "CancellationError")
  }

  @Test func `finally runs after the catch body, in both cases`() async throws {
    let (trace, done, alsoDone) = (Trace(), Gate(), Gate())
    let (failed, promise) = (Promise<Int>.failure(Oops("x")), Promise.value(1))
    failed.catch { _ in trace("catch") }.finally { done.open() }
    try await done.value
    promise.catch { _ in trace("never") }.finally { alsoDone.open() }
    try await alsoDone.value
    #expect(trace.all == ["catch"])
  }

  @Test func `recover: with a promise, with a value, for good; returning itself is a cycle`() async throws {
    let failed = Promise<Int>.failure(Oops("x"))
    #expect(await outcomeOf(failed.recover { _ in Promise.value(2) }) == "2")
    #expect(await outcomeOf(failed.recover { _ in 3 }) == "3")
    #expect(await outcomeOf(failed.asVoid().recover { _ in }) == "()")
    let guarantee = failed.recovered { _ in 4 }
    #expect(try await guarantee.value == 4)
    let box = Locked<Promise<Int>?>(nil)
    let late = Promise<Int>()
    let itself = late.recover { _ in box.current! }
    box.current = itself
    late.reject(Oops("x"))
    #expect(await outcomeOf(itself) == "cycle")
    box.current = nil
  }
}
