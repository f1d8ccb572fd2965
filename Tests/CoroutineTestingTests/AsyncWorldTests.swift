import Coroutine
import CoroutineNet
import CoroutineTesting
import Dispatch
import Foundation
import Observation
import Testing

/// Code that knows of no coroutine, in worlds: every construct, every way to leave, and what a failure says.
@Suite(.timeLimit(.minutes(10)), .serialized)
struct AsyncWorldTests {
  @Test(arguments: Construct.all) func `each construct runs in a world, and in each order that Swift allows`(
    construct: Construct
  ) throws {
    let seen = Locked<Set<[Int]>>([])
    let body: @Sendable () async throws -> Void = {
      let outcome = try await construct.body()
      seen.withLock { _ = $0.insert(outcome) }
    }
    let random = explore(.random(seeds: 300), body)
    #expect(random.failure == nil)
    let all = explore(.exhaustive(preemptions: 3, most: 2_000), body)
    #expect(all.failure == nil)
    #expect(seen.withLock { $0.count } == construct.outcomes)
  }

  @Test(arguments: Construct.all) func `a schedule repeats, to its steps and its time`(construct: Construct) {
    let runs = (0..<2).map { _ in explore(.random(seeds: 5)) { throw Outcome(try await construct.body()) } }
    let texts = runs.map { $0.failure.map { "\($0.error) \($0.token) \($0.description)" } }
    #expect(texts[0] != nil)
    #expect(texts[0] == texts[1])
  }

  @Test func `an hour of sleep takes no time, and every clock shows it`() {
    let began = DispatchTime.now()
    let found = explore(.inOrder) {
      var (before, after) = (timeval(), timeval())
      gettimeofday(&before, nil)
      let second = time(nil)
      let (continuous, suspending, date) = (ContinuousClock.now, SuspendingClock.now, Date())
      try await Task.sleep(for: .seconds(3600))
      #expect(ContinuousClock.now - continuous == .seconds(3600))
      #expect(SuspendingClock.now - suspending == .seconds(3600))
      gettimeofday(&after, nil)
      // Sanitizers have functions of their own for these.
      #expect(isSanitized || after.tv_sec - before.tv_sec == 3600 && time(nil) - second == 3600)
      #expect(Date().timeIntervalSince(date) == 3600)
    }
    #expect(found.failure == nil)
    #expect(DispatchTime.now().uptimeNanoseconds - began.uptimeNanoseconds < 60_000_000_000)
  }

  @Test(arguments: AsyncBug.all) func `each of ten bugs is found within fifty schedules, shrunk and replayed`(
    bug: AsyncBug
  ) throws {
    for search in 0..<10 {
      let found = explore(.random(seeds: 50, from: UInt64(search) * 1_000), bug.body)
      let failure = try #require(found.failure, "search \(search)")
      let token = failure.token
      for _ in 0..<3 {
        let again = try #require(explore(.replay(token), bug.body).failure)
        #expect(type(of: again.error) == type(of: failure.error))
        #expect(again.token == token)
      }
      // Switches, late timers, and other choices.
      #expect(token.count <= 12, "\(token)")
    }
    let all = explore(.exhaustive(), bug.body)
    #expect(all.failure != nil)
    #expect(all.runs <= 200)
    #expect(explore(.priorities(), bug.body).failure != nil)
  }

  @Test func `a correct program has no failure in any schedule`() {
    let found = explore(.exhaustive(preemptions: 3)) {
      let total = Total()
      await withTaskGroup { group in
        for amount in 1...2 { group.addTask { await total.add(amount) } }
      }
      let sum = await total.sum
      if sum != 3 { throw Wrong("the sum is \(sum)") }
    }
    #expect(found.failure == nil)
    #expect(found.isComplete)
    #expect(found.runs > 10)
  }

  @Test func `coroutines, channels, Tasks and the network are in one world`() {
    let found = explore(.random(seeds: 20)) {
      let total = Total()
      let numbers = Channel<Int>(.rendezvous)
      let sender = co_launch {
        for number in 1...3 {
          try co_delay(.seconds(1))
          try numbers.send(number)
        }
        numbers.close()
      }
      let receiver = co_launch {
        while let number = try numbers.receive() { try co_await { await total.add(number) } }
      }
      World.current?.network.host("site.example") {
        try Server.run(.any(port: 80)) { connection in try connection.write([7]) }
      }
      let client = co_launch {
        try World.current?.settle()
        let connection = try Connection.connect(host: "site.example", port: 80)
        defer { connection.close() }
        return try connection.read(upTo: 10)
      }
      try await Task.sleep(for: .seconds(2))
      try await sender.value
      try await receiver.value
      let bytes = try await client.value
      let sum = await total.sum
      if sum != 6 || bytes != [7] { throw Wrong("\(sum) \(bytes)") }
    }
    #expect(found.failure == nil)
  }

