import CoroutineTesting
import Testing

@testable import Coroutine

/// Flights and bodies of Once that would wait for one another: one wait is refused, and nothing is left that waits.
///
/// In worlds, in many orders.
@Suite("Circles of flights and Onces", .timeLimit(.minutes(5)))
struct FlightCircleTests {
  private let flights = SingleFlight<Int, String>()
  private let onces = (0..<6).map { _ in Once<String>(afterFailure: .retries) }
  private let refused = Trace()

  /// Calls `wait`; writes a refusal into the trace, and throws an error that others do not take for their own refusal.
  private func refusing(_ wait: () throws -> String) throws -> String {
    do { return try wait() } catch {
      guard case CoroutineError.wouldDeadlock = error else { throw error }
      refused(name(of: error))
      throw Oops("refused")
    }
  }

  /// Runs a body, and waits for its result: of a flight or of a Once.
  private func run(_ isFlight: Bool, _ key: Int, _ body: @escaping @Sendable () throws -> String) throws -> String {
    if isFlight { return try flights.run(key, body) }
    return try onces[key].run(body)
  }

  /// Nothing is kept, and every key can be used.
  private func checkAfterwards(_ count: Int) throws {
    for key in 0..<count {
      let value = try flights.run(key) { "anew" }
      #expect(value == "anew")
      // A waiter may have run its own body after the refused one.
      #expect(["anew", "no circle"].contains(try onces[key].run { "anew" }))
    }
  }

