import Coroutine
import Dispatch
import Synchronization
public import Testing

/// A trait of tests whose bodies run in simulated worlds; see ``Testing/Trait/simulated(_:sharing:)``.
public struct SimulatedTrait: TestTrait, SuiteTrait, TestScoping {
  let strategy: Strategy
  let sharing: Sharing

  /// True: the trait of a suite holds for each of its tests.
  public var isRecursive: Bool { true }

  /// Runs a test case once for each schedule of the strategy.
  public func provideScope(
    for test: Test,
    testCase: Test.Case?,
    performing function: @Sendable @concurrent () async throws -> Void
  ) async throws {
    // Of a suite, and of the whole of a parameterised test: there is nothing to run in a world.
    guard let testCase else { return try await function() }
    let scope = TaskScope.current
    let failure = await withEscapable(function) { function in
      // On a thread of its own: one of Swift's pool must not block while a body awaits something outside of its world.
      await withCheckedContinuation { continuation in
        DispatchQueue(label: "CoroutineTesting.simulated").async {
          continuation.resume(returning: explore(in: scope, test, testCase, function))
        }
      }
    }
    if let failure { throw failure }
  }

  private func explore(
    in scope: TaskScope,
    _ test: Test,
    _ testCase: Test.Case,
    _ function: @escaping @Sendable @concurrent () async throws -> Void
  ) -> Exploration.Failure? {
    let found = CoroutineTesting.explore(strategy, sharing: sharing) {
      let failures = Mutex<[String]>([])
      // A failed expectation ends no test, but it fails the schedule. It is reported only of the shrunk one.
      let silent = IssueHandlingTrait.compactMapIssues { issue in
        failures.withLock { $0.append("\(issue)") }
        return nil
      }
      try Self.run(in: scope) {
        try await silent.provideScope(for: test, testCase: testCase) { try await function() }
      }
      if let first = failures.withLock({ $0.first }) { throw FailedExpectation(description: first) }
    }
    if let failure = found.failure, failure.error is FailedExpectation {
      _ = CoroutineTesting.explore(.replay(failure.token)) { try Self.run(in: scope, function) }
    }
    return found.failure
  }

  /// Runs an asynchronous function whose body is synchronous on the stack of the calling coroutine.
  private static func run(
    in scope: TaskScope,
    _ function: @escaping @Sendable @concurrent () async throws -> Void
  ) throws {
    let outcome = Outcome()
    let task = scope.inherit {
      Task.immediate {
        do {
          try await function()
          outcome.result.withLock { $0 = .success(()) }
        } catch {
          outcome.result.withLock { $0 = .failure(error) }
        }
      }
    }
    // A body that really awaits something continues elsewhere.
    if !outcome.isKnown {
      try World.outside { try co_shield { try co_await { await task.value } } }
    }
    try outcome.result.withLock { $0 }?.get()
  }
}

private final class Outcome: Sendable {
  let result = Mutex<Result<Void, any Error>?>(nil)
  var isKnown: Bool { result.withLock { if case nil = $0 { false } else { true } } }
}

/// An expectation of a simulated test has failed.
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
  /// The body is plain synchronous code. A schedule fails if the body throws, if an expectation in it fails, or if the
  /// world finds a deadlock or coroutines that were left. The shrunk schedule is reported as the test's error, with the
  /// token for `CO_REPLAY`. In a coroutine that the body launches, throw, or use the results in the body: an
  /// expectation there is not attributed to the test.
  public static func simulated(_ strategy: Strategy = .random(), sharing: Sharing = .memory) -> Self {
    SimulatedTrait(strategy: strategy, sharing: sharing)
  }
}
