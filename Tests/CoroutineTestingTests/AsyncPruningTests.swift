import CoroutineTesting
import Testing

/// Searches that leave out orders of Tasks' steps which do not depend on each other (`Sharing.waits`): they find each
/// outcome that a search of all orders finds.
@Suite(.timeLimit(.minutes(10)), .serialized)
struct AsyncPruningTests {
  @Test(arguments: Construct.all) func `no outcome of a construct is left out`(construct: Construct) throws {
    let all = try Search(.memory, most: 2_000, construct.body)
    let pruned = try Search(.waits, most: 2_000, construct.body)
    #expect(pruned.outcomes == all.outcomes)
    #expect(pruned.runs <= all.runs)
  }

  @Test(arguments: AsyncBug.all.filter { !$0.sharesMemory }) func `the bugs are found`(bug: AsyncBug) {
    #expect(explore(.exhaustive(), sharing: .waits, bug.body).failure != nil)
  }

  @Test func `Tasks that have an actor each are a few schedules`() throws {
    let body: @Sendable () async throws -> [Int] = {
      await withTaskGroup { group in
        for number in 1...3 {
          group.addTask {
            let own = Diary()
            await own.add(number)
            await own.add(number)
          }
        }
      }
      return []
    }
    let all = try Search(.memory, most: 10_000, body)
    let pruned = try Search(.waits, most: 10_000, body)
    #expect(all.isComplete && pruned.isComplete)
    #expect(pruned.runs * 4 < all.runs, "\(pruned.runs) of \(all.runs)")
  }

  @Test(arguments: Dependence.all) func `steps that depend on each other come in both orders`(pair: Dependence) throws {
    let all = try Search(.memory, most: 20_000, pair.body)
    let pruned = try Search(.waits, most: 20_000, pair.body)
    #expect(all.isComplete && all.outcomes.count > 1)
    #expect(pruned.outcomes == all.outcomes)
  }

  /// Random programs: each is compared with a search of all its orders.
  @Test func `no outcome of random programs is left out`() throws {
    var compared = 0
    var (runs, prunedRuns) = (0, 0)
    for seed in 0..<UInt64(40) {
      let program = RandomProgram(seed)
      let all = try Search(.memory, most: 500, program.run)
      guard all.isComplete else { continue }
      let pruned = try Search(.waits, most: 500, program.run)
      #expect(pruned.outcomes == all.outcomes, "program \(seed): \(program.parts)")
      compared += 1
      runs += all.runs
      prunedRuns += pruned.runs
    }
    #expect(compared > 5)
    #expect(prunedRuns * 10 < runs * 9, "\(prunedRuns) of \(runs)")
  }
}

/// The outcomes of a program in all schedules with at most two preemptions.
private struct Search {
  let outcomes: Set<[Int]>
  let runs: Int
  let isComplete: Bool

  init(_ sharing: Exploration.Sharing, most: Int, _ body: @escaping @Sendable () async throws -> [Int]) throws {
    let seen = Locked<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: 2, most: most), sharing: sharing) {
      let outcome = try await body()
      seen.withLock { _ = $0.insert(outcome) }
    }
    if let failure = found.failure { throw failure }
    (outcomes, runs, isComplete) = (seen.withLock { $0 }, found.runs, found.isComplete)
  }
}

/// Two steps that depend on each other in a way that only this world knows of: neither is on an actor of the other.
struct Dependence: Sendable, CustomTestStringConvertible {
  let testDescription: String
  let body: @Sendable () async throws -> [Int]

