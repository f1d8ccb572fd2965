import Coroutine
import Testing

/// A cancelled stack is unwound by the error that the wait throws, frame by frame, the innermost first.
@Suite("Unwinding", .timeLimit(.minutes(10)))
struct UnwindingTests {
  /// Holds an object and has a defer on each level, and suspends at the bottom.
  @inline(never)
  private static func descend(_ level: Int, _ trace: Trace, _ bottom: () throws -> Void) throws {
    guard level <= 3 else { return try bottom() }
    let held = Tracked("\(level)", trace)
    defer {
      trace("defer \(level)")
      held.use()
    }
    try descend(level + 1, trace, bottom)
    trace("never reached")
  }

  private static let order = ["defer 3", "released 3", "defer 2", "released 2", "defer 1", "released 1"]

  @Test func `cancellation runs defers and releases objects in order`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = co_launch { try Self.descend(1, trace) { try waitForCancellation() } }
      try co_yield()
      trace("cancel")
      job.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
    #expect(trace.all == ["cancel"] + Self.order)
  }

  @Test(.inWorlds) func `a deadline unwinds up to its co_timeout and no further`() throws {
    let trace = Trace()
    let seen = try onWorldQueue {
      let outside = Tracked("outside", trace)
      let seen = outcome {
        try co_timeout(.milliseconds(5)) { try Self.descend(1, trace) { try waitForCancellation() } }
      }
      trace("after")
      outside.use()
      return seen
    }
    #expect(seen == "TimeoutError")
    #expect(trace.all == Self.order + ["after", "released outside"])
  }

  @Test func `a sibling's failure unwinds the children of a scope`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          scope.launch { try Self.descend(1, trace) { try waitForCancellation() } }
          try co_yield()
          scope.launch { throw Oops("sibling") }
        }
      }
    }
    #expect(seen == "Oops(sibling)")
    #expect(trace.all == Self.order)
  }

  @Test func `a stack is unwound even if every handle of its job has been released`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let kept = Locked<Resumer<Void>?>(nil)
      let ended = Gate()
      co_launch {
        try Self.descend(1, trace) { try co_suspend { kept.current = $0 } }
      }
      .finally { ended.open() }
      try co_yield()
      kept.current = nil
      try ended.pass()
    }
    #expect(trace.all == Self.order)
  }

  @Test func `the captures of a cancelled body are released`() async throws {
    let released = Gate()
    let job = launch(holding: Tracked { released.open() })
    job.cancel()
    try await onCoroutine { try released.pass() }
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
  }

  private func launch(holding held: Tracked) -> Job<Void> {
    co_launch {
      defer { held.use() }
      try waitForCancellation()
    }
  }
}
