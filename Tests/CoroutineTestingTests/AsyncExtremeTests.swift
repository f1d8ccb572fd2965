import CoroutineTesting
import Dispatch
import Foundation
import Synchronization
import Testing
@_spi(ExperimentalCustomExecutors) import _Concurrency

/// Worlds of async code where they are called, what ends a process, and executors of the program's own.
@Suite(.timeLimit(.minutes(10)), .serialized)
struct AsyncExtremeTests {
  // MARK: Where explore is called

  @Test func `explore in a Task, in a child and in an actor blocks that thread alone`() async {
    let inTask = Task.detached { explore(.random(seeds: 20), countToTwo).failure == nil }
    async let inChild = explore(.random(seeds: 20), countToTwo).failure == nil
    let inActor = await Caller().call()
    #expect(await inTask.value)
    #expect(await inChild)
    #expect(inActor)
  }

  @Test @MainActor func `explore on the main actor has another thread, and the main actor in its world`() {
    let found = explore(.random(seeds: 20)) {
      await MainActor.run { MainActor.preconditionIsolated() }
      if Thread.isMainThread { throw Wrong("the main thread") }
    }
    #expect(found.failure == nil)
  }

  @Test @MainActor func `explore on the main actor sees the caller's task-locals`() {
    let found = Told.$value.withValue(7) {
      explore(.inOrder) {
        let below = await Task { Told.value }.value
        if Told.value != 7 || below != 7 { throw Wrong("\(Told.value) \(below)") }
      }
    }
    #expect(found.failure == nil, "\(found)")
  }

  private enum Told { @TaskLocal static var value = 0 }

  // MARK: The order and the ends of Tasks

  @Test(arguments: [Exploration.Sharing.memory, .waits]) func `a result goes with its Task, and ends what waits for it`(
    sharing: Exploration.Sharing
  ) {
    let found = explore(.exhaustive(preemptions: 1), sharing: sharing) {
      let (numbers, continuation) = AsyncStream.makeStream(of: Int.self)
      // Nobody keeps the Task, so nobody keeps what it returns.
      Task { Finisher(continuation) }
      await withTaskGroup { group in group.addTask { for await _ in numbers {} } }
    }
    #expect(found.failure == nil, "\(found)")
    #expect(found.isComplete)
  }

  @Test(arguments: Beginning.all) func `a Task whose first part waits is left running, whoever runs that part`(
    beginning: Beginning
  ) throws {
    let failure = try #require(explore(.random(seeds: 3), beginning.body).failure)
    let error = try #require(failure.error as? World.LeftRunningError)
    #expect("\(error)".contains("Task 2 \"waiting\" waits"), "\(error)")
    // It is cancelled at the end.
    #expect("\(error)".contains("cancelled"), "\(error)")
  }

  @Test func `a timer of an instant may come after what another one of it has begun`() {
    let seen = Locked<Set<Bool>>([])
    let found = explore(.exhaustive(preemptions: 1)) {
      let sleeper = Task {
        do { try await Task.sleep(for: .seconds(1)) } catch { return true }
        return false
      }
      try await Task.sleep(for: .seconds(1))
      sleeper.cancel()
      let wasCancelled = await sleeper.value
      seen.withLock { _ = $0.insert(wasCancelled) }
    }
    #expect(found.failure == nil, "\(found)")
    #expect(seen.withLock { $0 } == [true, false])
  }

  @Test func `an immediate Task that has ended keeps nothing`() {
    let found = explore(.inOrder) {
      weak let result = await Task.immediate { Finisher(nil) }.value
      if result != nil { throw Wrong("kept") }
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `sleepers of the main actor may come to it in either order`() {
    let seen = Locked<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: 1)) {
      let notes = OnMain()
      async let one: Void = notes.addLater(1)
      async let two: Void = notes.addLater(2)
      _ = await (one, two)
      let all = await notes.all
      seen.withLock { _ = $0.insert(all) }
    }
    #expect(found.failure == nil, "\(found)")
    #expect(seen.withLock { $0 } == [[1, 2], [2, 1]])
  }

  @Test func `a timer that is held back fires although another Task never stops`() {
    let found = explore(.exhaustive(preemptions: 1, most: 200)) {
      let flag = Flag()
      let waiter = Task {
        try await Task.sleep(for: .seconds(1))
        while !flag.isSet { await Task.yield() }
      }
      try await Task.sleep(for: .seconds(1))
      flag.set()
      try await waiter.value
    }
    #expect(found.failure == nil, "\(found)")
  }

