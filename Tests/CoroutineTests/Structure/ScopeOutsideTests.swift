import CoroutineTesting
import Testing

@testable import Coroutine

/// A scope whose children were cut short from outside does not return as if they had done their work.
@Suite("A cancellation from outside a scope", .timeLimit(.minutes(10)))
struct ScopeOutsideTests {
  /// What the body does with the cancellation.
  enum Body: CaseIterable {
    case returns, waits, catches, isShielded, computes, stepsGenerator, launches

    func run(_ scope: Scope) throws {
      switch self {
      case .returns: break
      case .waits: try co_delay(.milliseconds(100))
      case .catches: try? co_delay(.milliseconds(100))
      case .isShielded: try co_shield { try co_delay(.milliseconds(100)) }
      case .computes: while !co_isCancelled { try co_shield { try co_delay(.milliseconds(1)) } }
      case .stepsGenerator:
        for _ in co_sequence(
          of: Int.self,
          { yield in
            try co_delay(.milliseconds(100))
            try yield(1)
          }
        ) {}
      case .launches:
        try? co_delay(.milliseconds(100))
        scope.launch {}
      }
    }
  }

  /// Where the cancellation comes from.
  enum Source: CaseIterable {
    case job, deadline, scope

    /// Calls `work`, in which a cancellation comes after 50 ms, and returns its outcome.
    func cancel(_ work: @escaping @Sendable () throws -> Void) throws -> String {
      switch self {
      case .job:
        let job = co_launch { try work() }
        try co_delay(.milliseconds(50))
        job.cancel(Oops("outside"))
        return outcome { try job.join() }
      case .deadline: return outcome { try co_timeout(.milliseconds(50)) { try work() } }
      case .scope:
        return outcome {
          try co_scope { scope in
            let child = scope.launch { try work() }
            try co_delay(.milliseconds(50))
            scope.cancel(Oops("outside"))
            try co_shield { try child.join() }
          }
        }
      }
    }

    var error: String { self == .deadline ? "TimeoutError" : "Oops(outside)" }
  }

  @Test(.inWorlds, arguments: Body.allCases, Source.allCases)
  func `is thrown at the scope's end, whatever the body has done with it`(_ body: Body, _ source: Source) throws {
    for failures in [Scope.Failures.together, .isolated] {
      let done = Locked(0)
      let seen = try source.cancel {
        try co_scope(failures: failures) { scope in
          for _ in 0..<3 {
            scope.launch {
              try co_delay(.milliseconds(400))
              done.withLock { $0 += 1 }
            }
          }
          try body.run(scope)
        }
      }
      #expect(seen == source.error)
      #expect(done.current == 0)
    }
  }

  @Test(.inWorlds, arguments: Source.allCases)
  func `that finds no child does not take the value of a body that has caught it`(_ source: Source) throws {
    let value = Locked(0)
    _ = try source.cancel {
      try co_scope { scope in
        try scope.launch {}.join()
        try co_shield { try co_delay(.milliseconds(100)) }
        value.current = 7
      }
      value.current += 1
    }
    #expect(value.current == 8)
  }

  /// The children of a server's scope are told by the scope around it.
  @Test(.inWorlds) func `reaches a scope inside of a scope, which throws as well`() throws {
    let trace = Trace()
    let job = co_launch {
      try co_scope { scope in
        scope.launch { try waitForCancellation() }
        trace(
          outcome {
            try co_scope { scope in
              scope.launch { try waitForCancellation() }
              try? waitForCancellation()
            }
          }
        )
      }
    }
    try settleWorld()
    job.cancel(Oops("outside"))
    #expect(outcome { try job.join() } == "Oops(outside)")
    #expect(trace.all == ["Oops(outside)"])
  }

  // MARK: Depth

  /// Opens `depth` scopes inside one another, each in a child of the one around it, and calls `body` in the innermost.
  private static func nest(_ depth: Int, _ body: @escaping @Sendable () throws -> Void) throws {
    guard depth > 0 else { return try body() }
    try co_scope { scope in
      scope.launch { try nest(depth - 1, body) }
    }
  }

  @Test(arguments: ["cancel", "stop", "signal"]) func `may come to any depth of scopes`(_ how: String) async throws {
    let depth = isSanitized ? 500 : 5_000
    let seen = try await onCoroutine(on: taggedQueue("deep")) {
      let (reached, kept) = (Gate(), Locked<StopSignal?>(nil))
      let seen = outcome {
        try co_scope { scope in
          scope.launch {
            try Self.nest(depth) {
              kept.current = co_stopping
              reached.open()
              if how == "cancel" { try waitForCancellation() } else { try co_await(co_stopping) }
            }
          }
          try reached.pass()
          if how == "cancel" { scope.cancel(Oops("deep")) } else { scope.stop(within: .seconds(600)) }
        }
      }
      // The last reference to the chain of signals.
      kept.current = nil
      return seen
    }
    #expect(seen == "()")
  }

  @Test func `and bindings of any depth are released`() async throws {
    let local = CoroutineLocal(default: 0)
    @Sendable func bind(_ depth: Int, _ done: Gate) {
      if depth == 0 { return done.open() }
      local.withValue(depth) { _ = co_launch { bind(depth - 1, done) } }
    }
    let done = Gate()
    bind(isSanitized ? 500 : 100_000, done)
    try await done.value
  }
}
