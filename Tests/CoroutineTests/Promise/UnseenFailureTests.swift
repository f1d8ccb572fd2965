import Coroutine
import Testing

@Suite("Promise: unobserved failures", .timeLimit(.minutes(10)))
struct UnseenFailureTests {
  @Test func `an unobserved failure is reported once, with the source line that created the promise`() async throws {
    let errors = UnhandledErrors()
    Self.rejectAndDrop(errors.failure("unseen"))
    let places = try await errors.jobs(count: 1)
    #expect(places == ["a promise (created at CoroutineTests/UnseenFailureTests.swift:17)"])
    #expect(try await errors.settledLabels() == ["unseen"])
  }

  @inline(never)
  private static func rejectAndDrop(_ error: any Error) {
    // The report names the next line.
    let promise = Promise<Int>()
    promise.reject(error)
  }

  @Test func `only the end of a chain reports`() async throws {
    let errors = UnhandledErrors()
    Self.chainAndDrop(errors.failure("chain"))
    let places = try await errors.jobs(count: 1)
    #expect(places == ["a promise (created at CoroutineTests/UnseenFailureTests.swift:33)"])
    #expect(try await errors.settledLabels() == ["chain"])
  }

  @inline(never)
  private static func chainAndDrop(_ error: any Error) {
    let promise = Promise<Int>()
    // The report names the next line.
    _ = promise.then { $0 + 1 }
    promise.reject(error)
  }

  @Test func `a failure that is handled, awaited, combined or ignored is not reported`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("seen")
    let handled = Gate()
    Promise<Int>.failure(failure).catch { _ in handled.open() }
    _ = await asyncOutcome { try await Promise<Int>.failure(failure).value }
    _ = await asyncOutcome { try await Promise<Int>.failure(failure).recover { _ -> Int in 1 }.value }
    _ = await asyncOutcome { try await Promise.any([Promise<Int>.failure(failure), .value(1)]).value }
    _ = await asyncOutcome { try await Promise.race([.value(1), Promise<Int>.failure(failure)]).value }
    _ = await asyncOutcome { try await Promise.allSettled([Promise<Int>.failure(failure)]).value }
    Promise<Int>.failure(failure).ignore()
    try await onCoroutine {
      _ = outcome { try co_await(Promise<Int>.failure(failure)) }
      try handled.pass()
    }
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `reading the result does not count as handling it`() async throws {
    let errors = UnhandledErrors()
    Self.lookAndDrop(errors.failure("looked at"))
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["looked at"])
  }

  @inline(never)
  private static func lookAndDrop(_ error: any Error) {
    let promise = Promise<Int>.failure(error)
    #expect(promise.result != nil && promise.isRejected && promise.error != nil)
  }

  @Test func `an unselected member that fails later is not reported`() async throws {
    let errors = UnhandledErrors()
    let (fast, slow) = (Promise<Int>(), Promise<Int>())
    let race = Promise.race([fast, slow])
    fast.fulfill(1)
    slow.reject(errors.failure("loser"))
    #expect(race.isFulfilled)
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `cancelled promises are not reported`() async throws {
    // In a separate process, because cancellations have no identity.
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      let last = Gate()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard(name(of: unhandled.error))
        if unhandled.error is Oops { last.open() }
      }
      for _ in 0..<3 {
        let promise = Promise<Int>()
        let chain = promise.then { $0 + 1 }.tap { _ in }
        promise.cancel()
        _ = chain
        Promise<Int>().cancel()
      }
      co_launch { () throws -> Void in throw Oops("last") }
      try await onCoroutine { try last.pass() }
      #expect(heard.all == ["Oops(last)"])
    }
  }
}
