import Coroutine
import Testing

@Suite("Promise: then and catch", .timeLimit(.minutes(10)))
struct PromiseChainTests {
  @Test func `then maps the value`() async throws {
    let text = try await onCoroutine { try co_await(Promise.value(2).then { $0 * 21 }.then { "\($0)" }) }
    #expect(text == "42")
  }

  @Test func `then waits for a promise that its body returns`() async throws {
    let seen = try await onSerialQueue {
      let inner = Promise<String>()
      let outer = Promise.value(1).then { _ in inner }
      co_launch { inner.fulfill("inner") }
      return try co_await(outer)
    }
    #expect(seen == "inner")
  }

  @Test func `an error of then's body rejects, and a failure skips then's body`() async throws {
    let trace = Trace()
    let seen = try await onCoroutine {
      let chain = Promise.value(1)
        .then { _ -> Int in throw Oops("body") }
        .then { value -> Int in
          trace("skipped")
          return value
        }
      return outcome { try co_await(chain) }
    }
    #expect(seen == "Oops(body)")
    #expect(trace.all.isEmpty)
  }

  @Test func `catch gets the failure once, and is not called for a success`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let (good, bad) = (Promise<Int>(), Promise<Int>())
      let done = Gate()
      good.catch { _ in trace("never") }
      bad.catch { error in
        trace(name(of: error))
        done.open()
      }
      good.fulfill(1)
      bad.reject(Oops("caught"))
      try done.pass()
      for _ in 0..<3 { try co_yield() }
    }
    #expect(trace.all == ["Oops(caught)"])
  }

  @Test func `handlers run after the settling call and after the registering call, in order`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let promise = Promise<Int>()
      let done = Gate()
      _ = promise.then { _ in trace("1") }
      _ = promise.then { _ in trace("2") }
      promise.fulfill(0)
      trace("settled")
      _ = promise.then { _ in trace("3") }
      _ = promise.then { _ in
        trace("4")
        done.open()
      }
      trace("registered")
      try done.pass()
    }
    #expect(trace.all == ["settled", "registered", "1", "2", "3", "4"])
  }

  @Test func `handlers run on the queue they were given, else on the registering coroutine's`() async throws {
    let far = taggedQueue("far")
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      let promise = Promise<Int>()
      let here = promise.then { _ in currentTag }
      let there = promise.then(on: far) { _ in currentTag }
      startThread { promise.fulfill(1) }
      return [try co_await(here), try co_await(there)]
    }
    #expect(seen == ["home", "far"])
  }

  @Test func `handlers registered outside a coroutine also run, and not within the calls`() async throws {
    let trace = Trace()
    let promise = Promise<Int>()
    let mayRun = Flag()
    let mapped = promise.then { value -> Int in
      while !mayRun.isRaised {}
      trace("handler")
      return value + 1
    }
    promise.fulfill(1)
    trace("settled")
    mayRun.raise()
    #expect(try await onCoroutine { try co_await(mapped) } == 2)
    #expect(trace.all == ["settled", "handler"])
  }

  @Test func `a chain of ten thousand links settles on a small stack`() async throws {
    let value = try await co_launch(on: taggedQueue("chain"), stack: .bytes(64 * 1024)) {
      let head = Promise<Int>()
      var tail = head
      for _ in 0..<10_000 { tail = tail.then { $0 + 1 } }
      head.fulfill(0)
      return try co_await(tail)
    }.value
    #expect(value == 10_000)
  }

  @Test func `a chain of a hundred thousand links that never settles is released on a small stack`() async throws {
    let released = Gate()
    try await co_launch(on: taggedQueue("chain"), stack: .bytes(64 * 1024)) {
      Self.makeAndDrop(100_000, Tracked { released.open() })
    }.value
    try await onCoroutine { try released.pass() }
  }

  private static func makeAndDrop(_ links: Int, _ held: Tracked) {
    let head = Promise<Int>()
    var tail = head
    for _ in 0..<links { tail = tail.then { $0 + 1 } }
    _ = tail.then { _ in held.use() }
  }
}
