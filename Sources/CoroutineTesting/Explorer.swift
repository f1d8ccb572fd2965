import Coroutine
import Glibc

/// One run of a body: its choices, its failure, and the measures that shrinking compares.
struct Run {
  var choices: [Choice]
  var seed: UInt64
  var failure: (any Error)?
  /// The number of preemptions.
  var switches: Int
  /// The number of faults that happened.
  var faults: Int
  /// The number of other choices that differ from the order without a strategy.
  var others: Int
  /// The world's time at the end.
  var time: Duration
  /// The number of the world's steps.
  var length: Int
  var steps: [SimulatedStep] = []
  var dump = ""

  /// The number of the first choice that differs from that of `other`; nil if the runs agree.
  ///
  /// `strictly` also compares what is no choice: the number of steps, the world's time, whether the run has failed. If
  /// only that differs, the result is the number of choices. Not the default, because a run that waits for the real
  /// world may differ there without any harm.
  func firstDifference(from other: Run, strictly: Bool = false) -> Int? {
    if let different = zip(choices, other.choices).enumerated().first(where: { $1.0.mark != $1.1.mark }) {
      return different.offset
    }
    var isSame = choices.count == other.choices.count
    if strictly {
      isSame = isSame && length == other.length && time == other.time && (failure == nil) == (other.failure == nil)
    }
    return isSame ? nil : min(choices.count, other.choices.count)
  }

  /// Whether the run is simpler than `other`.
  ///
  /// Compared in this order: preemptions, faults, virtual time, `others`, the number of choices.
  func isSimpler(than other: Run) -> Bool {
    (switches, faults, time, others, choices.count)
      < (other.switches, other.faults, other.time, other.others, other.choices.count)
  }
}

/// Runs a body once for each schedule of a strategy, and describes the first failure.
struct Explorer {
  private let body: @Sendable () throws -> Void
  private let sharing: Exploration.Sharing
  private let timeLimit: Duration?
  /// Whether each schedule runs twice, and not only the first one.
  var runsTwice = false
  /// The largest number of steps while no time passes.
  var mostSteps = 10_000_000

  init(_ body: @escaping @Sendable () throws -> Void, _ sharing: Exploration.Sharing, _ timeLimit: Duration?) {
    self.body = body
    self.sharing = sharing
    self.timeLimit = timeLimit
  }

  func run(_ chooser: Chooser, seed: UInt64, isTraced: Bool = false) -> Run {
    let policy = RunPolicy(chooser)
    let world = World()
    var failure: (any Error)?
    do {
      try world.run(policy, seed: seed, isTraced: isTraced, timeLimit: timeLimit, mostSteps: mostSteps, body)
    } catch {
      failure = error
    }
    var run = Run(
      choices: policy.choices,
      seed: seed,
      failure: failure,
      switches: policy.preemptions,
      faults: 0,
      others: 0,
      time: world.now,
      length: world.stepCount,
      steps: policy.steps
    )
    guard failure != nil || isTraced else { return run }
    run.dump = world.endDump
    for choice in policy.choices where choice.chosen > 0 {
      if choice.kind == .fault { run.faults += 1 } else { run.others += 1 }
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
        let failure = Exploration.RunError(
          error: Exploration.TokenError(token: token),
          token: token,
          switches: 0,
          description: "\(Exploration.TokenError(token: token))"
        )
        return Exploration(runs: 0, isComplete: false, failure: failure)
      }
      let chooser = ReplayChooser(choices)
      let run = run(chooser, seed: seed, isTraced: true)
      // No failure: a token may be replayed to see that a fault is mended, which changes the program.
      if let choice = chooser.divergence {
        report(
          "the token \(token.asName) does not fit this program any more: diverged at choice \(choice + 1) of "
            + "\(choices.count); what follows has run in order"
        )
      }
      return Exploration(runs: 1, isComplete: false, failure: run.failure.map { describe(run, $0) })
    }
  }

  private func report(_ sentence: String) {
    var line = "CoroutineTesting: \(sentence)\n"
    line.withUTF8 { _ = write(STDERR_FILENO, $0.baseAddress, $0.count) }
  }

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
        let again = self.run(make(index, longest).0, seed: seed)
        if let step = run.firstDifference(from: again, strictly: runsTwice) {
          return Exploration(
            runs: index + 1,
            isComplete: false,
            failure: describe(run, Exploration.NondeterminismError(step: step))
          )
        }
      }
      longest = index == 0 ? run.choices.count : max(longest, run.choices.count)
    }
    return Exploration(runs: max(0, count), isComplete: false)
  }

  private func search(_ preemptions: Int, _ most: Int) -> Exploration {
    let search = ExhaustiveSearch(preemptions: preemptions, sharing: sharing)
    var runs = 0
    while runs < max(1, most) {
      let run = run(search, seed: 0)
      if !search.isRedundant { runs += 1 }
      let hasNext = run.failure == nil && search.advance()
      if let step = search.firstDifference {
        let failure = describe(run, Exploration.NondeterminismError(step: step))
        return Exploration(runs: runs, isComplete: false, failure: failure)
      }
      if run.failure != nil { return result(of: run, runs: runs) }
      if !hasNext { return Exploration(runs: runs, isComplete: true) }
    }
    return Exploration(runs: runs, isComplete: false)
  }

  /// Returns the result of an exploration that ended with `run`: shrinks the run and describes it, if it failed.
  private func result(of run: Run, runs: Int, isShrunk: Bool = true) -> Exploration {
    guard let error = run.failure else { return Exploration(runs: runs, isComplete: false) }
    let again = self.run(ReplayChooser(run.choices), seed: run.seed)
    guard again.failure.map({ type(of: $0) == type(of: error) }) ?? false else {
      let step = run.firstDifference(from: again) ?? run.choices.count
      return Exploration(
        runs: runs,
        isComplete: false,
        failure: describe(run, Exploration.NondeterminismError(step: step))
      )
    }
    let shrunk = isShrunk ? Shrinker(self, like: error).shrink(again) : again
    let shown = self.run(ReplayChooser(shrunk.choices), seed: shrunk.seed, isTraced: true)
    let failure = describe(shown, shrunkFrom: again, shown.failure ?? error)
    return Exploration(runs: runs, isComplete: false, failure: failure)
  }

  private func describe(_ run: Run, shrunkFrom found: Run? = nil, _ error: any Error) -> Exploration.RunError {
    let token = Token.encode(run.choices, seed: run.seed)
    return Exploration.RunError(
      error: error,
      token: token,
      switches: run.switches,
      description: Interleaving.text(of: run, shrunkFrom: found ?? run, error, token: token)
    )
  }
}
