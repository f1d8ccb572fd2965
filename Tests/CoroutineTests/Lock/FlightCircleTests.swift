import Coroutine
import CoroutineTesting
import Testing

/// Flights and bodies of Once that wait for one another: the search for deadlocks finds them.
///
/// In worlds, in many orders.
@Suite("Circles of flights and Onces", .timeLimit(.minutes(10)))
struct FlightCircleTests {
  private let flights = SingleFlight<Int, String>()
  private let onces = (0..<6).map { _ in Once<String>(afterFailure: .retries) }

  /// Runs a body, and waits for its result: of a flight or of a Once.
  private func run(_ isFlight: Bool, _ key: Int, _ body: @escaping @Sendable () throws -> String) throws -> String {
    if isFlight { return try flights.run(key, body) }
    return try onces[key].run(body)
  }

  /// The numbers of members of the circles of this world, once every coroutine waits.
  private func circles() throws -> [Int] {
    try co_delay(.milliseconds(1))
    return CoroutineRuntime.deadlocks().map(\.count)
  }

  @Test(
    .inWorlds,
    arguments: [
      [true, true], [false, false], [true, false], [true, true, true], [false, false, false, false],
      [true, false, false, true, true],
    ]
  )
  func `a ring is found, and ends when one of its bodies is cancelled`(_ kinds: [Bool]) throws {
    let (running, breaker) = (Latch(kinds.count), Locked<Scope?>(nil))
    let jobs = kinds.indices.map { index in
      co_launch(name: "ring \(index)") {
        outcome {
          try run(kinds[index], index) {
            try co_scope { scope in
              if index == 0 { breaker.withLock { $0 = scope } }
              running.countDown()
              try running.wait()
              let next = (index + 1) % kinds.count
              return try run(kinds[next], next) { "own body" }
            }
          }
        }
      }
    }
    #expect(try circles() == [kinds.count])
    breaker.withLock { $0.take() }?.cancel()
    // Who waits for a flight gets its error; who waits for a Once runs its own body then.
    #expect(Set(try jobs.map { try $0.join() }).isSubset(of: ["CancellationError", "own body"]))
    #expect(try circles() == [])
  }

  @Test(.inWorlds, arguments: ["scope", "isolated", "join", "immediate", "await", "grandchild"], [true, false])
  func `a child that waits for the body that waits for it is found`(_ kind: String, _ isFlight: Bool) throws {
    let breaker = Locked<Scope?>(nil)
    let job = co_launch {
      outcome {
        try run(isFlight, 0) {
          let child: @Sendable () throws -> String = { outcome { try run(isFlight, 0) { "own body" } } }
          return try co_scope { scope in
            breaker.withLock { $0 = scope }
            switch kind {
            case "scope": return try co_scope { scope in scope.launch(child) }.join()
            case "isolated": return try co_scope(failures: .isolated) { scope in scope.launch(child) }.join()
            case "join": return try co_launch(child).join()
            case "immediate": return try co_launch(start: .immediate, child).join()
            case "await": return try co_await(co_launch(child))
            default: return try co_scope { scope in try scope.launch { try co_launch(child).join() }.join() }
            }
          }
        }
      }
    }
    #expect(try circles() == [kind == "grandchild" ? 3 : 2])
    breaker.withLock { $0.take() }?.cancel()
    #expect(try job.join() == "CancellationError")
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

  @Test(.inWorlds) func `bodies that share what they wait for form none`() throws {
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
  func `a wait that has ended, or will end by its scope, is none`(_ how: String) throws {
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
  }

  private func longBody() throws -> String {
    try co_delay(.milliseconds(2))
    return "long: \(try flights.run(0) { "no circle" })"
  }
}
