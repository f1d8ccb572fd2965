import Coroutine
import Dispatch
import Testing

/// One test for each row of coobjc's promises, and its channels in short; docs/coming-from/coobjc.md shows this code.
@Suite("Coming from coobjc: promises and channels", .timeLimit(.minutes(10)))
struct CoobjcPromiseTests {
  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `create: empty, with a body that runs at once, with one on a queue`() async {
    let (promise, queue) = (Promise<Int>(), taggedQueue("work"))
    let constructed = Promise<Int> { done in done.resume(1) }
    #expect(promise.isPending && constructed.isFulfilled)
    promise.fulfill(0)
    #expect(await outcomeOf(Promise.running(on: queue) { currentTag }) == "Optional(\"work\")")
  }

  @Test func `settle: fulfill, reject, cancel; the first wins, later ones say that they did not`() async {
    let (promise, other, third) = (Promise<Int>(), Promise<Int>(), Promise<Int>())
    #expect(promise.fulfill(1))
    #expect(!promise.reject(Oops("late")))
    #expect(other.reject(Oops("x")))
    third.cancel()
    #expect(await outcomeOf(promise) == "1")
    #expect(await outcomeOf(other) == "Oops(x)")
    #expect(await outcomeOf(third) == "CancellationError")
  }

  @Test func `state: isPending, isFulfilled, isRejected, value, error`() {
    let promise = Promise<Int>()
    #expect(promise.isPending && !promise.isFulfilled && !promise.isRejected)
    promise.fulfill(1)
    #expect(promise.isFulfilled && promise.error == nil)
    #expect((try? promise.result?.get()) == 1)
  }

  @Test func `then: maps, flattens, in order, never within the settling or the registering call`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let (promise, other) = (Promise<Int>(), Promise.value("other"))
      let first = promise.then { value in trace("first \(value)") }
      let flat = promise.then { _ in other }
      promise.fulfill(1)
      trace("settled")
      let late = promise.then { value in trace("late \(value)") }
      trace("registered")
      try co_await(first)
      try co_await(late)
      trace(try co_await(flat))
    }
    #expect(trace.all == ["settled", "registered", "first 1", "late 1", "other"])
  }

  @Test func `catch observes and the failure stays: tap; catch ends; recover goes on`() async {
    let (trace, promise) = (Trace(), Promise<Int>.failure(Oops("x")))
    let observed = promise.tap { result in trace(outcome(result)) }
    #expect(await outcomeOf(observed) == "Oops(x)")
    let caught = Promise<String>()
    promise.catch { error in caught.fulfill(name(of: error)) }
    #expect(await outcomeOf(caught) == "Oops(x)")
    #expect(trace.all == ["Oops(x)"])
    #expect(await outcomeOf(observed.recover { _ in 1 }) == "1")
  }

  @Test func `cancel and onCancel: at once, also added late, along the chain in both directions`() async throws {
    let (trace, late) = (Trace(), Promise<String>())
    let (promise, resolver) = Promise<Int>.pending(onCancel: { trace("stop the work") })
    let derived = promise.then { $0 }
    derived.cancel()
    #expect(trace.all == ["stop the work"])
    promise.catch(only: CancellationError.self) { _ in late.fulfill("was cancelled") }
    #expect(await outcomeOf(late) == "was cancelled")
    withExtendedLifetime(resolver) {}
    let source = Promise<Int>()
    let below = source.then { $0 }.then { $0 }
    source.cancel()
    #expect(below.error is CancellationError)
  }

  @Test func `a cancelled promise wakes those who wait for it`() async throws {
    let seen = try await onSerialQueue {
      let promise = Promise<Int>()
      let job = co_launch { try co_await(promise) }
      try co_yield()
      promise.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
  }

  @Test func `isPromiseCancelled is a type`() async {
    let promise = Promise<Int>()
    promise.cancel()
    #expect(promise.error is CancellationError)
  }

  @Test func `progress: fractions and units as a sequence that ends, then the value`() async throws {
    let seen = try await onSerialQueue {
      let promise = ProgressPromise<String>()
      co_launch {
        promise.update(completed: 1, total: 4)
        for _ in 0..<3 { try co_yield() }
        promise.update(completed: 4, total: 4)
        promise.fulfill("done")
      }
      var seen: [String] = []
      for progress in promise { seen.append("\(progress.completed) of \(progress.total), \(progress.fraction)") }
      seen.append(try co_await(promise))
      return seen
    }
    #expect(seen == ["1 of 4, 0.25", "4 of 4, 1.0", "done"])
  }

  @Test func `channels: rendezvous, buffered, unbounded; nothing is lost in silence, and all waits end`() async throws {
    let seen = try await onSerialQueue {
      let (rendezvous, buffered, unbounded) = (Channel<Int>(), Channel<Int>(2), Channel<Int>(.unbounded))
      co_launch { try rendezvous.send(1) }
      var seen = ["\(try rendezvous.receive() ?? 0)"]
      try buffered.send(2)
      try buffered.send(3)
      seen.append("\(buffered.trySend(4))")
      seen.append("\(try buffered.receiveAll())")
      seen.append("\(buffered.tryReceive())")
      for number in 5..<8 { try unbounded.send(number) }
      seen.append("\(try unbounded.receive(count: 2))")
      unbounded.close()
      try unbounded.forEach { number in seen.append("\(number)") }
      return seen
    }
    #expect(seen == ["1", "full", "[2, 3]", "empty", "[5, 6]", "7"])
  }

  @Test(.inWorlds) func `select, a timeout, and a value that was not delivered`() throws {
    let trace = Trace()
    let channel = Channel<Int>(1, onUndelivered: { trace("undelivered \($0)") })
    let first = try co_select {
      channel.onReceive { "received \($0 ?? 0)" }
        .onTimeout(.milliseconds(1)) { "timeout" }
    }
    try channel.send(1)
    channel.cancel()
    #expect(first == "timeout" && trace.all == ["undelivered 1"])
    #expect(worldTime == .milliseconds(1))
  }
}
