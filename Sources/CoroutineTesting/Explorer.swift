import Coroutine

/// One run of a body: its choices, its failure, and the measures that shrinking compares.
struct Run {
  var choices: [Choice]
  var seed: UInt64
  var failure: (any Error)?
  /// The number of preemptions.
  var switches: Int
  /// The number of writes that were read in pieces.
  var splits: Int
  /// The number of faults that happened, with those writes.
  var faults: Int
  /// The number of other choices that differ from the order without a strategy.
  var others: Int
  /// The world's time at the end.
  var time: Duration
  /// The number of the world's steps.
  var length: Int
  /// Whether what is no choice must be the same too when the run is repeated.
  var isStrict = false
  var steps: [SimulatedStep] = []
  var dump = ""
  /// The first choice that differs from the one of the run that this one was to repeat, in words.
  var difference: String?

  /// Says where the run differs from `other`, which it was to repeat; nil if the runs agree.
  ///
  /// `strictly` also compares what is no choice: the number of steps, the world's time, whether the run has failed. Not
  /// the default, because a run that waits for the real world may differ there without any harm.
  func difference(from other: Run, strictly: Bool = false) -> Exploration.NondeterminismError? {
    let step =
      zip(choices, other.choices).enumerated().first { $1.0.mark != $1.1.mark }?.offset
      ?? min(choices.count, other.choices.count)
    if let difference { return .init(step: step, difference: difference) }
    if choices.count < other.choices.count {
      let rest = other.choices[step].text(among: .init(start: nil, count: 0))
      return .init(step: step, difference: "the end of the run, where the other run had \(rest)")
    }
    guard strictly, measures != other.measures else { return nil }
    return .init(step: step, difference: "\(measures); the other run: \(other.measures)")
  }

  /// What a repeated run has in common with the first one, apart from the choices.
  private var measures: String {
    "\(length) steps, \(time) of virtual time, " + (failure.map { "failed with \(asLine($0))" } ?? "no failure")
  }

  /// Whether the run has failed in the way of `error`.
  func fails(like error: any Error) -> Bool { failure.map { Self.kind(of: $0) == Self.kind(of: error) } ?? false }

  private static func kind(of error: any Error) -> ObjectIdentifier {
    // Each failure that nothing has observed comes in the same wrapper.
    ObjectIdentifier(type(of: (error as? World.UnhandledError)?.unhandled.error ?? error))
  }

  /// Whether the run is simpler than `other`.
  ///
  /// Compared in this order: preemptions, faults, virtual time, `others`, the number of choices.
  func isSimpler(than other: Run) -> Bool {
    (switches, faults, time, others, choices.count)
      < (other.switches, other.faults, other.time, other.others, other.choices.count)
  }
}

/// A body to explore.
enum ExploredBody {
  /// Code of a coroutine.
  case plain(@Sendable () throws -> Void)
  /// Code of a coroutine, which may begin a Task that is the world's.
  case test(@Sendable () throws -> Void)
  /// Code of a Task.
  case async(@Sendable () async throws -> Void)
}

/// Runs a body once for each schedule of a strategy, and describes the first failure.
struct Explorer {
  private let body: ExploredBody
  private let sharing: Exploration.Sharing
  private let timeLimit: Duration?
  /// Whether each schedule runs twice, and not only the first one.
  var runsTwice = false
  /// The largest number of steps while no time passes.
  var mostSteps = 10_000_000

  init(_ body: @escaping @Sendable () throws -> Void, _ sharing: Exploration.Sharing, _ timeLimit: Duration?) {
    self.init(.plain(body), sharing, timeLimit)
  }

  init(_ body: ExploredBody, _ sharing: Exploration.Sharing, _ timeLimit: Duration?) {
    self.body = body
    self.sharing = sharing
    self.timeLimit = timeLimit
  }

  /// Runs the body once; `expected` are the choices of a run that this one should repeat.
  func run(_ chooser: Chooser, seed: UInt64, isTraced: Bool = false, expecting expected: [Choice]? = nil) -> Run {
    let policy = RunPolicy(chooser, expecting: expected)
    let world = World()
    var failure: (any Error)?
    do {
      switch body {
      case .plain(let body):
        try world.run(policy, seed: seed, isTraced: isTraced, timeLimit: timeLimit, mostSteps: mostSteps, body)
      case .test(let body):
        try world.run(
          policy,
          seed: seed,
          isTraced: isTraced,
          timeLimit: timeLimit,
          mostSteps: mostSteps,
          takesTasks: true,
          body
        )
      case .async(let body):
        try world.runTasks(policy, seed: seed, isTraced: isTraced, timeLimit: timeLimit, mostSteps: mostSteps, body)
      }
    } catch {
      failure = error
    }
    var run = Run(
      choices: policy.choices,
      seed: seed,
      failure: failure,
      switches: policy.preemptions,
      splits: policy.splits,
      faults: 0,
      others: 0,
      time: world.now,
      length: world.stepCount,
      isStrict: policy.isAsync && !world.waitsOutside,
      steps: policy.steps,
      difference: policy.difference
    )
    guard failure != nil || isTraced else { return run }
    run.dump = world.endDump
    for choice in policy.choices where choice.chosen > 0 {
      if [.fault, .split, .late].contains(choice.kind) { run.faults += 1 } else { run.others += 1 }
    }
    return run
  }

