import Coroutine
import Glibc

/// Runs `body` in simulated worlds, once for each schedule of `strategy`, until one fails.
///
/// ```swift
/// let found = explore(.exhaustive(preemptions: 2)) {
///   let account = Account(100)
///   try co_scope { scope in
///     for _ in 0..<2 { scope.launch { try account.withdraw(60) } }
///   }
///   guard account.balance >= 0 else { throw Overdrawn() }
/// }
/// if let failure = found.failure { print(failure) }
/// ```
///
/// Blocks the calling thread; any thread. A failing run is shrunk: `body` runs more often than ``Exploration/runs``
/// says. It must behave the same whenever the same choices are made; the first schedule of `random` and `priorities`
/// runs twice to check that.
///
/// - Parameters:
///   - strategy: How schedules are chosen. The environment variable `CO_REPLAY`, if it is set, replaces it by the
///     schedule of that token.
///   - sharing: What the coroutines of `body` share, for `exhaustive`.
///   - body: What to run, each time in a coroutine of a new world.
public func explore(
  _ strategy: Strategy,
  sharing: Sharing = .memory,
  _ body: @Sendable () throws -> Void
) -> Exploration {
  let chosen = getenv("CO_REPLAY").map { Strategy.replay(String(cString: $0)) } ?? strategy
  return withEscapable(body) { Explorer($0, sharing).explore(chosen) }
}

/// One run, and how it ended.
struct Run {
  var choices: [Choice]
  var seed: UInt64
  var fingerprint: UInt64
  var failure: (any Error)?
  /// The answers that differ from the order without a strategy: switches, then faults.
  var switches: Int
  var faults: Int
  /// The world's time at the end.
  var time: Duration
  var steps: [SimulatedStep] = []
  var dump = ""

  /// Whether the run is simpler than `other`: fewer switches, then fewer faults, then less time, then fewer choices.
  func isSimpler(than other: Run) -> Bool {
    (switches, faults, time, choices.count) < (other.switches, other.faults, other.time, other.choices.count)
  }
}

struct Explorer {
  private let body: @Sendable () throws -> Void
  private let sharing: Sharing

  init(_ body: @escaping @Sendable () throws -> Void, _ sharing: Sharing) {
    self.body = body
    self.sharing = sharing
  }

  func run(_ chooser: Chooser, seed: UInt64, isTraced: Bool = false) -> Run {
    let policy = RunPolicy(chooser)
    let world = World()
    var failure: (any Error)?
    do {
      try world.run(policy, seed: seed, isTraced: isTraced, body)
    } catch {
      failure = error
    }
    var run = Run(
      choices: policy.choices,
      seed: seed,
      fingerprint: policy.fingerprint,
      failure: failure,
      switches: 0,
      faults: 0,
      time: .zero,
      steps: policy.steps
    )
    guard failure != nil || isTraced else { return run }
    run.time = world.now
    run.dump = world.endDump
    for choice in policy.choices where choice.chosen > 0 {
      if choice.kind == .fault { run.faults += 1 } else { run.switches += 1 }
    }
    return run
  }

  func explore(_ strategy: Strategy) -> Exploration {
    switch strategy {
    case .inOrder:
      return result(of: run(Chooser(), seed: 0), runs: 1, isComplete: true)
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
        let failure = Exploration.Failure(
          error: UnreadableToken(token: token),
          token: token,
          switches: 0,
          description: "\(UnreadableToken(token: token))"
        )
        return Exploration(runs: 0, isComplete: false, failure: failure)
      }
      let run = run(ReplayChooser(choices), seed: seed, isTraced: true)
      return Exploration(runs: 1, isComplete: true, failure: run.failure.map { describe(run, $0) })
    }
  }

  /// Runs with independent choosers.
  ///
  /// `make` gets the number of the run, and the number of choices of the longest run so far.
  private func sample(_ count: Int, _ make: (Int, Int) -> (Chooser, UInt64)) -> Exploration {
    var longest = 32
    for index in 0..<max(0, count) {
      let (chooser, seed) = make(index, longest)
      let run = run(chooser, seed: seed)
      if run.failure != nil { return result(of: run, runs: index + 1, isComplete: false) }
      if index == 0 {
        let again = self.run(make(index, longest).0, seed: seed)
        if again.fingerprint != run.fingerprint {
          return Exploration(runs: 1, isComplete: false, failure: nondeterminism(run, again))
        }
      }
      longest = index == 0 ? run.choices.count : max(longest, run.choices.count)
    }
    return Exploration(runs: max(0, count), isComplete: true)
  }

  private func search(_ preemptions: Int, _ most: Int) -> Exploration {
    let search = ExhaustiveSearch(preemptions: preemptions, sharing: sharing)
    var runs = 0
    while runs < max(1, most) {
      let run = run(search, seed: 0)
      if !search.isRedundant { runs += 1 }
      let hasNext = run.failure == nil && search.advance()
      if let step = search.firstDifference {
        let failure = describe(run, Nondeterminism(step: step))
        return Exploration(runs: runs, isComplete: false, failure: failure)
      }
      if run.failure != nil { return result(of: run, runs: runs, isComplete: false) }
      if !hasNext { return Exploration(runs: runs, isComplete: true) }
    }
    return Exploration(runs: runs, isComplete: false)
  }

  /// What an exploration says that ended with `run`.
  private func result(of run: Run, runs: Int, isComplete: Bool) -> Exploration {
    guard let error = run.failure else { return Exploration(runs: runs, isComplete: isComplete) }
    let again = self.run(ReplayChooser(run.choices), seed: run.seed)
    guard again.failure.map({ type(of: $0) == type(of: error) }) ?? false else {
      return Exploration(runs: runs, isComplete: false, failure: nondeterminism(run, again))
    }
    let shrunk = Shrinker(self, like: error).shrink(again)
    let shown = self.run(ReplayChooser(shrunk.choices), seed: shrunk.seed, isTraced: true)
    let failure = describe(shown, shown.failure ?? error)
    return Exploration(runs: runs, isComplete: isComplete, failure: failure)
  }

  private func nondeterminism(_ one: Run, _ other: Run) -> Exploration.Failure {
    let step = zip(one.choices, other.choices).enumerated().first {
      $1.0.chosen != $1.1.chosen || $1.0.count != $1.1.count
    }
    let shorter = min(one.choices.count, other.choices.count)
    return describe(one, Nondeterminism(step: step?.offset ?? shorter))
  }

  private func describe(_ run: Run, _ error: any Error) -> Exploration.Failure {
    let token = Token.encode(run.choices, seed: run.seed)
    return Exploration.Failure(
      error: error,
      token: token,
      switches: run.switches,
      description: Interleaving.text(of: run, error, token: token)
    )
  }
}