  static let all: [Dependence] = [
    Dependence(testDescription: "two use one stream") {
      let (stream, continuation) = AsyncStream<Int>.makeStream()
      await withTaskGroup { group in
        for number in [1, 3] {
          group.addTask {
            let own = Diary()
            continuation.yield(number)
            await own.add(0)
            continuation.yield(number + 1)
            await own.add(0)
          }
        }
      }
      continuation.finish()
      var received: [Int] = []
      for await number in stream { received.append(number) }
      return received
    },
    Dependence(testDescription: "one cancels the other, which looks for it") {
      let (own, seen) = (Diary(), Diary())
      let looks = Task {
        for _ in 0..<3 {
          let isCancelled = Task.isCancelled
          await seen.add(isCancelled ? 1 : 0)
        }
      }
      await own.add(0)
      looks.cancel()
      await own.add(0)
      await looks.value
      return await seen.all
    },
    Dependence(testDescription: "two children end while their parent is away") {
      await withTaskGroup(of: Int.self) { group in
        for number in 1...3 { group.addTask { number } }
        try? await Task.sleep(for: .seconds(1))
        var results: [Int] = []
        for await result in group { results.append(result) }
        return results
      }
    },
    Dependence(testDescription: "two begin Tasks of their own") {
      let notes = Diary()
      await withTaskGroup { group in
        for number in [1, 3] {
          group.addTask {
            let own = Diary()
            await own.add(0)
            let task = Task { await notes.add(number) }
            await own.add(0)
            await notes.add(number + 1)
            await task.value
          }
        }
      }
      return await notes.all
    },
    Dependence(testDescription: "time passes between the steps of two") {
      let seen = Locked<[Int]>([])
      let start = ContinuousClock.now
      await withTaskGroup { group in
        group.addTask { try? await Task.sleep(for: .milliseconds(1)) }
        for number in [1, 3] {
          group.addTask {
            let own = Diary()
            await own.add(0)
            let isLate = ContinuousClock.now > start
            seen.withLock { $0.append(isLate ? number + 1 : number) }
            await own.add(0)
          }
        }
      }
      return seen.withLock { $0.sorted() }
    },
  ]
}

private actor Diary {
  private(set) var all: [Int] = []
  func add(_ number: Int) { all.append(number) }

  /// Begins a Task in the actor's own queue.
  func begin(_ number: Int) -> Task<Void, Never> { Task { all.append(number) } }

  func add(_ number: Int, then other: Diary) async {
    all.append(number)
    await other.add(number)
    all.append(-number)
  }
}

/// A few Tasks of a few steps each, which share actors, a stream and each other.
private struct RandomProgram: Sendable {
  enum Part {
    case add(log: Int)
    case nested(log: Int, other: Int)
    case begin(log: Int)
    case cancel(task: Int)
    case await(task: Int)
    case isCancelled(log: Int)
    case send, yield, children
  }
  private(set) var parts: [[Part]] = []
  /// Whether the Tasks are children, whose ends only their parent sees.
  private let isGroup: Bool

  init(_ seed: UInt64) {
    var state = seed &* 0x9E37_79B9_7F4A_7C15 &+ 1
    func below(_ count: Int) -> Int {
      state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
      return Int((state >> 33) % UInt64(count))
    }
    isGroup = below(2) == 0
    for task in 0..<2 + below(2) {
      parts.append(
        (0..<1 + below(3)).map { _ in
          switch below(10) {
          case 0, 1: .add(log: below(2))
          case 2: .nested(log: below(2), other: below(2))
          case 3, 4: .send
          case 5: .yield
          case 6 where task > 0: .cancel(task: below(task))
          case 7 where task > 0: .await(task: below(task))
          case 8: .children
          case 9: .begin(log: below(2))
          default: .isCancelled(log: below(2))
          }
        }
      )
    }
  }

  @Sendable func run() async -> [Int] {
    let logs = [Diary(), Diary()]
    let (stream, continuation) = AsyncStream<Int>.makeStream()
    if isGroup {
      await withTaskGroup { group in
        for (index, parts) in parts.enumerated() {
          group.addTask {
            for (number, part) in parts.enumerated() {
              await Self.perform(part, 10 * index + number + 1, logs, continuation, [])
            }
          }
        }
      }
    }
    var tasks: [Task<Void, Never>] = []
    for (index, parts) in parts.enumerated() where !isGroup {
      let before = tasks
      tasks.append(
        Task {
          for (number, part) in parts.enumerated() {
            await Self.perform(part, 10 * index + number + 1, logs, continuation, before)
          }
        }
      )
    }
    for task in tasks { await task.value }
    continuation.finish()
    var received: [Int] = []
    for await number in stream { received.append(number) }
    return await logs[0].all + [0] + logs[1].all + [0] + received
  }

  private static func perform(
    _ part: Part,
    _ number: Int,
    _ logs: [Diary],
    _ continuation: AsyncStream<Int>.Continuation,
    _ tasks: [Task<Void, Never>]
  ) async {
    switch part {
    case .add(let log): await logs[log].add(number)
    case .nested(let log, let other): await logs[log].add(number, then: logs[other])
    case .begin(let log): await logs[log].begin(number).value
    case .send: continuation.yield(number)
    case .yield: await Task.yield()
    case .cancel(let task): if task < tasks.count { tasks[task].cancel() }
    case .await(let task): if task < tasks.count { await tasks[task].value }
    case .isCancelled(let log): if Task.isCancelled { await logs[log].add(number) }
    case .children:
      async let first: Void = logs[0].add(number)
      async let second: Void = logs[1].add(number)
      _ = await (first, second)
    }
  }
}