  @Test func `what one step releases, a replay releases in the same order`() throws {
    for sharing in [Exploration.Sharing.memory, .waits] {
      let body: @Sendable () async throws -> Void = {
        let streams = (0..<3).map { _ in AsyncStream.makeStream(of: Int.self) }
        let order = Locked<[Int]>([])
        await withTaskGroup { group in
          for number in streams.indices {
            let numbers = streams[number].stream
            group.addTask {
              for await _ in numbers {}
              order.withLock { $0.append(number) }
            }
          }
          group.addTask { await Beginner().end(streams.map(\.continuation)) }
        }
        if order.withLock({ $0 }) != [0, 1, 2] { throw Wrong("another order") }
      }
      let failure = try #require(explore(.exhaustive(preemptions: 2), sharing: sharing, body).failure)
      #expect(failure.error is Wrong, "\(failure)")
      #expect(explore(.replay(failure.token), sharing: sharing, body).failure?.token == failure.token)
    }
  }

  @Test func `the main actor runs what is given to it in that order`() {
    let seen = Locked<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: 2)) {
      let notes = OnMain()
      let other = Task { await notes.add(3) }
      await Task.yield()
      // Of one step: nothing comes between.
      let first = Task { @MainActor in notes.all.append(1) }
      let second = Task { @MainActor in notes.all.append(2) }
      _ = await (first.value, second.value, other.value)
      let all = await notes.all
      seen.withLock { _ = $0.insert(all) }
    }
    #expect(found.failure == nil, "\(found)")
    #expect(found.isComplete)
    #expect(seen.withLock { $0 } == [[1, 2, 3], [3, 1, 2]])
  }

  // MARK: Processes that end

  @Test func `the token of a trap stops there again`() async throws {
    let first = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = explore(.random(seeds: 1, from: 5), trapAfterTwo)
    }
    let line = try #require(text(of: first).split(separator: "\n").first { $0.hasPrefix("CO_REPLAY=") })
    // An exit test cannot be given a value, so the token comes by the environment, as from a user.
    setenv("ASYNC_TRAP_TOKEN", String(line.dropFirst("CO_REPLAY=".count)), 1)
    defer { unsetenv("ASYNC_TRAP_TOKEN") }
    let second = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let token = ProcessInfo.processInfo.environment["ASYNC_TRAP_TOKEN"] ?? ""
      let found = explore(.replay(token), trapAfterTwo)
      print("not trapped: \(found)")
    }
    #expect(text(of: second).contains(line))
    #expect(text(of: second).contains("has trapped, in Task"))
  }

  @Test func `a continuation that is resumed twice prints the token`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = explore(.random()) {
        await withCheckedContinuation { (continuation: CheckedContinuation<Void, Never>) in
          Task { continuation.resume() }
          Task { continuation.resume() }
        }
        try await Task.sleep(for: .seconds(1))
      }
    }
    #expect(text(of: result).contains("tried to resume its continuation more than once"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `a loop that waits for the clock without an await is named`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = explore(.inOrder) {
        await Task.yield()
        let end = ContinuousClock.now + .seconds(1)
        while ContinuousClock.now < end {}
      }
    }
    #expect(text(of: result).contains("waits for the clock in a loop without an await, and time passes only between"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `a loop over what is always ready is named, and does not run for ever`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      AsyncWatch.mostComputing.store(1, ordering: .relaxed)
      _ = explore(.inOrder) {
        await Task.yield()
        for await _ in Endless() {}
      }
    }
    #expect(text(of: result).contains("s without a suspension (does it go through a sequence that is always ready?"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `a body that blocks its thread is named`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = explore(.inOrder) {
        await Task.yield()
        block()
      }
    }
    #expect(text(of: result).contains("has blocked its thread"))
    #expect(text(of: result).contains("CO_REPLAY=1"))
  }

  @Test func `where another tool has the executors before, worlds are above it; after that it is named`() async {
    await #expect(processExitsWith: .success) {
      _createExecutors(factory: OtherFactory.self)
      let before = explore(.inOrder, countToTwo)
      await Task.detached {}.value
      guard before.failure == nil, OtherExecutor.jobs.withLock({ $0 }) > 0 else { fatalError("\(before)") }
      _createExecutors(factory: OtherFactory.self)
      let after = explore(.inOrder, countToTwo)
      guard let error = after.failure?.error as? World.AsyncWorldError, "\(error)".contains("another tool") else {
        fatalError("\(after)")
      }
    }
  }

  // MARK: Failures

  @Test func `a continuation that is leaked is a deadlock, and names the Task`() throws {
    let failure = try #require(
      explore(.inOrder) {
        await withCheckedContinuation { (_: CheckedContinuation<Void, Never>) in }
      }.failure
    )
    #expect(failure.error is World.DeadlockError)
    #expect(failure.description.contains("Task 1 waits"))
  }

  @Test func `what no choice explains fails the exploration, also without another choice`() throws {
    let runs = Locked(0)
    let failure = try #require(
      explore(.random(seeds: 5)) {
        let run = runs.withLock { number -> Int in
          number += 1
          return number
        }
        try await Task.sleep(for: .seconds(run))
      }.failure
    )
    #expect(failure.error is Exploration.NondeterminismError)
    #expect(failure.description.contains("of virtual time"))
  }

  @Test func `an actor that a thread outside holds is named, and that thread's Tasks go on`() async throws {
    let (held, released) = (Flag(), Flag())
    let holder = Task.detached {
      await Everywhere.shared.hold(held, until: released)
      return await Everywhere.shared.count
    }
    // Not a wait for time: for a Task that begins.
    while !held.isSet { await Task.yield() }
    let found = try await onOwnThread {
      explore(.inOrder) {
        await Everywhere.shared.add()
        await Task.yield()
      }
    }
    released.set()
    _ = await holder.value
    #expect(found.failure?.error is World.RealWaitError)
    #expect(found.failure?.description.contains("Task 1 continues on Everywhere, which runs outside") == true)
  }

  @Test func `a Task of outside that an actor runs in a step goes on outside`() async throws {
    var found: Exploration?
    // Nothing tells that the Task is in the actor's queue; so again, until it was.
    for _ in 0..<1_000 where found?.failure == nil {
      let (held, isComing) = (Flag(), Flag())
      let actor = Everywhere()
      let other = Tally()
      let outside = Task.detached {
        while !held.isSet { await Task.yield() }
        isComing.set()
        await actor.visit(other)
      }
      found = try await onOwnThread {
        explore(.inOrder) {
          await actor.hold(held, until: isComing)
          await Task.yield()
        }
      }
      await outside.value
      #expect(await other.count == 1)
    }
    #expect(found?.failure?.error is World.RealWaitError)
    let text = found?.failure?.description ?? ""
    #expect(text.contains("a Task of outside has continued in a step of"))
  }

  @Test func `Tasks that begin on an actor are the world's, however they begin`() {
    let found = explore(.random(seeds: 200)) {
      let tally = Tally()
      await Everywhere().beginEach(tally)
      let count = await tally.count
      if count != 7 { throw Wrong("\(count)") }
    }
    #expect(found.failure == nil)
  }

  // MARK: Executors on queues

  @Test func `actors on queues are in the world, if it includes Dispatch`() {
    let seen = Locked<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: 1, most: 5_000)) {
      World.includeDispatch()
      let actor = OnQueue()
      await withTaskGroup { group in for number in 1...3 { group.addTask { await actor.add(number) } } }
      let all = await actor.all
      seen.withLock { _ = $0.insert(all) }
      if World.current?.now != .milliseconds(5) { throw Wrong("\(String(describing: World.current?.now))") }
    }
    #expect(found.failure == nil)
    #expect(seen.withLock { $0.count } >= 6)
  }

  @Test func `they repeat, and a bug in one is found, shrunk and replayed`() throws {
    let body: @Sendable () async throws -> Void = {
      World.includeDispatch()
      let actor = OnQueue()
      await withTaskGroup { group in for _ in 0..<2 { group.addTask { await actor.takeLast() } } }
      let left = await actor.left
      if left < 0 { throw Wrong("\(left) left") }
    }
    let failure = try #require(explore(.random(), body).failure)
    #expect(failure.error is Wrong)
    for _ in 0..<10 { #expect(explore(.replay(failure.token), body).failure?.token == failure.token) }
  }

  @Test func `blocks of one queue run in their order, those of two in each order`() {
    let seen = Locked<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: 1)) {
      World.includeDispatch()
      let notes = Locked<[Int]>([])
      let (first, second) = (DispatchQueue(label: "first"), DispatchQueue(label: "second"))
      await withCheckedContinuation { continuation in
        let note: @Sendable (Int) -> Void = { number in
          let count = notes.withLock { notes -> Int in
            notes.append(number)
            return notes.count
          }
          if count == 3 { continuation.resume() }
        }
        first.async { note(1) }
        first.async { note(2) }
        second.async { note(3) }
      }
      seen.withLock { _ = $0.insert(notes.withLock { $0 }) }
    }
    #expect(found.failure == nil)
    #expect(seen.withLock { $0 } == [[1, 2, 3], [1, 3, 2], [3, 1, 2]])
  }

  @Test func `a block that is left at the end runs, and is released`() {
    let probe = Locked<WeakProbe>(WeakProbe())
    let ran = Flag()
    let found = explore(.inOrder) {
      World.includeDispatch()
      await Task.yield()
      let own = Probe()
      probe.withLock { $0.object = own }
      DispatchQueue(label: "late").async {
        hold(own)
        ran.set()
      }
    }
    #expect(found.failure == nil)
    #expect(ran.isSet)
    #expect(probe.withLock { $0.object } == nil)
  }
}