  @Test(
    .inWorlds,
    arguments: [
      [true, true], [false, false], [true, false], [true, true, true], [false, false, false, false],
      [true, false, false, true, true],
    ]
  )
  func `of a ring one wait is refused, and all end`(_ kinds: [Bool]) throws {
    let running = Latch(kinds.count)
    let jobs = kinds.indices.map { index in
      co_launch(name: "ring \(index)") {
        outcome {
          try run(kinds[index], index) {
            running.countDown()
            try running.wait()
            let next = (index + 1) % kinds.count
            return try refusing { try run(kinds[next], next) { "no circle" } }
          }
        }
      }
    }
    // Who waits for a flight gets its error; who waits for a Once runs its own body then.
    let seen = try jobs.map { try $0.join() }
    #expect(seen.contains("Oops(refused)") && Set(seen).isSubset(of: ["Oops(refused)", "no circle"]))
    if !kinds.contains(false) { #expect(Set(seen).count == 1) }
    #expect(refused.count == 1)
    try checkAfterwards(kinds.count)
  }

  /// As the ring, but the refused body goes on.
  @Test(.inWorlds) func `the others get the result of a body that goes on after the refusal`() throws {
    let running = Latch(3)
    let jobs = (0..<3).map { index in
      co_launch {
        try flights.run(index) {
          running.countDown()
          try running.wait()
          do { return try refusing { try flights.run((index + 1) % 3) { "no circle" } } } catch { return "refused" }
        }
      }
    }
    #expect(try jobs.map { try $0.join() } == ["refused", "refused", "refused"])
    #expect(refused.count == 1)
  }

  @Test(
    .inWorlds,
    arguments: ["scope", "supervise", "join", "immediate", "await", "all", "settled", "grandchild"],
    [true, false]
  )
  func `a child that waits for the body that waits for it is refused, or its parent is`(
    _ kind: String,
    _ isFlight: Bool
  ) throws {
    let seen = outcome {
      try run(isFlight, 0) {
        let child: @Sendable () throws -> String = { try run(isFlight, 0) { "no circle" } }
        switch kind {
        case "scope": return try co_scope { scope in scope.launch(child) }.join()
        case "supervise": return try co_scope(failures: .isolated) { scope in scope.launch(child) }.join()
        case "join": return try co_launch(child).join()
        case "immediate": return try co_launch(start: .immediate, child).join()
        case "await": return try co_await(co_launch(child))
        case "all": return try co_all([co_launch(child), co_launch { "other" }])[0]
        case "settled": return try co_allSettled([co_launch(child)])[0].get()
        default: return try co_scope { scope in try scope.launch { try co_launch(child).join() }.join() }
        }
      }
    }
    #expect(seen == "wouldDeadlock")
    try checkAfterwards(1)
  }

  @Test(.inWorlds) func `a child that was launched before the body began is found when the body joins it`() throws {
    let (once, begun) = (onces[0], Latch(1))
    let child = co_launch {
      try begun.wait()
      return outcome { try once.run { "no circle" } }
    }
    let seen = outcome {
      try once.run {
        begun.countDown()
        return try child.join()
      }
    }
    // Either of the two is refused; the body may end with the child's refusal as its value.
    #expect(seen == "wouldDeadlock")
    #expect(["wouldDeadlock", "no circle"].contains(try child.join()))
  }

  @Test(.inWorlds) func `a body of a generator that runs a Once is part of a circle`() throws {
    let running = Latch(2)
    let jobs = (0..<2).map { index in
      co_launch {
        let generator = co_sequence(of: String.self) { yield in
          let seen = outcome {
            try onces[index].run {
              running.countDown()
              try running.wait()
              return try refusing { try onces[1 - index].run { "no circle" } }
            }
          }
          try yield(seen)
        }
        return generator.next()
      }
    }
    #expect(Set(try jobs.map { try $0.join() ?? "none" }) == ["Oops(refused)", "no circle"])
    #expect(refused.count == 1)
  }

  // MARK: No circles

  @Test(.inWorlds) func `a child that nobody waits for gets the result of the body that has launched it`() throws {
    let child = Locked<Job<String>?>(nil)
    let value = try flights.run(0) {
      let job = co_launch { try flights.run(0) { "another flight" } }
      child.withLock { $0 = job }
      try co_delay(.milliseconds(1))
      return "the flight"
    }
    #expect(value == "the flight")
    #expect(try child.withLock { $0 }?.join() == "the flight")
  }

  @Test(.inWorlds) func `bodies that share what they wait for form no circle`() throws {
    let value = try flights.run(0) {
      try co_scope { scope in
        let jobs = [1, 2].map { key in
          scope.launch { try flights.run(key) { try flights.run(3) { try onces[0].run { "bottom" } } } }
        }
        return try jobs.map { try $0.join() }.joined()
      }
    }
    #expect(value == "bottombottom")
  }

  @Test(.inWorlds, arguments: ["deadline", "cancel", "scope"])
  func `a wait that has ended, or will end by its scope, closes no circle`(_ how: String) throws {
    let first = co_launch {
      try flights.run(0) {
        let second: @Sendable () throws -> String = { try flights.run(1) { try longBody() } }
        switch how {
        case "deadline": _ = outcome { try co_timeout(.milliseconds(1)) { try second() } }
        case "cancel":
          let child = co_launch(second)
          try co_delay(.milliseconds(1))
          child.cancel()
        default:
          try co_scope { scope in
            _ = scope.launch { _ = outcome { try second() } }
            try co_delay(.milliseconds(10))
            scope.cancel()
          }
        }
        try co_delay(.milliseconds(20))
        return "first"
      }
    }
    // Keeps the second flight alive.
    let other = co_launch {
      try co_delay(.microseconds(500))
      return try flights.run(1) { "too late" }
    }
    #expect(try other.join() == "long: first")
    #expect(try first.join() == "first")
    #expect(refused.count == 0)
  }

  private func longBody() throws -> String {
    try co_delay(.milliseconds(2))
    return "long: \(try refusing { try flights.run(0) { "no circle" } })"
  }

  @Test func `the graph is empty when nothing waits`() throws {
    try World().run {
      _ = outcome { try flights.run(0) { try flights.run(1) { try flights.run(0) { "no circle" } } } }
      let job = co_launch {
        try flights.run(2) {
          try flights.run(3) {
            try waitForCancellation()
            return ""
          }
        }
      }
      try co_delay(.milliseconds(1))
      #expect(WaitGraph.count > 0)
      job.cancel()
      _ = outcome { try job.join() }
      try co_delay(.milliseconds(1))
    }
    // Other tests may be waiting.
    #expect(WaitGraph.count < 1_000)
  }
}
