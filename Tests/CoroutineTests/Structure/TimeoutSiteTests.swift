import Testing

@testable import Coroutine

@Suite("The place of a deadline", .timeLimit(.minutes(10)))
struct TimeoutSiteTests {
  /// What the error of `body` says of the place, without the module's name.
  private func site(_ body: () throws -> Void) -> String? {
    do { try body() } catch let error as TimeoutError { return error.site } catch {}
    return nil
  }

  private static func here(_ line: UInt = #line) -> String { "CoroutineTests/TimeoutSiteTests.swift:\(line)" }

  @Test(.inWorlds) func `is in the error of each kind of deadline, with its limit`() throws {
    let never = Promise<Void>()
    let seen = [
      site { try co_timeout(.milliseconds(3)) { try waitForCancellation() } },
      site { try co_timeout(.zero) {} },
      site { try co_timeout(until: co_now.advanced(by: .milliseconds(3))) { try waitForCancellation() } },
      site { try co_await(never.timeout(.milliseconds(3))) },
      site {
        let actor = co_actor(of: Reply<Int>.self) { _ in try waitForCancellation() }
        defer { actor.cancel() }
        _ = try actor.ask(timeout: .milliseconds(3)) { $0 }
      },
    ]
    let first = #line - 10
    #expect(seen == [first, first + 1, first + 2, first + 3, first + 7].map { Self.here(UInt($0)) })
    #expect("\(TimeoutError())" == "the deadline has passed" && TimeoutError().site == nil)
    let line = #line + 1
    let error = #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(50)) { try waitForCancellation() } }
    let text = "the deadline of 0.05 seconds at \(Self.here(UInt(line))) has passed"
    #expect(error.map { "\($0)" } == text)
  }

  @Test func `counts those that have passed, and no others`() async {
    await #expect(processExitsWith: .success) {
      try await onSerialQueue {
        for _ in 0..<3 { Self.passes() }
        Self.hasPassed()
        try? co_timeout(.seconds(600)) {}
        // A timer of an actor is a deadline of the library's own.
        let actor = co_actor(of: Int.self) { mailbox in
          mailbox.schedule(1, after: .milliseconds(1))
          _ = try mailbox.receive()
        }
        try actor.job.join()
      }
      let counts = CoroutineRuntime.metrics.timeouts
      #expect(counts == [Self.passes(): 3, Self.hasPassed(): 1], "\(counts)")
      #expect(CoroutineRuntime.passedLimits()[Self.passes()] == .milliseconds(1))
      let text = CoroutineRuntime.metricsText
      #expect(text.contains("coroutine_timeouts_total{site=\"\(Self.passes())\"} 3\n"), "\(text)")
    }
  }

  // Outside of the body of an exit test, all of which is on one line. Outside of a coroutine no deadline passes.

  @discardableResult
  private static func passes() -> String {
    try? co_timeout(.milliseconds(1)) { try waitForCancellation() }
    return here(#line - 1)
  }

  @discardableResult
  private static func hasPassed() -> String {
    try? co_timeout(.zero) {}
    return here(#line - 1)
  }
}
