import Coroutine
import Dispatch
import Glibc
public import Testing

/// A trait of tests whose bodies run in simulated worlds; see ``Testing/Trait/simulated(_:sharing:timeLimit:)``.
public struct SimulatedTrait: TestTrait, SuiteTrait, TestScoping {
  let strategy: Exploration.Strategy
  let sharing: Exploration.Sharing
  let timeLimit: Duration?
  private let identity = Identity()

  init(strategy: Exploration.Strategy, sharing: Exploration.Sharing, timeLimit: Duration?) {
    (self.strategy, self.sharing, self.timeLimit) = (strategy, sharing, timeLimit)
  }

  /// True, because the trait of a suite holds for each of its tests.
  public var isRecursive: Bool { true }

  /// Runs a test case once for each schedule of the strategy.
  public func provideScope(
    for test: Test,
    testCase: Test.Case?,
    performing function: @Sendable @concurrent () async throws -> Void
  ) async throws {
    // The scope of a suite, or of all cases of a parameterised test: there is no body to run in a world.
    guard let testCase else { return try await function() }
    // A world has no worlds inside: of a suite's trait and the test's own, the test's counts.
    let last = test.traits.lazy.compactMap { $0 as? SimulatedTrait }.last
    if let last, last.identity !== identity { return try await function() }
    let context = TaskContext.current
    let failure = await withEscapable(function) { function in
      let lent = LentFunction(function)
      // On another thread, because a thread of Swift's pool must not block while a body awaits something real.
      return await withCheckedContinuation { continuation in
        DispatchQueue(label: "CoroutineTesting.simulated").async {
          let failure = lent.use { explore(in: context, test, testCase, $0) }
          continuation.resume(returning: failure)
        }
      }
    }
    if let failure { throw failure }
  }

  private func explore(
    in context: TaskContext,
    _ test: Test,
    _ testCase: Test.Case,
    _ function: @escaping @Sendable @concurrent () async throws -> Void
  ) -> Exploration.RunError? {
    let hasFailed = Guarded(false)
    let found = exploreTest(strategy, sharing, timeLimit) {
      let failures = Guarded<[String]>([])
      // A failed expectation does not end the body, but it fails the schedule. Only the shrunk schedule reports it.
      let silent = IssueHandlingTrait.compactMapIssues { issue in
        failures.withLock { $0.append("\(issue)") }
        hasFailed.withLock { $0 = true }
        return nil
      }
      try Self.run(in: context) {
        try await silent.provideScope(for: test, testCase: testCase) { try await function() }
      }
      if let first = failures.withLock({ $0.first }) { throw FailedExpectation(description: first) }
    }
    // Of a schedule that has failed by an error, too: an expectation before it is often the reason.
    if let failure = found.failure, hasFailed.withLock({ $0 }), !failure.token.isEmpty {
      _ = exploreTest(.replay(failure.token), sharing, timeLimit) { try Self.run(in: context, function) }
    }
    return found.failure
  }

  /// Runs a function that may be async: what its Task does before it is suspended first runs on the stack of the
  /// calling coroutine, which is all of it if the body of the test is plain code.
  static func run(
    in context: TaskContext,
    _ function: @escaping @Sendable @concurrent () async throws -> Void
  ) throws {
    let outcome = Outcome()
    context.inherit {
      AsyncTasks.current?.beginsBody = true
      _ = Task.immediate {
        do {
          try await function()
          outcome.set(.success(()))
        } catch {
          outcome.set(.failure(error))
        }
      }
    }
    // The Task is the world's, and so is what resumes it.
    if !outcome.isKnown {
      if let reason = AsyncExecutors.install() { throw World.AsyncWorldError(reason: reason) }
      AsyncTasks.current?.takesBody()
      try outcome.wait()
    }
    try outcome.get()
  }
}

/// Tells traits apart that are alike; a copy has that of its original.
private final class Identity: Sendable {}

/// A function that another thread uses once.
///
/// That thread releases the function before it reports the result, as ``withEscapable(_:_:)`` requires.
private final class LentFunction: Sendable {
  typealias Body = @Sendable @concurrent () async throws -> Void
  private let body: Guarded<Body?>

  init(_ body: @escaping Body) { self.body = Guarded(body) }

  @inline(never)
  func use<R>(_ user: (@escaping Body) -> R) -> R {
    let body = body.withLock { $0.take() }
    return user(body!)
  }
}

/// The result of a test's body.
private final class Outcome: Sendable {
  private let result = Guarded<Result<Void, any Error>?>(nil)
  private let ended = Channel<Void>(1)

  func set(_ outcome: Result<Void, any Error>) {
    result.withLock { $0 = outcome }
    _ = ended.trySend(())
  }

  /// Suspends the calling coroutine until there is a result.
  func wait() throws { _ = try ended.receive() }
  func get() throws { try result.withLock { $0 }?.get() }
  var isKnown: Bool { result.withLock { $0 != nil } }
}

/// The error of a schedule in which an expectation of a simulated test has failed.
struct FailedExpectation: Error, CustomStringConvertible {
  let description: String
}

extension Trait where Self == SimulatedTrait {
  /// Runs the body of a test in a coroutine of a simulated world, once for each schedule of `strategy`.
  ///
  /// ```swift
  /// @Test(.simulated(.exhaustive())) func `no update is lost`() throws { … }
  /// ```
  ///
  /// The body is plain code, or async code: its Tasks, actors, sleeps and clocks are the world's, as those of
  /// ``explore(_:sharing:timeLimit:_:)-6pu4`` are, and it need not know of coroutines. Its Tasks may be late, as
  /// they may there, once the body has suspended. A schedule fails if the body throws, if an expectation in the body
  /// fails, or if the world finds a deadlock, or what is left running: coroutines or Tasks. The shrunk
  /// schedule is reported as the test's error, with the token for `CO_REPLAY`.
  ///
  /// The trait of a suite holds for each of its tests that has none; of several, the innermost counts.
  ///
  /// An expectation in a coroutine that the body launches is not attributed to the test. Throw there, or check the
  /// coroutine's result in the body.
  ///
  /// - Parameters:
  ///   - strategy: How schedules are chosen.
  ///   - sharing: What the coroutines of the body share, for `exhaustive`.
  ///   - timeLimit: The time of the world that may pass in each run; see ``World/TimeLimitError``. Swift Testing's
  ///     `.timeLimit`, in contrast, limits the real time of all runs together.
  public static func simulated(
    _ strategy: Exploration.Strategy = .random(),
    sharing: Exploration.Sharing = .memory,
    timeLimit: Duration? = nil
  ) -> Self {
    SimulatedTrait(strategy: strategy, sharing: sharing, timeLimit: timeLimit)
  }
}
