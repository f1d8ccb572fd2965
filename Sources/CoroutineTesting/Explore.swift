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
/// Blocks the calling thread until the exploration has ended; any thread. `body` runs on the
/// calling thread. A failing run is shrunk by further runs, which ``Exploration/runs`` does not count. `body` must
/// behave the same whenever the same choices are made. To check that, the first schedule of `random` and `priorities`
/// runs twice. If the environment variable `CO_TWICE` is set, each schedule of `inOrder`, `random` and `priorities`
/// runs twice; `exhaustive` compares all its runs anyway. A difference fails with ``Exploration/NondeterminismError``.
///
/// - Parameters:
///   - strategy: How schedules are chosen. The environment variable `CO_REPLAY`, if it is set, replaces it by the
///     schedule of that token.
///   - sharing: What the coroutines of `body` share, for `exhaustive`.
///   - timeLimit: The time of the world that may pass in one run; nil means no limit. A run that has not ended by then
///     fails with ``World/TimeLimitError``. So does a run in which no time passes for ten million steps,
///     and one without a limit in which it passes ten million times.
///   - body: The code to test. Each run calls it in a coroutine of a new world.
/// - Returns: The number of runs, and the first failure, shrunk.
public func explore(
  _ strategy: Exploration.Strategy,
  sharing: Exploration.Sharing = .memory,
  timeLimit: Duration? = nil,
  _ body: @Sendable () throws -> Void
) -> Exploration {
  withEscapable(body) { exploreBody(strategy, sharing, timeLimit, .plain($0)) }
}

/// Explores the body of a test, whose Tasks are the worlds' own where that is possible.
func exploreTest(
  _ strategy: Exploration.Strategy,
  _ sharing: Exploration.Sharing,
  _ timeLimit: Duration?,
  _ body: @Sendable () throws -> Void
) -> Exploration {
  let takesTasks = AsyncExecutors.install() == nil
  return withEscapable(body) { exploreBody(strategy, sharing, timeLimit, takesTasks ? .test($0) : .plain($0)) }
}

/// Explores by the strategy, or by the token of the environment.
func exploreBody(
  _ strategy: Exploration.Strategy,
  _ sharing: Exploration.Sharing,
  _ timeLimit: Duration?,
  _ body: ExploredBody
) -> Exploration {
  let chosen = getenv("CO_REPLAY").map { Exploration.Strategy.replay(String(cString: $0)) } ?? strategy
  var explorer = Explorer(body, sharing, timeLimit)
  explorer.runsTwice = getenv("CO_TWICE") != nil
  if case .plain = body { return explorer.explore(chosen) }
  // Once for all runs, each of which asks for the same.
  _ = DefaultExecutor.beginIntercepting()
  defer { DefaultExecutor.endIntercepting() }
  return explorer.explore(chosen)
}

/// Runs `body` in simulated worlds, once for each schedule of `strategy`, until one fails; a function of two parameters
/// for programs that store it or pass it on.
///
/// It does what ``explore(_:sharing:timeLimit:_:)-3zi3g`` does with its defaults.
public func explore(_ strategy: Exploration.Strategy, _ body: @Sendable () throws -> Void) -> Exploration {
  explore(strategy, sharing: .memory, timeLimit: nil, body)
}