  func explore(_ strategy: Exploration.Strategy) -> Exploration {
    switch strategy.kind {
    case .inOrder:
      return sample(1, checksFirst: false) { _, _ in (Chooser(), 0) }
    case .random(let seeds, let from):
      return sample(seeds) { index, _ in
        let seed = from &+ UInt64(index)
        return (RandomChooser(seed: seed), seed)
      }
    case .priorities(let depth, let runs):
      return sample(runs) { index, length in
        (PriorityChooser(seed: UInt64(index), depth: depth, length: length), UInt64(index))
      }
    case .exhaustive(let preemptions, let most):
      return search(preemptions, most)
    case .replay(let token):
      guard let (choices, seed) = Token.decode(token) else {
        let error = Exploration.TokenError(token: token, step: nil)
        let failure = Exploration.RunError(error: error, token: token, switches: 0, description: "\(error)")
        return Exploration(runs: 0, isComplete: false, failure: failure)
      }
      let chooser = ReplayChooser(choices)
      let run = run(chooser, seed: seed, isTraced: true)
      // A failure, also where the program has been mended: what has run is not what the token says.
      let divergence = chooser.divergence.map { Exploration.TokenError(token: token, step: $0) }
      let error = run.failure ?? divergence
      return Exploration(
        runs: 1,
        isComplete: false,
        failure: error.map { describe(run, $0, remark: run.failure == nil ? nil : divergence) }
      )
    }
  }

  /// The fewest choices that a run is expected to have.
  private static var fewChoices: Int { 8 }

  /// Tries `count` schedules with independent choosers.
  ///
  /// `make` gets the number of the run and the number of choices of the longest run so far. It returns the chooser and
  /// the seed of the world. The first schedule runs twice if `checksFirst` is true. It is false for the one schedule in
  /// order, which is not shrunk either: another order was not asked for.
  private func sample(
    _ count: Int,
    checksFirst: Bool = true,
    _ make: (Int, Int) -> (Chooser, UInt64)
  ) -> Exploration {
    var longest = 32
    for index in 0..<max(0, count) {
      let (chooser, seed) = make(index, longest)
      let run = run(chooser, seed: seed)
      if run.failure != nil { return result(of: run, runs: index + 1, isShrunk: checksFirst) }
      if runsTwice || checksFirst && index == 0 {
        let again = self.run(make(index, longest).0, seed: seed, expecting: run.choices)
        // A failure of the second run alone is one.
        let isStrict = runsTwice || run.isStrict || again.failure != nil
        if let difference = again.difference(from: run, strictly: isStrict) {
          return unrepeatable(again, difference, runs: index + 1)
        }
      }
      // Never few: of a run with one choice, a sample would be taken at that one each time, and have one order.
      longest = max(Self.fewChoices, index == 0 ? run.choices.count : max(longest, run.choices.count))
    }
    return Exploration(runs: max(0, count), isComplete: false)
  }

  /// Tries every schedule with at most `preemptions` preemptions, those with the fewest first; a write that is read in
  /// pieces counts as one.
  ///
  /// Most faults need one or two, and depth first they come after all schedules that share their beginnings. A search
  /// with a larger bound repeats the schedules of the smaller ones, which are few beside its own; they are not counted.
  private func search(_ preemptions: Int, _ most: Int) -> Exploration {
    var runs = 0
    var known = -1
    for bound in Array(0...max(0, min(preemptions, 3))) + (preemptions > 3 ? [preemptions] : []) {
      let search = ExhaustiveSearch(preemptions: bound, sharing: sharing)
      var hasNext = true
      while hasNext {
        if runs >= max(1, most) { return Exploration(runs: runs, isComplete: false) }
        let run = run(search, seed: 0)
        if !search.isRedundant, run.switches + run.splits > known { runs += 1 }
        hasNext = run.failure == nil && search.advance()
        if let difference = search.firstDifference { return unrepeatable(run, difference, runs: runs) }
        if run.failure != nil { return result(of: run, runs: runs) }
      }
      // No schedule has more preemptions.
      if !search.hasCut { break }
      known = bound
    }
    return Exploration(runs: runs, isComplete: true)
  }

  /// Returns the result of an exploration that ended with `run`: shrinks the run and describes it, if it failed.
  private func result(of run: Run, runs: Int, isShrunk: Bool = true) -> Exploration {
    guard let error = run.failure else { return Exploration(runs: runs, isComplete: false) }
    let again = self.run(ReplayChooser(run.choices), seed: run.seed, expecting: run.choices)
    guard again.fails(like: error) else {
      let difference = again.difference(from: run, strictly: true)
      return unrepeatable(run, difference ?? .init(step: run.choices.count, difference: "another failure"), runs: runs)
    }
    let shrunk = isShrunk ? Shrinker(self, like: error).shrink(again) : again
    let shown = self.run(ReplayChooser(shrunk.choices), seed: shrunk.seed, isTraced: true)
    let failure = describe(shown, shrunkFrom: again, shown.fails(like: error) ? shown.failure ?? error : error)
    return Exploration(runs: runs, isComplete: false, failure: failure)
  }

  /// Returns the result of an exploration with a run that is not what it should repeat.
  ///
  /// The run's own error has happened, so it is the failure; that the run cannot be repeated is said after it.
  private func unrepeatable(_ run: Run, _ difference: Exploration.NondeterminismError, runs: Int) -> Exploration {
    let failure = describe(run, run.failure ?? difference, remark: run.failure == nil ? nil : difference)
    return Exploration(runs: runs, isComplete: false, failure: failure)
  }

  private func describe(
    _ run: Run,
    shrunkFrom found: Run? = nil,
    _ error: any Error,
    remark: (any Error)? = nil
  ) -> Exploration.RunError {
    let token = Token.encode(run.choices, seed: run.seed)
    return Exploration.RunError(
      error: error,
      token: token,
      switches: run.switches,
      description: Interleaving.text(of: run, shrunkFrom: found ?? run, error, remark, token: token)
    )
  }
}
