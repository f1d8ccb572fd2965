import Testing

@testable import Coroutine

@Suite("co_onCancel", .timeLimit(.minutes(10)))
struct OnCancelTests {
  @Test(.inWorlds) func `the handler is called once, while the body waits, by a cancellation, a deadline or a scope`()
    throws
  {
    let trace = Trace()
    let job = co_launch {
      try co_onCancel({ trace("told") }) {
        defer { trace("unwound") }
        try waitForCancellation()
      }
    }
    try settleWorld()
    #expect(trace.all == [])
    job.cancel()
    #expect(outcome { try job.join() } == "CancellationError")
    #expect(trace.all == ["told", "unwound"])

    let deadline = Trace()
    _ = outcome { try co_timeout(.seconds(1)) { try co_onCancel({ deadline("told") }) { try waitForCancellation() } } }
    #expect(deadline.all == ["told"])

    let scoped = Trace()
    _ = outcome {
      try co_scope { scope in
        scope.launch {
          try co_delay(.seconds(1))
          throw Oops("child")
        }
        try co_onCancel({ scoped("told") }) { try waitForCancellation() }
      }
    }
    #expect(scoped.all == ["told"])
  }

  @Test(.inWorlds) func `it is called at once if the coroutine is cancelled already, and not after the body`() throws {
    let trace = Trace()
    let job = co_launch {
      try co_onCancel({ trace("late") }) {}
      _ = outcome { try waitForCancellation() }
      try co_onCancel({ trace("at once") }) { trace("body") }
      try co_shield { try co_onCancel({ trace("hidden") }) { try co_yield() } }
    }
    try settleWorld()
    job.cancel()
    try job.join()
    #expect(trace.all == ["at once", "body"])
  }

  @Test(.inWorlds) func `a deadline inside of the body is none of its`() throws {
    let trace = Trace()
    let tell: @Sendable () -> Void = { trace("told") }
    try co_onCancel(tell) {
      _ = outcome { try co_timeout(.seconds(1)) { try waitForCancellation() } }
    }
    #expect(trace.all == [])
    let nothing: @Sendable () -> Void = {}
    #expect(failsOutside { try co_onCancel(nothing) {} })
  }

  private func failsOutside(_ body: @escaping @Sendable () throws -> Void) -> Bool {
    (try? co_blocking { outcome(body) }) == "notInCoroutine"
  }

  @Test func `a blocking call is told, and its coroutine has left when the call ends`() async throws {
    let (flag, begun) = (Gate(), Gate())
    let job = co_launch {
      let tell: @Sendable () -> Void = { flag.open() }
      try co_onCancel(tell) {
        try co_shield {
          try co_blocking {
            begun.open()
            try flag.blockingWait()
          }
        }
      }
    }
    try await onCoroutine { try begun.pass() }
    job.cancel()
    let seen = await asyncOutcome { try await job.value }
    #expect(seen == "()")
  }
}
