import Coroutine
import Dispatch
import Synchronization
import Testing

private enum Request {
  @TaskLocal static var user = -1
}

private actor Tally {
  private let executor: CoroutineExecutor?
  private let plain = PlainExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor {
    executor?.asUnownedSerialExecutor() ?? plain.asUnownedSerialExecutor()
  }
  private(set) var count = 0

  init(on queue: DispatchQueue?) { executor = queue.map { CoroutineExecutor($0) } }
  func add() { count += 1 }
}

/// An executor that is none of the library's.
private final class PlainExecutor: SerialExecutor {
  private let queue = DispatchQueue(label: "coroutine.stress.plain")
  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

@Suite("Stress: async code called from coroutines", .timeLimit(.minutes(20)))
struct AsyncCallStressTests {
  /// A coroutine that awaits a Task that awaits a coroutine, and so on, each on another queue.
  ///
  /// Each of them has its own bindings. Random ones cancel themselves, or are left by the coroutine or Task that awaits
  /// them.
  private struct Nest: Sendable {
    let queues: [DispatchQueue]
    let tallies: [Tally]
    let strangers: Census
    let calls: Counter
    /// Those that ended by a cancellation or a deadline, for each depth.
    let cancelled: (coroutines: [Counter], tasks: [Counter])

    /// Whether some call of each depth has ended by a cancellation or a deadline.
    ///
    /// A coroutine is at an even depth, the Task that it awaits one below.
    var isCancelledAtEachDepth: Bool { cancelled.tasks.indices.allSatisfy { cancellations(at: $0) > 0 } }

    func cancellations(at depth: Int) -> Int {
      (depth.isMultiple(of: 2) ? cancelled.coroutines : cancelled.tasks)[depth].now
    }

    func coroutine(_ user: Int, _ depth: Int, _ random: SeededRandom) throws -> Int {
      do {
        return try coroutineBody(user, depth, random)
      } catch {
        if error is CancellationError || error is TimeoutError { cancelled.coroutines[depth].add() }
        throw error
      }
    }

    func task(_ user: Int, _ depth: Int, _ random: SeededRandom) async throws -> Int {
      do {
        return try await taskBody(user, depth, random)
      } catch {
        if error is CancellationError || error is TimeoutError { cancelled.tasks[depth].add() }
        throw error
      }
    }

    private func coroutineBody(_ user: Int, _ depth: Int, _ random: SeededRandom) throws -> Int {
      var random = random
      calls.add()
      let next = SeededRandom(seed: random.next())
      let (choice, step) = (random.next() % 16, Int(random.next() % 4))
      return try Request.$user.withValue(user) {
        defer { if Request.user != user { strangers.change() } }
        if choice < 4 { try co_switch(to: queues[step]) }
        if choice == 4 {
          // In an actor that lives elsewhere a body cannot wait.
          try co_isolated(tallies[step]) { _ in if step.isMultiple(of: 2) { try co_yield() } }
        }
        if depth == 0 { return 1 }
        if choice == 5 {
          var below = 0
          try co_awaitToEnd { below = try await task(user + 1, depth - 1, next) }
          return below + 1
        }
        let duration = Duration.microseconds(Int(choice) * 20)
        if choice > 12 {
          return try co_timeout(duration) { try co_await { try await task(user + 1, depth - 1, next) } } + 1
        }
        return try co_await { try await task(user + 1, depth - 1, next) } + 1
      }
    }

    private func taskBody(_ user: Int, _ depth: Int, _ random: SeededRandom) async throws -> Int {
      var random = random
      calls.add()
      let next = SeededRandom(seed: random.next())
      let (choice, step) = (random.next() % 16, Int(random.next() % 4))
      return try await Request.$user.withValue(user) {
        if choice < 8 { await Task.yield() }
        if choice == 1 { await tallies[step].add() }
        if choice == 2 { try await Task.sleep(for: .microseconds(10)) }
        if choice == 3 { withUnsafeCurrentTask { $0?.cancel() } }
        if Request.user != user { strangers.change() }
        let queue = step == 0 ? nil : queues[step]
        let job = co_launch(on: queue, start: choice < 12 ? .queued : .immediate) {
          try self.coroutine(user + 1, max(0, depth - 1), next)
        }
        if choice == 4 { job.cancel() }
        defer { if Request.user != user { strangers.change() } }
        return try await job.value + 1
      }
    }
  }

  @Test func `each of a million nested, migrating, randomly cancelled calls sees its own bindings`() async throws {
    let stress = Stress()
    let strangers = Census()
    let queues = queues(4)
    // The second and the last live elsewhere.
    let tallies = (0..<4).map { Tally(on: $0.isMultiple(of: 2) ? queues[$0] : nil) }
    let wanted = stress.rounds(1_000_000, least: 1_000)
    let made = Counter()
    let depth = 6
    let cancelled = (0..<2).map { _ in (0...depth).map { _ in Counter() } }
    let nest = Nest(
      queues: queues,
      tallies: tallies,
      strangers: strangers,
      calls: made,
      cancelled: (cancelled[0], cancelled[1])
    )
    let jobs = (0..<32).map { index in
      co_launch(on: index.isMultiple(of: 3) ? nil : queues[index % 4]) {
        var random = stress.random(index)
        var finished = 0
        // How many are cancelled below, where little time is left, depends on the machine: more, until one was.
        while made.now < wanted || made.now < 10 * wanted && !nest.isCancelledAtEachDepth {
          do {
            _ = try nest.coroutine(index * 1_000, depth, SeededRandom(seed: random.next()))
            finished += 1
          } catch is CancellationError {
          } catch is TimeoutError {
          } catch CoroutineError.wouldDeadlock {
          }
        }
        return finished
      }
    }
    var finished = 0
    for job in jobs { finished += try await job.value }
    #expect(strangers.now == 0, "\(stress.replay)")
    #expect(finished > 0, "\(stress.replay)")
    for level in 0...depth {
      #expect(nest.cancellations(at: level) > 0, "nothing was cancelled at depth \(level). \(stress.replay)")
    }
  }
}

/// A counter that closures share.
private final class Counter: Sendable {
  private let count = Atomic<Int>(0)
  var now: Int { count.load(ordering: .relaxed) }
  func add() { count.wrappingAdd(1, ordering: .relaxed) }
}
