import Coroutine
import Testing

@testable import CoroutineTesting

/// Tests whose bodies run in worlds.
@Suite(.timeLimit(.minutes(10)))
struct SimulatedTraitTests {
  @Test(.simulated(.exhaustive())) func `a body runs in a coroutine of a world, in every schedule`() throws {
    let world = try #require(World.current)
    let balance = Cell(0)
    let lock = FairMutex()
    let jobs = (0..<2).map { _ in
      co_launch {
        try lock.withLock {
          let seen = balance.value
          try co_delay(.seconds(60))
          balance.value = seen + 1
        }
      }
    }
    for job in jobs { try job.join() }
    #expect(balance.value == 2)
    #expect(world.now == .seconds(120))
  }

  @Test(.simulated(.random(seeds: 3)), arguments: [1, 2]) func `each argument has its worlds`(argument: Int) throws {
    try co_delay(.seconds(argument))
    #expect(World.current?.now == .seconds(argument))
  }

  @Test(.simulated(.inOrder)) func `a body may await what is not in the world`() async throws {
    await Task.yield()
  }

  @Test func `an expectation that fails before the body's error is told beside it`() async throws {
    struct Thrown: Error {}
    let (test, testCase) = (try #require(Test.current), Test.Case.current)
    let told = Guarded<[String]>([])
    let telling = IssueHandlingTrait.compactMapIssues { issue in
      told.withLock { $0.append("\(issue)") }
      return nil
    }
    await #expect(throws: Exploration.RunError.self) {
      try await telling.provideScope(for: test, testCase: testCase) {
        try await SimulatedTrait.simulated(.inOrder).provideScope(for: test, testCase: testCase) {
          #expect(Bool(false), "told")
          throw Thrown()
        }
      }
    }
    let issues = told.withLock { $0 }
    #expect(issues.count == 1 && issues.contains { $0.contains("told") }, "\(issues)")
  }

  @Test(.simulated(.random(seeds: 5))) func `a result that a body's first part leaves goes at once`() async {
    let (numbers, continuation) = AsyncStream.makeStream(of: Int.self)
    _ = Task.immediate { Ending(continuation) }
    for await _ in numbers {}
  }

  private final class Ending: Sendable {
    private let continuation: AsyncStream<Int>.Continuation
    init(_ continuation: AsyncStream<Int>.Continuation) { self.continuation = continuation }
    deinit { continuation.finish() }
  }

  @Test(.simulated(.random(seeds: 5))) func `a Task that a wait outside of the world has left is none of the world`()
    throws
  {
    let first = co_launch {
      try World.outside {
        try co_await { try await Task.sleep(for: .seconds(3_600)) }
      }
    }
    try co_yield()
    first.cancel()
    _ = try? first.join()
  }

  @Test func `a body that nothing resumes is told`() {
    let found = exploreTest(.random(seeds: 1), .memory, nil) {
      try SimulatedTrait.run(in: .current) { await withUnsafeContinuation { (_: UnsafeContinuation<Void, Never>) in } }
    }
    #expect((found.failure?.error as? World.DeadlockError).map { "\($0)".contains("Task 1") } == true, "\(found)")
  }

  @Test func `an async body that differs by what is no choice is not repeatable`() {
    let runs = Guarded(0)
    let found = exploreTest(.random(seeds: 5), .memory, nil) {
      try SimulatedTrait.run(in: .current) {
        let run = runs.withLock { runs in
          runs += 1
          return runs
        }
        try await Task.sleep(for: .seconds(run))
      }
    }
    #expect(found.failure?.error is Exploration.NondeterminismError, "\(found)")
  }

  @Test func `a Task of an async body may be late`() {
    struct Late: Error {}
    let found = exploreTest(.exhaustive(), .memory, nil) {
      try SimulatedTrait.run(in: .current) {
        let order = await withTaskGroup(of: Int.self) { group in
          for number in 1...2 {
            group.addTask {
              try? await Task.sleep(for: .milliseconds(number))
              return number
            }
          }
          return await group.reduce(into: []) { $0.append($1) }
        }
        if order != [1, 2] { throw Late() }
      }
    }
    #expect(found.failure?.error is Late)
  }
}

/// A test may have a trait where its suite has one: the test's counts.
@Suite(.simulated(.random(seeds: 40)), .timeLimit(.minutes(10)))
struct NestedTraitTests {
  private static let runs = ThreadMutex<[String: Int]>([:])

  /// Counts the runs of a body, each of which has a world whose time begins at zero.
  private func count(_ name: String) throws -> Int {
    try co_delay(.seconds(60))
    #expect(World.current?.now == .seconds(60))
    return Self.runs.withLock { runs in
      runs[name, default: 0] += 1
      return runs[name] ?? 0
    }
  }

  @Test func `the trait of the suite holds for a test that has none`() throws {
    #expect(try count("suite") > 0)
  }

  @Test(.simulated(.inOrder)) func `the trait of a test counts beside that of its suite`() throws {
    #expect(try count("test") < 20)
  }

  @Suite(.simulated(.inOrder)) struct Inner {
    @Test func `the trait of an inner suite counts beside that of the outer one`() throws {
      #expect(try NestedTraitTests().count("inner") < 20)
    }

    @Test(.simulated(.inOrder)) func `an async body counts as a plain one does`() async throws {
      try await Task.sleep(for: .seconds(60))
      #expect(World.current?.now == .seconds(60))
    }
  }
}
