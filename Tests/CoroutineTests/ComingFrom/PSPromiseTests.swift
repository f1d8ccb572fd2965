import Coroutine
import Dispatch
import Testing

/// One test for each promise that PSPromise made, or broke; docs/coming-from/pspromise.md shows what is written here.
@Suite("Coming from PSPromise", .timeLimit(.minutes(10)))
struct PSPromiseTests {
  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `states: pending, then fulfilled or rejected, by one transition`() {
    let promise = Promise<Int>()
    #expect(promise.isPending && promise.result == nil)
    #expect(promise.fulfill(1))
    #expect(promise.isFulfilled && !promise.isPending && !promise.isRejected)
    #expect(!promise.reject(Oops("late")))
    #expect(promise.result.map { outcome($0) } == "1")
    #expect(promise.isFulfilled && promise.error == nil)
  }

  @Test func `an error given as a value is a value`() {
    let promise = Promise<Oops>()
    promise.fulfill(Oops("value"))
    #expect(promise.isFulfilled && promise.error == nil)
  }

  @Test func `PSPromiseWithResolve: the body runs at once on the caller, its throw rejects`() async {
    let trace = Trace()
    let promise = Promise<Int> { done in
      trace("body")
      startThread { done.resume(1) }
    }
    trace("made")
    #expect(trace.all == ["body", "made"])
    #expect(await outcomeOf(promise) == "1")
    let failing = Promise<Int> { done in throw Oops("body") }
    #expect(await outcomeOf(failing) == "Oops(body)")
  }

  @Test func `PSPromiseAsyncWith: a body on a queue`() async {
    let queue = taggedQueue("work")
    let promise = Promise.running(on: queue) { currentTag ?? "none" }
    #expect(await outcomeOf(promise) == "work")
  }

  @Test func `PSPromiseWithBlock: a value, an error, a promise, an array, each by its own name`() async {
    let (value, error) = (3, Oops("x"))
    #expect(await outcomeOf(Promise.value(value)) == "3")
    #expect(await outcomeOf(Promise<Int>.failure(error)) == "Oops(x)")
    #expect(await outcomeOf(Promise<Int>.trying { try compute() }) == "7")
  }

  private func compute() throws -> Int { 7 }

  @Test func `resolve: a settled promise, and a promise passes through unchanged`() async {
    #expect(Promise.value(1).isFulfilled)
    let promise = Promise<Int>()
    let same = Promise<Int>.trying { () throws -> Promise<Int> in promise }
    #expect(same === promise)
    promise.fulfill(1)
  }

  @Test func `resolve with a promise locks: a later plain resolve loses`() async {
    let (promise, other) = (Promise<Int>(), Promise<Int>())
    promise.follow(other)
    #expect(!promise.fulfill(2))
    other.fulfill(1)
    #expect(await outcomeOf(promise) == "1")
  }

  @Test func `then: the fulfilled path only; a value fulfils, nothing fulfils, a promise is followed, a throw rejects`()
    async
  {
    let (promise, other) = (Promise.value(1), Promise.value("other"))
    let trace = Trace()
    #expect(await outcomeOf(promise.then { $0 + 1 }) == "2")
    #expect(await outcomeOf(promise.then { value in trace("\(value)") }) == "()")
    #expect(await outcomeOf(promise.then { _ in other }) == "other")
    #expect(await outcomeOf(promise.then { _ -> Int in throw Oops("then") }) == "Oops(then)")
    #expect(await outcomeOf(Promise<Int>.failure(Oops("x")).then { value in trace("\(value)") }) == "Oops(x)")
    #expect(trace.all == ["1"])
  }

  @Test func `thenOn: on the queue that is named`() async {
    let queue = taggedQueue("named")
    let promise = Promise.value(1)
    #expect(await outcomeOf(promise.then(on: queue) { "\($0) \(currentTag ?? "none")" }) == "1 named")
  }

  // The page shows the call as programs make it.
  @Test(.tags(.realClock)) func `thenDelay: waits after fulfilment`() async throws {
    let promise = Promise.value(1)
    let start = ContinuousClock.now
    #expect(await outcomeOf(promise.delay(.milliseconds(10)).then { $0 + 1 }) == "2")
    #expect(.now - start >= .milliseconds(10))
  }

  @Test func `thenPromise: a link in the callback style, whose throw rejects`() async {
    let promise = Promise.value(1)
    let link = promise.then { (value, done: Resumer<String>) in done.resume("got \(value)") }
    #expect(await outcomeOf(link) == "got 1")
    let failing = promise.then { (_, done: Resumer<String>) in throw Oops("link") }
    #expect(await outcomeOf(failing) == "Oops(link)")
  }

  @Test func `catch that goes on: its value fulfils, later ones do not run`() async {
    let trace = Trace()
    let promise = Promise<Int>.failure(Oops("x"))
    let recovered = promise.recover { _ in 0 }
    let after = recovered.recover { _ -> Int in
      trace("never")
      return 1
    }
    #expect(await outcomeOf(after) == "0")
    let queue = taggedQueue("handler")
    #expect(await outcomeOf(promise.recover(on: queue) { _ in currentTag == "handler" ? 1 : 2 }) == "1")
    #expect(trace.all.isEmpty)
  }

  @Test func `always runs in both cases and swallows nothing`() async {
    let trace = Trace()
    let (promise, failed) = (Promise.value(1), Promise<Int>.failure(Oops("x")))
    #expect(await outcomeOf(promise.ensure { trace("end") }) == "1")
    #expect(await outcomeOf(failed.ensure { trace("end") }) == "Oops(x)")
    #expect(trace.all == ["end", "end"])
  }

  @Test func `all: order kept, the first failure as it is, of none at once`() async {
    let promises = (0..<3).map { _ in Promise<Int>() }
    let all = Promise.all(promises)
    for index in [2, 0, 1] { promises[index].fulfill(index) }
    #expect(await outcomeOf(all) == "[0, 1, 2]")
    #expect(await outcomeOf(Promise.all([Promise<Int>(), .failure(Oops("as it is"))])) == "Oops(as it is)")
    #expect(Promise<Int>.all([]).isFulfilled)
  }

  @Test func `race to fulfil is any: all failures in one, losers cancelled where asked, of none an error`() async {
    let promises = (0..<2).map { _ in Promise<Int>() }
    let first = Promise.any(promises, losers: .cancelled)
    promises[1].fulfill(1)
    #expect(await outcomeOf(first) == "1")
    #expect(await outcomeOf(promises[0]) == "CancellationError")
    let failed = [Promise<Int>.failure(Oops("a")), .failure(Oops("b"))]
    #expect(await outcomeOf(Promise.any(failed)) == "AggregateError[Oops(a), Oops(b)]")
    #expect(await outcomeOf(Promise<Int>.any([])) == "AggregateError[]")
  }

  @Test func `registering while it settles loses no handler`() async throws {
    for _ in 0..<200 {
      let promise = Promise<Int>()
      async let registered = onOwnThread { (0..<20).map { number in promise.then { $0 + number } } }
      async let settled = onOwnThread { promise.fulfill(1) }
      let (links, isFirst) = (try await registered, try await settled)
      #expect(isFirst)
      for (number, link) in links.enumerated() { #expect(try await link.value == 1 + number) }
    }
  }
}