private func text(of result: ExitTest.Result?) -> String {
  String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
}

private final class Probe: Sendable {}
private struct WeakProbe { weak var object: Probe? }
@inline(never) private func hold(_ probe: Probe) {}

private actor Tally {
  private(set) var count = 0
  func add() { count += 1 }
}

@Sendable private func countToTwo() async throws {
  let counter = Tally()
  async let first: Void = counter.add()
  async let second: Void = counter.add()
  _ = await (first, second)
  let count = await counter.count
  if count != 2 { throw Wrong("\(count)") }
}

@Sendable private func waitForEver() async {
  await withUnsafeContinuation { (_: UnsafeContinuation<Void, Never>) in }
}

/// A result that ends a stream when it goes.
private final class Finisher: Sendable {
  private let continuation: AsyncStream<Int>.Continuation?
  init(_ continuation: AsyncStream<Int>.Continuation?) { self.continuation = continuation }
  deinit { continuation?.finish() }
}

@MainActor private final class OnMain {
  var all: [Int] = []
  func add(_ number: Int) { all.append(number) }
  func addLater(_ number: Int) async {
    try? await Task.sleep(for: .milliseconds(number))
    all.append(number)
  }
}

private actor Beginner {
  /// Begins Tasks in the actor's own queue, whose results end the streams.
  func end(_ all: [AsyncStream<Int>.Continuation]) { for one in all { Task { Finisher(one) } } }
  func begin() { Task(name: "waiting") { await waitForEver() } }
}

