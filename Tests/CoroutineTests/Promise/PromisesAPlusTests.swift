import Coroutine
import Dispatch
import Testing

/// The clauses of Promises/A+ 1.1 that can be broken in a typed language, each by its number.
///
/// Omitted are clauses that the types rule out: handlers that are no functions (2.2.1, 2.2.7.3 and 2.2.7.4 are then
/// `recover` and `then`), `this` (2.2.5), and thenables that are no promises (2.3.3).
@Suite("Promises/A+", .timeLimit(.minutes(10)))
struct PromisesAPlusTests {
  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `2.1.1 - a pending promise may become fulfilled or rejected`() async {
    let (one, two) = (Promise<Int>(), Promise<Int>())
    #expect(one.isPending && two.isPending)
    #expect(one.fulfill(1) && two.reject(Oops("x")))
    #expect(one.isFulfilled && two.isRejected)
    two.ignore()
  }

  @Test func `2.1.2 - a fulfilled promise changes neither state nor value`() async {
    let promise = Promise.value(1)
    promise.fulfill(2)
    promise.reject(Oops("x"))
    promise.follow(.value(3))
    promise.cancel()
    #expect(await outcomeOf(promise) == "1")
  }

  @Test func `2.1.3 - a rejected promise changes neither state nor reason`() async {
    let promise = Promise<Int>.failure(Oops("first"))
    promise.fulfill(2)
    promise.reject(Oops("second"))
    promise.follow(.value(3))
    promise.cancel()
    #expect(await outcomeOf(promise) == "Oops(first)")
  }

  @Test func `2.2.2 - the fulfilment handler is called after fulfilment, with the value, not before and not twice`()
    async throws
  {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      let link = promise.then { trace("called with \($0)") }
      for _ in 0..<3 { try co_yield() }
      trace("not before")
      promise.fulfill(1)
      promise.fulfill(2)
      try co_await(link)
      for _ in 0..<3 { try co_yield() }
    }
    #expect(trace.all == ["not before", "called with 1"])
  }

  @Test func `2.2.3 - the rejection handler is called after rejection, with the reason, not before and not twice`()
    async throws
  {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      let link = promise.recover { error -> Int in
        trace("called with \(name(of: error))")
        return 0
      }
      for _ in 0..<3 { try co_yield() }
      trace("not before")
      promise.reject(Oops("1"))
      promise.reject(Oops("2"))
      _ = try co_await(link)
      for _ in 0..<3 { try co_yield() }
    }
    #expect(trace.all == ["not before", "called with Oops(1)"])
  }

  @Test func `2.2.4 - handlers are called only when the caller's code has let go of the stack`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let settled = Promise.value(1)
      let afterwards = settled.then { _ in trace("attached late") }
      trace("attached")
      try co_await(afterwards)
      let pending = Promise<Int>()
      let link = pending.then { _ in
        trace("handler")
        let nested = Promise.value(2).then { _ in trace("nested handler") }
        trace("handler ends")
        return nested
      }
      pending.fulfill(1)
      trace("settled")
      try co_await(link)
    }
    let expected = [
      "attached", "attached late", "settled", "handler", "handler ends", "nested handler",
    ]
    #expect(trace.all == expected)
  }

  @Test func `2.2.6.1 - fulfilment handlers run in the order of their thens, also when one throws`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      let first = promise.then { _ in trace("1") }
      let second = promise.then { _ -> Void in
        trace("2")
        throw Oops("2")
      }
      let third = promise.then { _ in
        trace("3")
        promise.then { _ in trace("5") }.ignore()
      }
      let fourth = promise.then { _ in trace("4") }
      promise.fulfill(1)
      for link in [first, third, fourth] { try co_await(link) }
      #expect(outcome { try co_await(second) } == "Oops(2)")
    }
    #expect(Array(trace.all.prefix(4)) == ["1", "2", "3", "4"])
  }

  @Test func `2.2.6.2 - rejection handlers run in the order of their thens`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Void>()
      let links = (0..<4).map { number in promise.recover { _ in trace("\(number)") } }
      promise.reject(Oops("x"))
      for link in links { try co_await(link) }
    }
    #expect(trace.all == ["0", "1", "2", "3"])
  }

  @Test func `2.2.7 - then returns a new promise`() async {
    let promise = Promise.value(1)
    let (one, two) = (promise.then { $0 }, promise.recover { _ in 0 })
    #expect(one !== promise && two !== promise && one !== two)
    _ = await (outcomeOf(one), outcomeOf(two))
  }

  @Test func `2.2.7.1 - what a handler returns resolves the new promise`() async {
    #expect(await outcomeOf(Promise.value(1).then { "\($0)" }) == "1")
    #expect(await outcomeOf(Promise.value(1).then { Promise.value("promise \($0)") }) == "promise 1")
    #expect(await outcomeOf(Promise<Int>.failure(Oops("x")).recover { _ in 2 }) == "2")
    #expect(await outcomeOf(Promise<Int>.failure(Oops("x")).recover { _ in Promise.value(3) }) == "3")
  }

  @Test func `2.2.7.2 - what a handler throws rejects the new promise`() async {
    #expect(await outcomeOf(Promise.value(1).then { _ -> Int in throw Oops("f") }) == "Oops(f)")
    #expect(await outcomeOf(Promise<Int>.failure(Oops("x")).recover { _ -> Int in throw Oops("r") }) == "Oops(r)")
  }

  @Test func `2.2.7.3 and 4 - without a handler for it, the outcome is passed on`() async {
    #expect(await outcomeOf(Promise.value(1).recover { _ in 2 }) == "1")
    #expect(await outcomeOf(Promise<Int>.failure(Oops("x")).then { $0 }) == "Oops(x)")
  }

  @Test func `2.3.1 - a promise resolved with itself rejects`() async {
    let promise = Promise<Int>()
    promise.follow(promise)
    #expect(await outcomeOf(promise) == "cycle")
  }

  @Test func `2.3.2.1 - resolved with a pending promise it is pending until that settles`() async {
    let (promise, other) = (Promise<Int>(), Promise<Int>())
    promise.follow(other)
    #expect(promise.isPending && !promise.fulfill(2) && !promise.reject(Oops("x")))
    #expect(promise.isPending)
    other.fulfill(1)
    #expect(await outcomeOf(promise) == "1")
  }

  @Test func `2.3.2.2 - resolved with a promise it is fulfilled with the same value`() async {
    for isLate in [false, true] {
      let (promise, other) = (Promise<Tracked>(), Promise<Tracked>())
      let object = Tracked {}
      if !isLate { other.fulfill(object) }
      promise.follow(other)
      if isLate { other.fulfill(object) }
      #expect(try! promise.result?.get() === object)
    }
  }

  @Test func `2.3.2.3 - resolved with a promise it is rejected with the same reason`() async {
    for isLate in [false, true] {
      let (promise, other) = (Promise<Int>(), Promise<Int>())
      if !isLate { other.reject(Oops("same")) }
      promise.follow(other)
      if isLate { other.reject(Oops("same")) }
      #expect(await outcomeOf(promise) == "Oops(same)")
    }
  }

  @Test func `2.3.4 - resolved with a plain value it is fulfilled with that, an error too`() async {
    #expect(await outcomeOf(Promise.value(1)) == "1")
    let error = Promise<Oops>()
    error.fulfill(Oops("value"))
    #expect(error.isFulfilled)
  }
}
