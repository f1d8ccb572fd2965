import Coroutine
import Dispatch
import Testing

@Suite("Stress: scopes", .timeLimit(.minutes(10)))
struct ScopeStressTests {
  /// A random tree of scopes.
  ///
  /// Its children end, fail, wait to be cancelled or open further scopes, on queues and on the shared scheduler. No
  /// scope may return while one of its children is alive.
  private struct Tree: Sendable {
    let objects = Census()
    let violations = Census()
    let queues: [DispatchQueue]

    func grow(_ random: inout SeededRandom, depth: Int) throws {
      var children: [Job<Void>] = []
      defer {
        if children.contains(where: { !$0.isFinished }) { violations.change() }
      }
      try co_scope { scope in
        for _ in 0..<Int.random(in: 1...4, using: &random) {
          let seed = random.next()
          let queue = queues.randomElement(using: &random)
          let child = scope.launch(on: seed.isMultiple(of: 2) ? nil : queue) { [held = objects.citizen()] in
            defer { held.use() }
            var random = SeededRandom(seed: seed)
            try live(&random, depth: depth)
          }
          children.append(child)
        }
        switch Int.random(in: 0..<12, using: &random) {
        case 0: throw Mark(number: depth)
        case 1: scope.cancel(Mark(number: -depth))
        case 2: try co_delay(.microseconds(100))
        case 3: _ = co_shield { try? children[0].join() }
        default: break
        }
      }
    }

    private func live(_ random: inout SeededRandom, depth: Int) throws {
      switch Int.random(in: 0..<10, using: &random) {
      case 0: throw Mark(number: depth)
      case 1: _ = try? co_timeout(.microseconds(200)) { try co_await(Promise<Void>()) }
      case 2: try co_delay(.microseconds(Int.random(in: 1...300, using: &random)))
      case 3: for _ in 0..<5 { try co_yield() }
      case 4...7 where depth > 0: try grow(&random, depth: depth - 1)
      default: break
      }
    }
  }

  /// Scopes report many marks to the hook as later failures; this is expected, and they are ignored.
  private static let isQuiet: Void = {
    let previous = CoroutineRuntime.unhandledErrorHandler
    CoroutineRuntime.unhandledErrorHandler = { unhandled in
      if !(unhandled.error is Mark) { previous(unhandled) }
    }
  }()

  @Test func `in random trees, cancelled at random from threads, no scope returns before all its children have ended`()
    async throws
  {
    Self.isQuiet
    let stress = Stress()
    let tree = Tree(queues: queues(4))
    for round in 0..<stress.rounds(400) {
      let jobs = (0..<25).map { part in
        co_launch {
          var random = stress.random(round << 8 | part)
          try tree.grow(&random, depth: 4)
        }
      }
      var random = stress.random(-round - 1)
      let cancelled = jobs.indices.filter { _ in Int.random(in: 0..<3, using: &random) == 0 }
      try await onThreads(2) { thread in
        for index in cancelled where index.isMultiple(of: 2) == (thread == 0) {
          jobs[index].cancel(Mark(number: .max))
        }
      }
      for job in jobs {
        do {
          try await job.value
        } catch {
          #expect(error is Mark, "\(error), \(stress.replay)")
        }
      }
    }
    #expect(tree.violations.now == 0, "\(stress.replay)")
    await until(tree.objects, shows: 0)
  }
}
