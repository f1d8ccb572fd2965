import Coroutine
import Dispatch
import Testing

/// The verbs that wait for several results.
private enum Combinator: CaseIterable {
  case all, any, race, allSettled

  func wait(for sources: [some Awaitable<Int>]) throws {
    switch self {
    case .all: _ = try co_all(sources)
    case .any: _ = try co_any(sources)
    case .race: _ = try co_race(sources)
    case .allSettled: _ = try co_allSettled(sources)
    }
  }
}

/// A promise's work is cancelled when its last consumer is cancelled: a link, a coroutine or a Task.
@Suite("The last consumer of a promise", .timeLimit(.minutes(10)))
struct LastConsumerTests {
  /// A promise whose work can be cancelled.
  private final class Work: Sendable {
    let promise: Promise<Int>
    let resumer: Resumer<Int>
    let cancelled: Trace
    init(_ name: String = "work", _ trace: Trace = Trace()) {
      cancelled = trace
      (promise, resumer) = Promise<Int>.pending(onCancel: { trace(name) })
    }
    var isCancelled: Bool { !cancelled.all.isEmpty }
  }

  /// Launches a coroutine that waits, and cancels it.
  private func cancelled(_ wait: @escaping @Sendable () throws -> Void) async throws -> String {
    try await onSerialQueue {
      let waiter = co_launch { try wait() }
      try co_yield()
      waiter.cancel(Oops("enough"))
      return outcome { try waiter.join() }
    }
  }

  @Test func `a coroutine that is cancelled as the last consumer cancels the work, and throws its own error`()
    async throws
  {
    let work = Work()
    #expect(try await cancelled { _ = try co_await(work.promise) } == "Oops(enough)")
    #expect(work.isCancelled && work.promise.isRejected)
  }

