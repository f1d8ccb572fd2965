import Coroutine
import Dispatch
import Testing

/// The rest of what PromiseKit and google/promises made: endings, several at once, time, threads, cancellation.
@Suite("Coming from PromiseKit: ending, combining, cancelling", .timeLimit(.minutes(10)))
struct PromiseKitManyTests {
  struct Other: Error {}

  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `catch only some: the first that matches runs, the rest are skipped, and what is left may be caught`()
    async throws
  {
    let error = Oops("known")
    for (failure, expected) in [(Oops("x"), "type"), (error, "value")] as [(Oops, String)] {
      let (promise, trace, done) = (Promise<Int>.failure(failure), Trace(), Gate())
      promise
        .catch(only: Other.self) { _ in trace("other") }
        .catch(only: error) { trace("value") }
        .catch(only: Oops.self) { _ in trace("type") }
        .catch { _ in trace("rest") }
        .finally { done.open() }
      try await done.value
      #expect(trace.all == [expected])
    }
    let (promise, trace, done) = (Promise<Int>.failure(Other()), Trace(), Gate())
    promise.catch(only: Oops.self) { _ in trace("oops") }.catch { trace(name(of: $0)) }.finally { done.open() }
    try await done.value
    #expect(trace.all == ["Other"])
  }

  @Test func `recover only some, by type and by value`() async {
    let (error, failed) = (Oops("known"), Promise<Int>.failure(Oops("known")))
    #expect(await outcomeOf(failed.rescue { (_: Oops) in 1 }) == "1")
    #expect(await outcomeOf(failed.rescue(only: error) { 2 }) == "2")
    #expect(await outcomeOf(failed.rescue(only: Oops("another")) { 2 }) == "Oops(known)")
  }

  @Test func `ensure keeps the outcome, ensureThen waits`() async {
    let (promise, cleanup, trace) = (Promise.value(1), Gate(), Trace())
    #expect(await outcomeOf(promise.ensure { trace("ensure") }) == "1")
    let cleaned = promise.ensureThen { cleanup }
    #expect(cleaned.isPending)
    cleanup.open()
    #expect(await outcomeOf(cleaned) == "1")
    #expect(trace.all == ["ensure"])
  }

  @Test func `cauterize is an explicit ignore`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("ignored")
    do {
      let promise = Promise<Int>.failure(failure)
      promise.ignore()
    }
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `when fulfilled: arrays, tuples, nothing; siblings cancelled where asked`() async {
    let promises = [Promise.value(1), Promise.value(2)]
    #expect(await outcomeOf(Promise.all(promises)) == "[1, 2]")
    let (a, b) = (Promise.value(1), Promise.value("b"))
    #expect(await outcomeOf(Promise.all(a, b)) == "(1, \"b\")")
    #expect(Promise<Int>.all([]).isFulfilled)
    let (slow, failed) = (Promise<Int>(), Promise<Int>.failure(Oops("first")))
    #expect(await outcomeOf(Promise.all([slow, failed], losers: .cancelled)) == "Oops(first)")
    #expect(await outcomeOf(slow) == "CancellationError")
  }

  @Test func `when of a dictionary: the same keys, and the failing key if asked for by name`() async throws {
    let promises = ["a": Promise.value(1), "b": Promise.value(2)]
    #expect(try await Promise.all(promises).value == ["a": 1, "b": 2])
    let failing = ["a": Promise<Int>(), "b": .failure(Oops("x"))]
    #expect(await outcomeOf(Promise.all(failing)) == "Oops(x)")
    do {
      _ = try await Promise.all(named: failing).value
      Issue.record("one has failed")
    } catch let error as PromiseMemberError<String> {
      #expect(error.key == "b" && error.error as? Oops == Oops("x"))
    }
  }

  @Test func `when with concurrency: lazily, a hard limit, in order, below one an error`() async {
    let urls = ["one", "two", "three"]
    let all = Promise.all(of: urls, concurrently: 2) { url in fetch(url) }
    #expect(await outcomeOf(all) == "[\"one!\", \"two!\", \"three!\"]")
    #expect(await outcomeOf(Promise.all(of: urls, concurrently: 0) { url in fetch(url) }) == "invalidCount")
  }

  private func fetch(_ url: String) -> Promise<String> { .value(url + "!") }

  @Test func `when resolved: never fails, in order`() async throws {
    let promises = [Promise.value(1), Promise<Int>.failure(Oops("x"))]
    #expect(try await Promise.allSettled(promises).value.map { outcome($0) } == ["1", "Oops(x)"])
    let urls = ["one"]
    let results = try await Promise.allSettled(of: urls, concurrently: 1) { url in fetch(url) }.value
    #expect(results.map { outcome($0) } == ["one!"])
  }

  @Test func `race: the first to settle; losers cancelled where asked; of none an error`() async {
    let (fast, slow) = (Promise<Int>(), Promise<Int>())
    let race = Promise.race([slow, fast], losers: .cancelled)
    fast.reject(Oops("fast"))
    #expect(await outcomeOf(race) == "Oops(fast)")
    #expect(await outcomeOf(slow) == "CancellationError")
    #expect(await outcomeOf(Promise<Int>.race([])) == "AggregateError[]")
  }

