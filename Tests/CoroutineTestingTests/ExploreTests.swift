import Coroutine
import Glibc
import Synchronization
import Testing

@testable import CoroutineTesting

/// A transfer that loses an update if the other one runs at its point.
@Sendable func lostUpdate() throws {
  let balance = Cell(0)
  let jobs = (0..<2).map { number in
    co_launch(name: "adder \(number)") {
      let seen = balance.value
      co_point()
      balance.value = seen + 1
    }
  }
  for job in jobs { try job.join() }
  if balance.value != 2 { throw Lost() }
}

/// What every strategy finds, shrinks and replays.
@Suite(.timeLimit(.minutes(10)))
struct ExploreTests {
  @Test(arguments: [Exploration.Strategy.random(), .priorities(), .exhaustive()])
  func `a lost update is found, shrunk, described, and replayed from its token`(strategy: Exploration.Strategy) throws {
    let found = explore(strategy, lostUpdate)
    let failure = try #require(found.failure)
    #expect(failure.error is Lost)
    #expect(failure.switches == 1)
    #expect(failure.description.contains("\"adder 0\""))
    #expect(failure.description.contains(failure.token))
    for _ in 0..<100 {
      let again = explore(.replay(failure.token), lostUpdate)
      #expect(again.runs == 1)
      #expect(again.failure?.error is Lost)
      #expect(again.failure?.token == failure.token)
    }
  }

  @Test func `a replay whose token does not fit the program fails, and says where`() throws {
    let token = try #require(explore(.random(), lostUpdate).failure).token
    let tokens: [(token: String, step: Int, body: @Sendable () throws -> Void)] = [
      // Seed 0, and 9 as the first choice, which has two answers.
      ("1009", 0, { try co_scope { scope in for _ in 0..<2 { scope.launch {} } } }),
      // The third choice is never asked.
      ("1021", 2, { for _ in 0..<2 { _ = co_fault("disk") } }),
      (token, 0, { for _ in 0..<3 { co_point() } }),
    ]
    for (token, step, body) in tokens {
      let failure = try #require(explore(.replay(token), body).failure, "\(token)")
      #expect((failure.error as? Exploration.TokenError)?.step == step, "\(failure)")
      #expect(failure.description.contains("diverged at choice \(step)"))
    }
    // The body's own error comes first.
    let failure = try #require(explore(.replay("1009")) { throw Lost() }.failure)
    #expect(failure.error is Lost)
    #expect(failure.description.contains("diverged at choice 0"))
  }