  @Test func `a fault is drawn in async code too`() {
    let found = explore(.exhaustive()) {
      await Task.yield()
      if co_fault("disk") { throw Wrong("the disk is full") }
    }
    #expect(found.failure?.error is Wrong)
  }

  // MARK: Failures

  @Test(arguments: Leaving.all) func `what leaves the world fails the run, by what was asked`(way: Leaving) throws {
    // However fast the other thread is.
    for _ in 0..<10 {
      let failure = try #require(explore(.inOrder, way.body).failure)
      #expect(failure.error is World.RealWaitError)
      #expect("\(failure.error)".contains(way.name), "\(failure.error)")
    }
  }

  @Test func `a deadlock lists the Tasks, and where each one waits`() throws {
    let failure = try #require(
      explore(.inOrder) {
        async let stuck: Void = waitForEver()
        let named = Task(name: "reader") { await waitForEver() }
        _ = await (stuck, named.value)
      }.failure
    )
    #expect(failure.error is World.DeadlockError)
    let text = failure.description
    #expect(text.contains("every Task waits"))
    #expect(text.contains("Task 2 waits in"))
    #expect(text.contains("Task 3 \"reader\" waits in"))
    #expect(text.contains("waitForEver"))
    #expect(text.contains("created in"))
  }

  @Test func `a Task that does not end when it is cancelled is left behind, and is named`() throws {
    let failure = try #require(
      explore(.inOrder) {
        _ = makeLeaky()
        await Task.yield()
      }.failure
    )
    #expect(failure.error is World.LeftRunningError)
    #expect(failure.description.contains("\"leaky\""))
    #expect(failure.description.contains("makeLeaky"))
  }

  @Test func `a Task that ends when it is cancelled is not`() {
    let found = explore(.inOrder) {
      Task { try await Task.sleep(for: .seconds(1_000_000)) }
      Task { while !Task.isCancelled { try await Task.sleep(for: .seconds(1)) } }
      await Task.yield()
    }
    #expect(found.failure == nil)
  }

  @Test func `the body's own error comes first`() throws {
    let failure = try #require(
      explore(.inOrder) {
        _ = makeLeaky()
        await Task.yield()
        throw Wrong("own")
      }.failure
    )
    #expect(failure.error is Wrong)
  }

  @Test func `the table names Tasks and actors`() throws {
    let failure = try #require(
      explore(.inOrder) {
        let total = Total()
        await Task(name: "adder") { await total.add(1) }.value
        throw Wrong("seen")
      }.failure
    )
    #expect(failure.description.contains("Task 2 \"adder\""))
    #expect(failure.description.contains("goes to Total"))
  }

  @Test(arguments: [false, true])
  func `a trap, or an abort, prints the schedule before the process ends`(aborts: Bool) async throws {
    let result = await #expect(
      processExitsWith: aborts ? .signal(SIGABRT) : .failure,
      observing: [\.standardErrorContent]
    ) { [aborts] in
      // Its backtrace takes longer than the test.
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      _ = explore(.random()) {
        let total = Total()
        await withTaskGroup { group in
          for amount in 1...2 { group.addTask { await total.add(amount) } }
        }
        // As Swift's runtime does for accesses that overlap.
        if aborts { abort() }
        fatalError("as a wrong index would")
      }
    }
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("The code under test has trapped, in Task"))
    #expect(text.contains("CO_REPLAY=1"))
  }

  @Test func `a lock of a thread that is held over an await is named`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = explore(.random()) {
        let lock = HeldLock()
        let total = Total()
        await withTaskGroup { group in
          for amount in 1...2 {
            group.addTask {
              lock.lock()
              await total.add(amount)
              lock.unlock()
            }
          }
        }
      }
    }
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("hold a lock of a thread over an await"))
    #expect(text.contains("CO_REPLAY=1"))
  }

  // MARK: Bad input

  @Test func `a world with async code inside of another one is refused, one of coroutines is not`() {
    let found = explore(.inOrder) {
      let inner = explore(.inOrder) { await Task.yield() }
      guard inner.failure?.error is World.AsyncWorldError else { throw Wrong("not refused") }
      if let failure = explore(.inOrder, { try co_delay(.seconds(1)) }).failure { throw failure }
      let start = ContinuousClock.now
      try await Task.sleep(for: .seconds(1))
      if ContinuousClock.now - start != .seconds(1) { throw Wrong("the outer world's time") }
    }
    #expect(found.failure == nil)
  }

  @Test func `explorations on two threads exclude each other, and other Tasks run beside them`() async throws {
    async let first = onOwnThread { explore(.random(seeds: 300), countOnMain).failure == nil }
    async let second = onOwnThread { explore(.random(seeds: 300), countOnMain).failure == nil }
    for _ in 0..<20 { try await Task.sleep(for: .milliseconds(1)) }
    #expect(try await first)
    #expect(try await second)
  }

  @Test(arguments: BadBody.all) func `a body that is unusual ends`(bad: BadBody) {
    #expect(explore(.random(seeds: 3), bad.body).failure == nil)
  }

  @Test func `a body that never ends reaches the limit`() throws {
    let failure = try #require(
      explore(.inOrder, timeLimit: .seconds(60)) { while true { try await Task.sleep(for: .seconds(1)) } }.failure
    )
    #expect(failure.error is World.TimeLimitError)
  }

  // MARK: The trait

  @Test(.simulated(.exhaustive())) func `a test's body is async, and its time is the world's`() async throws {
    let start = ContinuousClock.now
    let total = Total()
    async let first: Void = total.add(1)
    async let second: Void = total.add(2)
    _ = await (first, second)
    try await Task.sleep(for: .seconds(3600))
    #expect(await total.sum == 3)
    #expect(ContinuousClock.now - start == .seconds(3600))
    #expect(World.current?.now == .seconds(3600))
  }

  @Test(.simulated(.random(seeds: 20))) @MainActor func `a test of the main actor is in the world`() async throws {
    MainActor.preconditionIsolated()
    try await Task.sleep(for: .seconds(60))
    MainActor.preconditionIsolated()
    #expect(World.current?.now == .seconds(60))
  }
}

