import Coroutine
import CoroutineNet
import CoroutineTesting
import Testing

/// How simple a failing run becomes.
@Suite(.timeLimit(.minutes(10)))
struct ShrinkTests {
  @Test(arguments: [Exploration.Strategy.random(), .priorities(), .exhaustive()])
  func `a race of two coroutines is shrunk to few switches`(strategy: Exploration.Strategy) throws {
    let failure = try #require(explore(strategy, Programs.race).failure)
    #expect(failure.error is Lost)
    #expect(failure.switches <= 3)
    // A schedule without preemptions does not lose anything, so one is the least.
    #expect(failure.switches >= 1)
    let again = explore(.replay(failure.token), Programs.race)
    #expect(again.failure?.error is Lost)
    #expect(again.failure?.switches == failure.switches)
  }
  /// Two coroutines that take turns: an even count waits for the first one, an odd count for the second one.
  ///
  /// Five turns need three preemptions: the fourth change is free, because the second coroutine ends before it.
  @Sendable private static func fiveTurns() throws {
    let turns = Cell(0)
    let jobs = (0..<2).map { number in
      co_launch {
        for _ in 0..<8 {
          if turns.value % 2 == number { turns.value += 1 }
          co_point()
        }
      }
    }
    for job in jobs { try job.join() }
    if turns.value >= 5 { throw Lost() }
  }

  @Test(.enabled(if: !isSanitized))
  func `a race that needs three preemptions is shrunk to three, whatever its first schedule`() throws {
    #expect(explore(.exhaustive(preemptions: 2), Self.fiveTurns).failure == nil)
    for seed in 0..<40 as Range<UInt64> {
      let failure = try #require(explore(.random(from: seed), Self.fiveTurns).failure, "\(seed)")
      #expect(failure.switches == 3, "seed \(seed)")
    }
  }

  @Test func `the schedule of many coroutines has a name in each row, and no line is wider than a screen`() throws {
    let failure = try #require(
      explore(.random(from: 0)) {
        let jobs = (0..<40).map { number in co_launch(name: "a page of number \(number)") { try co_yield() } }
        for job in jobs { try job.join() }
        throw Lost()
      }
      .failure
    )
    let lines = "\(failure)".split(separator: "\n")
    #expect(lines.allSatisfy { $0.count <= 200 }, "\(failure)")
    #expect(lines.contains { $0.hasPrefix("#41 \"a page of number 39\"") && $0.hasSuffix("  ended") }, "\(failure)")
    #expect(lines.contains { $0.hasPrefix("#1 \"body\"") && $0.hasSuffix("  ended") }, "\(failure)")
  }

  /// Many coroutines, a lot of time, many lines in the error, a server: what fails in every order.
  private static let everyOrder: [@Sendable () throws -> Void] = [
    {
      for round in 0..<200 {
        let jobs = (0..<10).map { number in co_launch(name: "\(round).\(number)") { try co_delay(.seconds(number)) } }
        for job in jobs { try job.join() }
      }
      throw Lost()
    },
    {
      for _ in 0..<30 { co_launch(name: "left behind") { try co_delay(.seconds(1)) } }
    },
    {
      let channel = Channel<Int>()
      try co_scope { scope in
        for number in 0..<100 { scope.launch(name: "reader \(number)") { _ = try channel.receive() } }
      }
    },
  ]

  @Test(.timeLimit(.minutes(10)), arguments: everyOrder.indices)
  func `what fails in every order is shrunk within five seconds, and told in at most 60 lines`(index: Int) throws {
    for strategy in [Exploration.Strategy.random(from: 1), .exhaustive(preemptions: 1)] {
      let start = processorTime()
      let failure = try #require(explore(strategy, Self.everyOrder[index]).failure)
      // The runs before and after the shrinking take a part of a second; without its limit it would take minutes.
      #expect(processorTime() - start < .seconds(isSanitized ? 40 : 15))
      let lines = "\(failure)".split(separator: "\n", omittingEmptySubsequences: false)
      #expect(lines.count <= 61, "\(lines.count) lines: \(failure)")
      #expect(lines.contains { $0.hasPrefix("CO_REPLAY=") })
    }
  }

  @Test func `the library's own coroutines are left out`() throws {
    let failure = try #require(
      explore(.inOrder) {
        guard let world = World.current else { return }
        world.network.host("server") {
          try Server.run(.any(port: 80)) { connection in try connection.write("hello\n".utf8) }
        }
        try world.settle()
        let connection = try Connection.connect(host: "server", port: 80)
        _ = try connection.read(upTo: 10)
        throw Lost()
      }
      .failure
    )
    #expect("\(failure)".contains("\"server\""), "\(failure)")
    let lines = "\(failure)".split(separator: "\n")
    #expect(!lines.contains { $0.contains("\"accept") && $0.contains("launched at") }, "\(failure)")
    #expect("\(failure)".contains("steps of the library's own"), "\(failure)")
  }

  @Test func `the table names the owner of a lock, and cuts no address`() throws {
    let failure = try #require(
      explore(.inOrder) {
        let lock = FairMutex()
        try co_scope { scope in
          scope.launch(name: "owner") { try lock.withLock { try co_delay(.seconds(1)) } }
          scope.launch(name: "waiter") { try lock.withLock {} }
        }
        throw Lost()
      }
      .failure
    )
    let line = try #require("\(failure)".split(separator: "\n").first { $0.contains("FairMutex") }, "\(failure)")
    #expect(line.contains("held by #2 \"owner\""), "\(failure)")
    #expect(line.contains(" 0x"), "\(failure)")
  }

  /// Fails by one preemption, or by two faults.
  @Sendable private static func preemptionOrFaults() throws {
    let balance = Cell(0)
    let jobs = (0..<2).map { _ in
      co_launch {
        let seen = balance.value
        co_point()
        balance.value = seen + 1
      }
    }
    for job in jobs { try job.join() }
    let (first, second) = (co_fault("first"), co_fault("second"))
    if balance.value != 2 || first && second { throw Lost() }
  }

  /// Fails by a fault at once, or without one after a second.
  @Sendable private static func faultOrTime() throws {
    if !co_fault("at once") { try co_delay(.seconds(1)) }
    throw Lost()
  }

  /// Fails by one preemption, after one second or ten: that of the coroutine which starts first.
  @Sendable private static func raceThenDelay() throws {
    let (balance, first) = (Cell(0), Cell(0))
    let jobs = [10, 1].map { seconds in
      co_launch {
        if first.value == 0 { first.value = seconds }
        let seen = balance.value
        co_point()
        balance.value = seen + 1
      }
    }
    for job in jobs { try job.join() }
    if balance.value == 2 { return }
    try co_delay(.seconds(first.value))
    throw Lost()
  }

  @Test func `a run is shrunk to fewest preemptions, then fewest faults, then least virtual time`() throws {
    let programs: [(@Sendable () throws -> Void, String)] = [
      (Self.preemptionOrFaults, "\n0 switches, 2 faults, 0.0 seconds of"),
      (Self.faultOrTime, "\n0 switches, 0 faults, 1.0 seconds of"),
      (Self.raceThenDelay, "\n1 switch, 0 faults, 1.0 seconds of"),
    ]
    for (program, measures) in programs {
      for seed in 0..<40 as Range<UInt64> {
        let failure = try #require(explore(.random(from: seed), program).failure, "\(seed)")
        #expect(failure.description.contains(measures), "seed \(seed): \(failure.description)")
      }
    }
  }
}