  @Test func `race fulfilled is any, and keeps all causes`() async {
    let promises = [Promise<Int>.failure(Oops("a")), .failure(Oops("b"))]
    #expect(await outcomeOf(Promise.any(promises)) == "AggregateError[Oops(a), Oops(b)]")
  }

  @Test(.inWorlds) func `after, which can be cancelled`() throws {
    #expect(outcome { try co_await(Promise.after(.milliseconds(1))) } == "()")
    let after = Promise.after(.seconds(3600))
    after.cancel()
    #expect(outcome { try co_await(after) } == "CancellationError")
    #expect(worldTime == .milliseconds(1))
  }

  @Test func `wait blocks a thread, and refuses in a coroutine, in a handler and on a queue that is needed`()
    async throws
  {
    let promise = Promise<Int>()
    async let waited = onOwnThread { try promise.blockingWait() }
    promise.fulfill(1)
    #expect(try await waited == 1)
    let refused = try await onCoroutine { outcome { try promise.then { $0 }.blockingWait() } }
    #expect(refused == "wouldDeadlock")
    let queue = taggedQueue("needed")
    let head = Promise<Int>()
    let chain = head.then(on: queue) { $0 }.then { $0 }
    #expect(try await onBlock(of: queue) { outcome { try chain.blockingWait() } } == "wouldDeadlock")
    let combined = Promise.all([Promise.value(1), chain])
    #expect(try await onBlock(of: queue) { outcome { try combined.blockingWait() } } == "wouldDeadlock")
    let handler = Promise.value(1).then(on: queue) { _ in outcome { try Promise<Int>().blockingWait() } }
    #expect(await outcomeOf(handler) == "wouldDeadlock")
    head.fulfill(2)
    #expect(try await onOwnThread { try combined.blockingWait() } == [1, 2])
  }

  @Test func `a body on a dispatch queue`() async {
    let queue = taggedQueue("work")
    #expect(await outcomeOf(Promise.running(on: queue) { currentTag ?? "none" }) == "work")
    #expect(await outcomeOf(Promise<Int>.running(on: queue) { throw Oops("body") }) == "Oops(body)")
    #expect(await outcomeOf(Guarantee.running(on: queue) { currentTag ?? "none" }.promise) == "work")
  }

  @Test func `async code both ways, with cancellation`() async throws {
    let promise = Promise<Int>()
    let waiting = Task { try await promise.value }
    waiting.cancel()
    #expect(await asyncOutcome { try await waiting.value } == "CancellationError")
    #expect(promise.isPending)
    let (started, stopped) = (Gate(), Gate())
    let task = Promise<Int>.task {
      try await withTaskCancellationHandler {
        started.open()
        // Not a sleep, which may end before the handler is called: a Task is cancelled first, and its handlers after.
        while stopped.isPending { await Task.yield() }
        try Task.checkCancellation()
      } onCancel: {
        stopped.open()
      }
      return 1
    }
    try await started.value
    task.cancel()
    try await stopped.value
    #expect(await outcomeOf(task) == "CancellationError")
  }

  @Test func `cancel on a link rejects the chain, stops the task and its group, and masks no earlier error`() async {
    let (trace, work) = (Trace(), Promise<Int>.pending(onCancel: nil))
    let stoppable = Promise<Int>.pending(onCancel: { trace("stopped") })
    let all = Promise.all([work.promise, stoppable.promise])
    let last = all.then { $0.count }
    last.cancel()
    for outcome in [await outcomeOf(last), await outcomeOf(all), await outcomeOf(work.promise)] {
      #expect(outcome == "CancellationError")
    }
    #expect(trace.all == ["stopped"])
    withExtendedLifetime((work.resolver, stoppable.resolver)) {}
  }

  @Test(.inWorlds) func `a timeout is a failure, not a cancellation, and cancels the work`() throws {
    let (work, resolver) = Promise<Int>.pending()
    let caught = Promise<String>()
    work.timeout(.milliseconds(1)).catch { error in caught.fulfill(name(of: error)) }
    #expect(outcome { try co_await(caught) } == "TimeoutError")
    #expect(outcome { try co_await(work) } == "CancellationError")
    #expect(worldTime == .milliseconds(1))
    withExtendedLifetime(resolver) {}
  }

  @Test func `an unhandled failure goes to the hook, with the place of creation`() async throws {
    let errors = UnhandledErrors()
    do { _ = Promise<Int>.failure(errors.failure("unhandled")) }
    let places = try await errors.jobs(count: 1)
    #expect(places.first?.contains("PromiseKitManyTests.swift") == true)
  }

  @Test(.inWorlds) func `retry with back-off and predicate, validate`() throws {
    let trace = Trace()
    let retried = Promise<Int>.retry(attempts: 3, delay: .constant(.milliseconds(1))) { attempt in
      trace("\(attempt)")
      return attempt < 3 ? .failure(Oops("again")) : .value(attempt)
    }
    #expect(outcome { try co_await(retried) } == "3")
    #expect(trace.all == ["1", "2", "3"])
    #expect(worldTime == .milliseconds(2))
    let promise = Promise.value(1)
    #expect(outcome { try co_await(promise.validate { $0 > 0 }) } == "1")
    #expect(outcome { try co_await(promise.validate { $0 > 1 }) } == "PromiseValidationError")
  }
}