private struct Outcome: Error, CustomStringConvertible {
  let description: String
  init(_ outcome: [Int]) { description = "\(outcome)" }
}

private actor Total {
  private(set) var sum = 0
  func add(_ amount: Int) { sum += amount }
}

private final class HeldLock: @unchecked Sendable {
  // Sound because NSLock is.
  private let stored = NSLock()
  func lock() { stored.lock() }
  func unlock() { stored.unlock() }
}

@inline(never)
@Sendable private func waitForEver() async {
  await withUnsafeContinuation { (_: UnsafeContinuation<Void, Never>) in }
}

@inline(never) private func makeLeaky() -> Task<Void, Never> { Task(name: "leaky") { await waitForEver() } }

private enum OnMain {
  @MainActor static var total = 0
  @MainActor static func add(_ amount: Int) { total += amount }
}

@Sendable private func countOnMain() async throws {
  let before = await MainActor.run { OnMain.total }
  await withTaskGroup { group in
    for _ in 0..<3 { group.addTask { await OnMain.add(1) } }
  }
  let after = await MainActor.run { OnMain.total }
  if after - before != 3 { throw Wrong("\(after - before)") }
}

// MARK: - Constructs

/// A construct of Swift Concurrency: a program, and how many outcomes it has.
struct Construct: Sendable, CustomTestStringConvertible {
  let testDescription: String
  let outcomes: Int
  let body: @Sendable () async throws -> [Int]

  private init(_ name: String, _ outcomes: Int, _ body: @escaping @Sendable () async throws -> [Int]) {
    (testDescription, self.outcomes, self.body) = (name, outcomes, body)
  }