  @Test func `a Task that is cancelled as the last consumer cancels the work`() async {
    let work = Work()
    let task = Task { try await work.promise.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(work.isCancelled)
  }

  @Test func `the work goes on as long as one consumer of any kind is left`() async throws {
    let work = Work()
    let kept = work.promise.then { $0 + 1 }
    #expect(try await cancelled { _ = try co_await(work.promise) } == "Oops(enough)")
    let task = Task { try await work.promise.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    let link = work.promise.then { $0 }
    link.cancel()
    #expect(!work.isCancelled)
    work.resumer.resume(1)
    #expect(try await kept.value == 2)
  }

  @Test func `the last of several coroutines and Tasks cancels it`() async throws {
    let work = Work()
    let queue = taggedQueue("waiters")
    let jobs = (0..<3).map { _ in co_launch(on: queue) { try co_await(work.promise) } }
    let tasks = (0..<3).map { _ in Task { try await work.promise.value } }
    try await onBlock(of: queue) {}
    for task in tasks { task.cancel() }
    for task in tasks { _ = await asyncOutcome { try await task.value } }
    #expect(!work.isCancelled)
    for job in jobs {
      #expect(!work.isCancelled)
      job.cancel()
      _ = await asyncOutcome { try await job.value }
    }
    #expect(work.isCancelled)
  }

  @Test func `uncancelled keeps the work going, for a coroutine, a Task and a combinator`() async throws {
    let work = Work()
    #expect(try await cancelled { _ = try co_await(work.promise.uncancelled) } == "Oops(enough)")
    let task = Task { try await work.promise.uncancelled.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    Promise.all([work.promise.uncancelled]).cancel()
    #expect(!work.isCancelled && work.promise.isPending)
    let value = work.promise.uncancelled
    work.resumer.resume(3)
    #expect(try await value.value == 3)
    #expect(try await work.promise.uncancelled.value == 3)
    #expect(await asyncOutcome { try await Promise<Int>.failure(Oops("no")).uncancelled.value } == "Oops(no)")
  }

  @Test func `a promise without work stays pending, here and further upstream`() async throws {
    let bare = Promise<Int>()
    #expect(try await cancelled { _ = try co_await(bare) } == "Oops(enough)")
    #expect(bare.isPending)
    let derived = bare.then { $0 }
    #expect(try await cancelled { _ = try co_await(derived) } == "Oops(enough)")
    #expect(bare.isPending && derived.isRejected)
    bare.fulfill(1)
    #expect(try await bare.value == 1)
  }

  @Test func `it reaches the work through links and combinators, except through those with other consumers`()
    async throws
  {
    let trace = Trace()
    let works = (0..<3).map { Work("\($0)", trace) }
    let shared = works[1].promise.then { $0 }
    let sum = Promise.all(works.map(\.promise)).then { $0.reduce(0, +) }
    #expect(try await cancelled { _ = try co_await(sum) } == "Oops(enough)")
    #expect(trace.all == ["0", "2"])
    works[1].resumer.resume(1)
    #expect(try await shared.value == 1)
  }

  @Test(.inWorlds) func `a deadline counts as well`() throws {
    let late = Work()
    #expect(outcome { try co_timeout(.milliseconds(1)) { try co_await(late.promise) } } == "TimeoutError")
    #expect(late.isCancelled && worldTime == .milliseconds(1))
  }

  @Test func `a cancelled scope and a wait that never begins count as well`() async throws {
    let (failed, early) = (Work(), Work())
    try await onCoroutine {
      _ = outcome {
        try co_scope { scope in
          let begun = Promise<Void>()
          scope.launch {
            begun.fulfill(())
            _ = try co_await(failed.promise)
          }
          scope.launch {
            // A child that is cancelled before it begins waits for nothing.
            try co_await(begun)
            throw Oops("sibling")
          }
        }
      }
    }
    #expect(failed.isCancelled)
    try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        _ = outcome { try co_await(early.promise) }
      }
      try co_yield()
      job.cancel()
      try? job.join()
    }
    #expect(early.isCancelled)
  }

  @Test func `a shield, a select and a settled promise change nothing`() async throws {
    let (shielded, selected, settled) = (Work(), Work(), Work())
    let queue = taggedQueue("shield")
    let job = co_launch(on: queue) { try co_shield { try co_await(shielded.promise) } }
    try await onBlock(of: queue) {}
    job.cancel()
    shielded.resumer.resume(5)
    #expect(await asyncOutcome { try await job.value } == "5")
    _ = try await cancelled { try co_select { selected.promise.onAwait { _ in } } }
    #expect(!selected.isCancelled && selected.promise.isPending)
    settled.resumer.resume(1)
    let task = Task { try await settled.promise.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "1")
    #expect(!shielded.isCancelled && !settled.isCancelled)
    selected.resumer.resume(0)
  }

  @Test(arguments: Combinator.allCases)
  fileprivate func `a coroutine that waits for several promises leaves each of them`(_ combinator: Combinator)
    async throws
  {
    let trace = Trace()
    let works = (0..<3).map { Work("\($0)", trace) }
    let other = works[2].promise.then { $0 }
    #expect(try await cancelled { try combinator.wait(for: works.map(\.promise)) } == "Oops(enough)")
    #expect(trace.all == ["0", "1"])
    works[2].resumer.resume(1)
    #expect(try await other.value == 1)
  }
}

/// A job is cancelled by a Task that waits for it as the last consumer.
///
/// A coroutine that joins it leaves it alone.
@Suite("The last consumer of a job", .timeLimit(.minutes(10)))
struct LastConsumerOfJobTests {
  @Test func `a cancelled Task leaves a job that others wait for, and throws at once`() async throws {
    let (started, gate) = (Gate(), Gate())
    let job = co_launch {
      started.open()
      try gate.pass()
      return 1
    }
    try await onCoroutine { try started.pass() }
    let queue = taggedQueue("joiner")
    let joiner = co_launch(on: queue) { try job.join() }
    try await onBlock(of: queue) {}
    let tasks = (0..<2).map { _ in Task { try await job.value } }
    for task in tasks { task.cancel() }
    for task in tasks { #expect(await asyncOutcome { try await task.value } == "CancellationError") }
    #expect(!job.isCancelled)
    gate.open()
    #expect(try await joiner.value == 1)
  }

  @Test(arguments: Combinator.allCases)
  fileprivate func `a coroutine that waits for several jobs leaves them running`(_ combinator: Combinator)
    async throws
  {
    let sums = try await onSerialQueue {
      let gate = Gate()
      let jobs = (0..<2).map { index in
        co_launch {
          try gate.pass()
          return index
        }
      }
      let waiter = co_launch { try combinator.wait(for: jobs) }
      try co_yield()
      waiter.cancel(Oops("enough"))
      #expect(outcome { try waiter.join() } == "Oops(enough)")
      #expect(!jobs.contains { $0.isCancelled })
      gate.open()
      return try jobs.map { try $0.join() }
    }
    #expect(sums == [0, 1])
  }

  @Test func `uncancelled leaves the job alone`() async throws {
    let gate = Gate()
    let job = co_launch {
      try gate.pass()
      return 1
    }
    let task = Task { try await job.uncancelled.value }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(!job.isCancelled)
    gate.open()
    #expect(try await job.uncancelled.value == 1)
  }
}