/// A way to begin a Task whose first part another one's step runs.
struct Beginning: CustomTestStringConvertible, Sendable {
  let testDescription: String
  let body: @Sendable () async throws -> Void

  static let all = [
    Beginning(testDescription: "at once") { Task.immediate(name: "waiting") { await waitForEver() } },
    Beginning(testDescription: "by an actor") { await Beginner().begin() },
    Beginning(testDescription: "by the main actor") {
      await MainActor.run { _ = Task(name: "waiting") { @MainActor in await waitForEver() } }
    },
  ]
}

@Sendable private func trapAfterTwo() async throws {
  try await countToTwo()
  fatalError("as a wrong index would")
}

private actor Caller {
  func call() -> Bool { explore(.random(seeds: 20), countToTwo).failure == nil }
}

private struct Endless: AsyncSequence, AsyncIteratorProtocol {
  func next() async -> Int? { 1 }
  func makeAsyncIterator() -> Endless { self }
}

private func block() { DispatchSemaphore(value: 0).wait() }

private final class QueueExecutor: SerialExecutor {
  private let queue = DispatchQueue(label: "own executor")
  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

private actor OnQueue {
  private let executor = QueueExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  private(set) var all: [Int] = []
  private(set) var left = 1

  func add(_ number: Int) async {
    preconditionIsolated()
    all.append(number)
    // Resumed by a timer, so by the executor, and not by a hop.
    try? await Task.sleep(for: .milliseconds(5))
    preconditionIsolated()
    all.append(-number)
  }

  func takeLast() async {
    guard left > 0 else { return }
    await Task.yield()
    left -= 1
  }
}

private final class OtherExecutor: TaskExecutor {
  static let jobs = Locked(0)
  static let own = OtherExecutor()
  let executor = Task<Never, Never>.defaultExecutor
  func enqueue(_ job: consuming ExecutorJob) {
    Self.jobs.withLock { $0 += 1 }
    executor.enqueue(job)
  }
}

private enum OtherFactory: ExecutorFactory {
  static let mainExecutor: any MainExecutor = MainActor.executor
  static let defaultExecutor: any TaskExecutor = OtherExecutor.own
}

/// An actor that Tasks inside and outside of a world use.
private actor Everywhere {
  static let shared = Everywhere()
  private(set) var count = 0
  func add() { count += 1 }

  /// Holds the actor until `released` is set, after it has set `held`.
  func hold(_ held: Flag, until released: Flag) {
    held.set()
    while !released.isSet { sched_yield() }
    for _ in 0..<100 { sched_yield() }
  }

  func visit(_ other: Tally) async {
    // Without a change here, the compiler drops the visit.
    count += 1
    await other.add()
  }

  /// Begins Tasks that are the actor's, in each way that there is; none is seen before it leaves the actor.
  func beginEach(_ other: Tally) async {
    let tasks = [
      Task { await other.add() }, Task(name: "named") { await other.add() },
      Task(priority: .high) { await other.add() }, Task.immediate { await other.add() },
    ]
    async let child: Void = other.add()
    await withTaskGroup { group in
      group.addTask { await other.add() }
      group.addTask { @Sendable [self] in await addOnce(other) }
    }
    for task in tasks { await task.value }
    await child
  }

  private func addOnce(_ other: Tally) async { await other.add() }
}