  static let all: [Construct] = [
    Construct("Task", 6) {
      let notes = Notes()
      let tasks = (1...3).map { number in Task { await notes.add(number) } }
      for task in tasks { await task.value }
      return await notes.all
    },
    Construct("Task.detached", 6) {
      let notes = Notes()
      let tasks = (1...3).map { number in Task.detached { await notes.add(number) } }
      for task in tasks { await task.value }
      return await notes.all
    },
    Construct("async let", 6) {
      let notes = Notes()
      async let first: Void = notes.add(1)
      async let second: Void = notes.add(2)
      async let third: Void = notes.add(3)
      _ = await (first, second, third)
      return await notes.all
    },
    Construct("a group", 6) {
      let notes = Notes()
      await withTaskGroup { group in for number in 1...3 { group.addTask { await notes.add(number) } } }
      return await notes.all
    },
    Construct("the results of a group", 6) {
      await withTaskGroup(of: Int.self) { group in
        for number in 1...3 { group.addTask { number } }
        var results: [Int] = []
        for await result in group { results.append(result) }
        return results
      }
    },
    Construct("a discarding group", 6) {
      let notes = Notes()
      await withDiscardingTaskGroup { group in for number in 1...3 { group.addTask { await notes.add(number) } } }
      return await notes.all
    },
    Construct("a group that throws and cancels", 1) {
      let notes = Notes()
      try? await withThrowingTaskGroup { group in
        group.addTask {
          try await Task.sleep(for: .seconds(1))
          await notes.add(1)
        }
        group.addTask {
          try await Task.sleep(for: .seconds(1))
          throw CancellationError()
        }
        try await group.waitForAll()
      }
      return await notes.all
    },
    Construct("an actor that calls an actor", 7) {
      let (first, second) = (Notes(), Notes())
      async let one: Void = first.visit(second)
      async let two: Void = second.visit(first)
      _ = await (one, two)
      return await first.all + second.all
    },
    // The order is the actor's own, first in, first out.
    Construct("Tasks that inherit an actor", 1) {
      let notes = Notes()
      await notes.spawn()
      while await notes.all.count < 3 { await Task.yield() }
      return await notes.all
    },
    Construct("the main actor", 6) {
      await MainActor.run { Globals.onMain = [] }
      await withTaskGroup { group in for number in 1...3 { group.addTask { await Globals.addOnMain(number) } } }
      return await MainActor.run { Globals.onMain }
    },
    Construct("a global actor", 6) {
      await Globals.clear()
      await withTaskGroup { group in for number in 1...3 { group.addTask { await Globals.add(number) } } }
      return await Globals.all()
    },
    Construct("a sleep on the main actor", 1) {
      try await Globals.sleepOnMain()
      return []
    },
    Construct("equal sleeps", 6) {
      let notes = Notes()
      await withTaskGroup { group in
        for number in 1...3 {
          group.addTask {
            try? await Task.sleep(for: .seconds(5))
            await notes.add(number)
          }
        }
      }
      return await notes.all
    },
    Construct("different sleeps, far apart", 1) {
      let notes = Notes()
      await withTaskGroup { group in
        for number in 1...3 {
          group.addTask {
            try? await Task.sleep(for: .seconds(number))
            await notes.add(number)
          }
        }
      }
      return await notes.all
    },
    Construct("sleeps a millisecond apart: one may be late", 2) {
      let notes = Notes()
      await withTaskGroup { group in
        for number in 1...2 {
          group.addTask {
            try? await Task.sleep(for: .milliseconds(number))
            await notes.add(number)
          }
        }
      }
      return await notes.all
    },
    Construct("every sleep and clock", 1) {
      let (continuous, suspending, date) = (ContinuousClock.now, SuspendingClock.now, Date())
      try await Task.sleep(nanoseconds: 1_000_000_000)
      try await Task.sleep(for: .seconds(1), tolerance: .seconds(1))
      try await Task.sleep(until: .now + .seconds(1), clock: .suspending)
      try await ContinuousClock().sleep(until: .now + .seconds(1))
      try await Task.sleep(until: StepClock.Instant(at: .seconds(1)), clock: StepClock())
      return [
        Int((ContinuousClock.now - continuous).components.seconds),
        Int((SuspendingClock.now - suspending).components.seconds), Int(Date().timeIntervalSince(date)),
      ]
    },
    Construct("a sleep that is cancelled", 1) {
      let start = ContinuousClock.now
      let sleeper = Task { try? await Task.sleep(for: .seconds(100)) }
      await Task.yield()
      sleeper.cancel()
      _ = await sleeper.value
      return [Int((ContinuousClock.now - start).components.seconds)]
    },
    Construct("Task.yield", 2) {
      let notes = Notes()
      let yields = Task {
        await Task.yield()
        await notes.add(1)
      }
      await notes.add(2)
      await yields.value
      return await notes.all
    },
    Construct("Task.immediate", 2) {
      let notes = Notes()
      let immediate = Task.immediate { await notes.add(1) }
      await notes.add(2)
      await immediate.value
      return await notes.all
    },
    Construct("a stream", 1) {
      let (stream, continuation) = AsyncStream<Int>.makeStream()
      let producer = Task {
        for number in 1...3 {
          continuation.yield(number)
          await Task.yield()
        }
        continuation.finish()
      }
      var received: [Int] = []
      for await number in stream { received.append(number) }
      await producer.value
      return received
    },
    Construct("a stream of two producers", 2) {
      let (stream, continuation) = AsyncStream<Int>.makeStream()
      let producers = [1, 3].map { first in
        Task {
          continuation.yield(first)
          continuation.yield(first + 1)
        }
      }
      let finisher = Task {
        for producer in producers { await producer.value }
        continuation.finish()
      }
      var received: [Int] = []
      for await number in stream { received.append(number) }
      await finisher.value
      return received
    },
    Construct("continuations", 1) {
      let later = await withCheckedContinuation { continuation in Task { continuation.resume(returning: 7) } }
      let atOnce = await withUnsafeContinuation { $0.resume(returning: 8) }
      return [later, atOnce]
    },
    Construct("a cancellation handler", 1) {
      let notes = Locked<[Int]>([])
      let waiting = Task {
        await withTaskCancellationHandler {
          try? await Task.sleep(for: .seconds(100))
          return Task.isCancelled ? 1 : 0
        } onCancel: {
          notes.withLock { $0.append(2) }
        }
      }
      await Task.yield()
      waiting.cancel()
      return [await waiting.value] + notes.withLock { $0 }
    },
    Construct("task-locals", 1) {
      await Locals.$number.withValue(3) {
        async let child = Locals.number
        let task = Task { Locals.number }
        let detached = Task.detached { Locals.number }
        return [await child, await task.value, await detached.value]
      }
    },
    Construct("priorities that are raised", 2) {
      let low = Task(priority: .background) {
        await Task.yield()
        await Task.yield()
        return Int(Task.currentPriority.rawValue)
      }
      await Task.yield()
      return [await Task(priority: .high) { await low.value }.value]
    },
    Construct("a priority that is raised by hand", 1) {
      let low = Task(priority: .background) {
        await Task.yield()
        return Int(Task.currentPriority.rawValue)
      }
      low.escalatePriority(to: .high)
      return [await low.value]
    },
    Construct("an isolated deinit", 1) {
      let deinits = Locked(0)
      do {
        let object = WithDeinit(deinits)
        await object.touch()
      }
      while deinits.withLock({ $0 }) == 0 { await Task.yield() }
      return [deinits.withLock { $0 }]
    },
    Construct("Observations", 1) {
      let model = Model()
      let observer = Task {
        for await value in Observations({ model.value }) where value >= 2 { return value }
        return 0
      }
      for value in 1...2 {
        await Task.yield()
        model.value = value
      }
      return [await observer.value]
    },
    Construct("the current Task, without safety", 1) {
      withUnsafeCurrentTask { $0?.cancel() }
      try? await Task.sleep(for: .seconds(1))
      return [Task.isCancelled ? 1 : 0]
    },
  ]
}

