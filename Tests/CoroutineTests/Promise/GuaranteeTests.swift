import Coroutine
import Dispatch
import Testing

@Suite("Promise: guarantees", .timeLimit(.minutes(10)))
struct GuaranteeTests {
  @Test func `a chain of guarantees has no error path, unless requested`() async {
    let chain = Guarantee.value(1).then { $0 + 1 }.then { Guarantee.value($0 + 1) }.tap { _ in }.ensure {}
    #expect(await asyncOutcome { try await chain.value } == "3")
    #expect(chain.current == 3)
    #expect(await asyncOutcome { try await chain.then { Promise<Int>.failure(Oops("\($0)")) }.value } == "Oops(3)")
    #expect(await asyncOutcome { try await chain.promise.then { _ -> Int in throw Oops("t") }.value } == "Oops(t)")
    #expect(await asyncOutcome { try await chain.asVoid().value } == "()")
    #expect(await asyncOutcome { try await Guarantee.all([chain, .value(4)]).value } == "[3, 4]")
    let never = Promise<Int>()
    #expect(await asyncOutcome { try await Guarantee.race([never.recovered { _ in 0 }, chain]).value } == "3")
  }

  @Test func `running runs on its queue`() async throws {
    let running = Guarantee.running(on: taggedQueue("guaranteed")) { currentTag ?? "elsewhere" }
    #expect(await asyncOutcome { try await running.value } == "guaranteed")
  }

  @Test(.inWorlds) func `delay comes later, never early`() throws {
    let seven = Guarantee<Int>.value(7)
    #expect(try co_await(seven.delay(.milliseconds(20))) == 7)
    #expect(worldTime == .milliseconds(20))
  }

  @Test(.inWorlds) func `a timeout is a promise: the value in time, else a TimeoutError`() throws {
    let kept = Locked<Guarantee<Int>.Resolver?>(nil)
    let late = Guarantee<Int> { done in kept.current = done }
    let other = late.then { $0 }
    #expect(outcome { try co_await(late.promise.timeout(.milliseconds(5))) } == "TimeoutError")
    #expect(worldTime == .milliseconds(5))
    // Another waits for it, so it goes on.
    kept.current?(7)
    #expect(outcome { try co_await(other) } == "7")
    #expect(outcome { try co_await(late.promise.timeout(.seconds(3600))) } == "7")
    #expect(worldTime == .milliseconds(5))
  }

  @Test func `if a resolver is released unused, ensure runs, and waiters get abandoned`() async {
    let ended = Gate()
    let lost = Guarantee<Int> { _ in }.ensure { ended.open() }
    #expect(await asyncOutcome { try await lost.value } == "abandoned")
    #expect(await asyncOutcome { try await ended.value } == "()")
  }

  @Test func `waiters of a race of none get an AggregateError, and there is no report`() async {
    let none = Guarantee<Int>.race([])
    #expect(await asyncOutcome { try await none.value } == "AggregateError[]")
    #expect(none.current == nil)
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in heard("\(name(of: unhandled.error)): \(unhandled.origin)")
      }
      _ = Guarantee<Int>.race([], file: "Here", line: 7)
      #expect(heard.all.count == 1)
      #expect(heard.all[0].hasPrefix("AggregateError[]: ") && heard.all[0].contains("Here:7"))
    }
  }

  @Test func `a report names the line of the derived promise, not one of the library`() async {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in heard(unhandled.origin) }
      let lost = Guarantee<Int> { _ in }
      _ = lost.then(file: "Link", line: 1) { $0 }
      _ = lost.then(file: "Link", line: 2) { Guarantee.value($0) }
      _ = lost.then(file: "Link", line: 3) { Promise.value($0) }
      _ = lost.promise.then(file: "Link", line: 4) { $0 }
      _ = lost.tap(file: "Link", line: 5) { _ in }
      _ = lost.delay(.zero, file: "Link", line: 6)
      _ = lost.promise.timeout(.seconds(1), file: "Link", line: 7)
      _ = lost.asVoid(file: "Link", line: 8)
      _ = Guarantee.all([lost], file: "Link", line: 9)
      _ = Guarantee.race([lost], file: "Link", line: 10)
      #expect(heard.all == (1...10).map { "a promise (created at Link:\($0))" })
    }
  }
}