  @Test func `CO_REPLAY replays a token in place of the strategy`() async throws {
    let token = try #require(explore(.exhaustive(), lostUpdate).failure).token
    await #expect(processExitsWith: .success) { [token = token as String] in
      setenv("CO_REPLAY", token, 1)
      for strategy in [Exploration.Strategy.inOrder, .random(), .exhaustive()] {
        let found = explore(strategy, lostUpdate)
        #expect(found.runs == 1)
        #expect(found.failure?.error is Lost)
        #expect(found.failure?.token == token)
      }
    }
  }

  @Test func `a run that outlasts the world's time limit fails`() throws {
    let body: @Sendable () throws -> Void = { for _ in 0..<60 { try co_delay(.seconds(1)) } }
    #expect(explore(.inOrder, timeLimit: .seconds(60), body).failure == nil)
    let failure = try #require(explore(.inOrder, timeLimit: .seconds(59), body).failure)
    let error = try #require(failure.error as? World.TimeLimitError)
    #expect(error.limit == .seconds(59))
    #expect("\(error)".contains("59.0 seconds of the world's time"))
    #expect(error.dump.contains("delay"))
  }

  @Test func `a run that turns in a circle fails, although no time passes`() throws {
    var explorer = Explorer({ while true { try co_yield() } }, .memory, nil)
    explorer.mostSteps = 10_000
    let failure = try #require(explorer.explore(.inOrder).failure)
    let error = try #require(failure.error as? World.TimeLimitError)
    #expect(error.limit == nil)
    #expect("\(error)".contains("no time passes"))
  }

  @Test func `the order without a strategy is one run, which finds no race`() {
    let found = explore(.inOrder, lostUpdate)
    #expect(found.runs == 1)
    #expect(!found.isComplete, "only an exhaustive search tries all schedules")
    #expect(found.failure == nil)
  }

  @Test func `a program without the bug passes exhaustively`() {
    let found = explore(.exhaustive()) {
      let balance = Cell(0)
      let lock = FairMutex()
      let jobs = (0..<2).map { _ in
        co_launch {
          try lock.withLock {
            let seen = balance.value
            co_point()
            balance.value = seen + 1
          }
        }
      }
      for job in jobs { try job.join() }
      if balance.value != 2 { throw Lost() }
    }
    #expect(found.failure == nil)
    #expect(found.isComplete)
    #expect(found.runs > 3)
  }

  @Test(.enabled(if: !isSanitized)) func `every schedule is tried once`() {
    for (coroutines, points, expected) in [(2, 1, 6), (2, 2, 20), (3, 1, 90), (3, 2, 1680)] {
      let seen = Mutex<Set<[Int]>>([])
      let found = explore(.exhaustive(preemptions: .max)) {
        let order = Cell<[Int]>([])
        let end = WaitGroup()
        end.add(coroutines)
        for number in 0..<coroutines {
          co_launch {
            order.value.append(number)
            for _ in 0..<points {
              co_point()
              order.value.append(number)
            }
            end.done()
          }
        }
        try end.wait()
        seen.withLock { _ = $0.insert(order.value) }
      }
      #expect(found.isComplete)
      // The body waits before its coroutines or after them, which orders nothing among them.
      #expect(seen.withLock { $0.count } == expected)
      #expect(found.runs >= expected)
    }
  }

  @Test func `schedules with fewer preemptions are tried first, and each is counted once`() {
    // Four coroutines of several steps; the fault needs one preemption, of the first one.
    let body: @Sendable () throws -> Void = {
      let (balance, isWrong) = (Cell(0), Cell(false))
      try co_scope { scope in
        scope.launch {
          let seen = balance.value
          co_point()
          isWrong.value = balance.value != seen
        }
        for _ in 0..<3 {
          scope.launch {
            for _ in 0..<4 { co_point() }
            balance.value += 1
          }
        }
      }
      if isWrong.value { throw Lost() }
    }
    let least = explore(.exhaustive(preemptions: 1), body)
    #expect(least.failure?.error is Lost)
    for preemptions in [2, 3, 10, .max] {
      let found = explore(.exhaustive(preemptions: preemptions), body)
      #expect(found.failure?.error is Lost)
      #expect(found.runs == least.runs, "\(preemptions)")
    }
  }

  @Test func `at most so many schedules are tried`() {
    let found = explore(.exhaustive(preemptions: 5, most: 7), lostUpdateFree)
    #expect(found.runs == 7)
    #expect(!found.isComplete)
  }

  @Test func `without preemptions a race at a point is not found`() {
    #expect(explore(.exhaustive(preemptions: 0), lostUpdate).failure == nil)
    #expect(explore(.exhaustive(preemptions: 1), lostUpdate).failure != nil)
  }

  @Test func `what depends on something else than the choices is nondeterminism`() throws {
    let runs = Counter()
    let drift: @Sendable () throws -> Void = {
      let number = runs.next()
      let jobs = (0..<2).map { _ in co_launch { for _ in 0..<number { co_point() } } }
      for job in jobs { try job.join() }
    }
    for strategy in [Exploration.Strategy.random(), .priorities(), .exhaustive()] {
      let failure = try #require(explore(strategy, drift).failure)
      #expect(failure.error is Exploration.NondeterminismError, "\(strategy)")
    }
  }

  @Test func `a schedule that runs twice must be the same run twice`() throws {
    // The sixth run differs: the second one of the third schedule.
    let bodies: [(expected: Int, body: @Sendable (Int) throws -> Void)] = [
      // One choice more, after two.
      (2, { number in for _ in 0..<(number < 6 ? 2 : 3) { _ = co_fault("disk") } }),
      // The same number of choices, of another kind.
      (
        1,
        { number in
          _ = co_fault("disk")
          if number < 6 { _ = co_fault("disk") } else { try co_launch {}.join() }
        }
      ),
      // No choice at all, but time.
      (0, { number in if number == 6 { try co_delay(.seconds(1)) } }),
      // One coroutine less.
      (0, { number in try co_scope { scope in for _ in 0..<(number < 6 ? 3 : 2) { scope.launch {} } } }),
    ]
    for (number, (expected, body)) in bodies.enumerated() {
      let runs = Counter()
      var explorer = Explorer({ try body(runs.next()) }, .memory, nil)
      explorer.runsTwice = true
      let found = explorer.explore(.random())
      #expect(found.runs == 3, "\(number)")
      #expect((found.failure?.error as? Exploration.NondeterminismError)?.step == expected, "\(number)")
    }
  }

  @Test func `what differs is said with the coroutine and the choice`() throws {
    for strategy in [Exploration.Strategy.random(), .exhaustive()] {
      let runs = Counter()
      let found = explore(strategy) {
        let count = runs.next() == 1 ? 3 : 4
        try co_scope { scope in
          for number in 0..<count { scope.launch(name: "member \(number)") {} }
        }
      }
      let failure = try #require(found.failure)
      let error = try #require(failure.error as? Exploration.NondeterminismError)
      #expect("\(error)".contains("first at choice 0: \"member "), "\(error)")
      #expect("\(error)".contains("of 4 that could run, where the other run had"), "\(error)")
      #expect("\(error)".contains("SWIFT_DETERMINISTIC_HASHING"))
    }
  }

  @Test func `the body's own error is not hidden by a run that cannot be repeated`() throws {
    // The number of the run that fails alone: the first one, the one that repeats it, one that nothing repeats.
    for failing in [1, 2, 5] {
      let runs = Counter()
      let failure = try #require(
        explore(.random()) { if runs.next() == failing { throw Lost() } }.failure,
        "\(failing)"
      )
      #expect(failure.error is Lost)
      #expect(failure.description.contains("the same choices led to different runs"), "\(failure)")
    }
    let runs = Counter()
    let found = explore(.exhaustive()) {
      if runs.next() == 2 { throw Lost() }
      try co_scope { scope in for _ in 0..<2 { scope.launch {} } }
    }
    #expect(found.failure?.error is Lost)
  }

  @Test(arguments: [1, 2, 1_000, Int.max]) func `a strategy looks for bugs of any depth`(depth: Int) {
    let found = explore(.priorities(depth: depth, runs: 20), lostUpdateFree)
    #expect(found.runs == 20)
    #expect(found.failure == nil)
  }

  /// A strategy that would run nothing, or has a number that no schedule has.
  enum Impossible: String, CaseIterable, Codable, Sendable {
    case noSeeds, fewerSeeds, noRuns, fewerRuns, noDepth, fewerPreemptions, noSchedules

    func make() {
      switch self {
      case .noSeeds: _ = Exploration.Strategy.random(seeds: 0)
      case .fewerSeeds: _ = Exploration.Strategy.random(seeds: -1)
      case .noRuns: _ = Exploration.Strategy.priorities(runs: 0)
      case .fewerRuns: _ = Exploration.Strategy.priorities(runs: -7)
      case .noDepth: _ = Exploration.Strategy.priorities(depth: 0)
      case .fewerPreemptions: _ = Exploration.Strategy.exhaustive(preemptions: -1)
      case .noSchedules: _ = Exploration.Strategy.exhaustive(most: 0)
      }
    }

    var words: String {
      switch self {
      case .noSeeds: "with 0 seeds runs nothing"
      case .fewerSeeds: "with -1 seeds runs nothing"
      case .noRuns: "with 0 runs runs nothing"
      case .fewerRuns: "with -7 runs runs nothing"
      case .noDepth: "a depth of 0"
      case .fewerPreemptions: "have -1 preemptions"
      case .noSchedules: "at most 0 schedules runs nothing"
      }
    }
  }

  @Test(arguments: Impossible.allCases)
  func `a strategy that would run nothing ends the process with a sentence`(_ strategy: Impossible) async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      [strategy = strategy as Impossible] in
      strategy.make()
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(strategy.words), "\(words)")
  }

  @Test func `a body that only the choices determine may run twice`() {
    for strategy in [Exploration.Strategy.inOrder, .random(), .priorities(runs: 100)] {
      let runs = Counter()
      var explorer = Explorer(
        {
          _ = runs.next()
          try lostUpdateFree()
        },
        .memory,
        nil
      )
      explorer.runsTwice = true
      let found = explorer.explore(strategy)
      #expect(found.failure == nil)
      #expect(runs.next() == 2 * found.runs + 1)
    }
  }

  @Test func `a fault is drawn, found and replayed`() throws {
    struct Lost: Error {}
    let body: @Sendable () throws -> Void = {
      var written = 0
      for _ in 0..<5 where !co_fault("disk.write") { written += 1 }
      if written == 4 { throw Lost() }
    }
    #expect(explore(.inOrder, body).failure == nil)
    for strategy in [Exploration.Strategy.random(), .exhaustive()] {
      let failure = try #require(explore(strategy, body).failure)
      #expect(failure.switches == 0)
      #expect(failure.description.contains("1 fault"))
      #expect(explore(.replay(failure.token), body).failure?.error is Lost)
    }
  }

  @Test func `a token that no run has printed is refused`() {
    for token in ["", "x", "1", "1g", "10h"] {
      #expect(explore(.replay(token)) {}.failure?.error is Exploration.TokenError, "\(token)")
    }
    #expect(explore(.replay("10")) {}.failure == nil)
  }

  @Test func `names of coroutines, tokens and hosts are escaped in what a failure prints`() throws {
    let failure = try #require(
      explore(.random()) {
        let job = co_launch(name: "a\nb\u{1B}") { throw CoroutineError.abandoned }
        try job.join()
      }.failure
    )
    #expect(failure.description.contains(#" "a\nb\u{1B}""#), "\(failure)")
    #expect(!failure.description.unicodeScalars.contains("\u{1B}"))
    #expect("\(Exploration.TokenError(token: "a\nb", step: nil))" == #""a\nb" is no token of a run"#)
    #expect("\(World.UnknownHostError(name: "a\nb"))".hasPrefix(#"no host is called a\nb: "#))
  }

  @Test func `a thousand seeds give equal runs twice`() throws {
    for seed in 0..<(isSanitized ? 100 : 1_000) as Range<UInt64> {
      #expect(try Programs.fingerprint(seed) == Programs.fingerprint(seed))
    }
  }

  @Test func `a coroutine that cannot be cancelled is left behind without harm`() throws {
    let never = Promise<Void>()
    let found = explore(.inOrder) { try co_shield { try co_await(never) } }
    #expect(found.failure?.error is World.DeadlockError)
  }
}

@Sendable func lostUpdateFree() throws {
  try co_scope { scope in
    for _ in 0..<3 { scope.launch { for _ in 0..<5 { co_point() } } }
  }
}