private actor Notes {
  private(set) var all: [Int] = []
  func add(_ number: Int) { all.append(number) }
  func spawn() { for number in 1...3 { Task { all.append(number) } } }

  func visit(_ other: Notes) async {
    all.append(1)
    await other.add(5)
    all.append(2)
  }
}

@globalActor private actor Elsewhere { static let shared = Elsewhere() }

private enum Globals {
  @MainActor static var onMain: [Int] = []
  @MainActor static func addOnMain(_ number: Int) {
    MainActor.assumeIsolated { onMain.append(number) }
  }
  @MainActor static func sleepOnMain() async throws {
    try await Task.sleep(for: .milliseconds(3))
    MainActor.preconditionIsolated()
  }

  @Elsewhere private static var elsewhere: [Int] = []
  @Elsewhere static func clear() { elsewhere = [] }
  @Elsewhere static func add(_ number: Int) { elsewhere.append(number) }
  @Elsewhere static func all() -> [Int] { elsewhere }
}

private enum Locals { @TaskLocal static var number = 0 }

@Observable private final class Model: @unchecked Sendable {
  // Sound because one thread runs a world.
  var value = 0
}

private actor WithDeinit {
  private let deinits: Locked<Int>
  init(_ deinits: Locked<Int>) { self.deinits = deinits }
  func touch() {}
  isolated deinit { deinits.withLock { $0 += 1 } }
}

/// A clock that is built on sleep.
private struct StepClock: Clock {
  struct Instant: InstantProtocol {
    var at: Duration
    func advanced(by duration: Duration) -> Instant { Instant(at: at + duration) }
    func duration(to other: Instant) -> Duration { other.at - at }
    static func < (left: Instant, right: Instant) -> Bool { left.at < right.at }
  }
  var now: Instant { Instant(at: .zero) }
  var minimumResolution: Duration { .nanoseconds(1) }
  func sleep(until deadline: Instant, tolerance: Duration?) async throws { try await Task.sleep(for: deadline.at) }
}
