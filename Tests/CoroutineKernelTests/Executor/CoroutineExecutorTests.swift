import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

@Suite("CoroutineExecutor", .timeLimit(.minutes(10)))
struct CoroutineExecutorTests {
  @Test func `two executors of one queue are equal, and one serial executor to Swift`() {
    let queue = taggedQueue("equal")
    let (first, second, other) = (
      CoroutineExecutor(queue), CoroutineExecutor(queue), CoroutineExecutor(taggedQueue("other"))
    )
    #expect(first == second)
    #expect(first != other)
    #expect(first.isSameExclusiveExecutionContext(other: second))
    #expect(!first.isSameExclusiveExecutionContext(other: other))
    let words = [first, second, other].map { unsafeBitCast($0.asUnownedSerialExecutor(), to: (UInt, UInt).self) }
    #expect(words[0] == words[1])
    #expect(words[0].0 != words[2].0)
  }

  @Test func `current is the queue's executor in its coroutines, and nil elsewhere`() async throws {
    let queue = taggedQueue("current")
    #expect(try await onCoroutine(on: queue) { CoroutineExecutor.current == CoroutineExecutor(queue) })
    #expect(try await onCoroutine { CoroutineExecutor.current == nil })
    #expect(CoroutineExecutor.current == nil)
  }

  @Test func `an actor on the queue runs there, and never beside a coroutine`() async throws {
    let queue = taggedQueue("actor")
    let ledger = Ledger(on: queue)
    #expect(await ledger.tag() == "actor")
    let isBusy = Locked(false)
    let overlaps = Locked(0)
    let visit: @Sendable () -> Void = {
      if isBusy.withLock({ exchange(&$0, with: true) }) { overlaps.withLock { $0 += 1 } }
      // Another thread, if there were one, would come in here.
      sched_yield()
      isBusy.withLock { $0 = false }
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<4 {
        group.addTask {
          for _ in 0..<500 { await ledger.add(1, visit) }
        }
        group.addTask {
          try await onCoroutine(on: queue) {
            for _ in 0..<500 {
              ledger.assumeIsolated { $0.add(1, visit) }
              try co_yield()
            }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(overlaps.current == 0)
    #expect(await ledger.balance == 4_000)
  }

  @Test func `isolation is recognised in coroutines and Swift jobs of the queue alone`() async throws {
    let queue = taggedQueue("isolation")
    let executor = CoroutineExecutor(queue)
    #expect(try await onCoroutine(on: queue) { executor.isIsolatingCurrentContext() == true })
    #expect(try await onCoroutine(on: taggedQueue("x")) { executor.isIsolatingCurrentContext() == false })
    #expect(try await onCoroutine { executor.isIsolatingCurrentContext() == false })
    #expect(await Task(executorPreference: executor) { executor.isIsolatingCurrentContext() == true }.value)
    #expect(executor.isIsolatingCurrentContext() == false)
    try await onCoroutine(on: queue) { executor.preconditionIsolated() }
  }

  @Test func `a Task that prefers the executor runs on the queue, and so do its default actors`() async {
    actor Plain {
      func tag() -> String? { currentTag }
    }
    let executor = CoroutineExecutor(taggedQueue("preferred"))
    let plain = Plain()
    let tags = await Task(executorPreference: executor) {
      var tags = [currentTag]
      await Task.yield()
      tags.append(currentTag)
      tags.append(await plain.tag())
      async let child = currentTag
      tags.append(await child)
      await resumedElsewhere()
      tags.append(currentTag)
      return tags
    }.value
    #expect(tags == Array(repeating: "preferred", count: 5))
  }

  @Test func `code of a Swift job is outside any coroutine`() async {
    let executor = CoroutineExecutor(taggedQueue("outside"))
    let seen = await Task(executorPreference: executor) {
      await Task.yield()
      return outcome { try co_yield() }
    }.value
    #expect(seen == "notInCoroutine")
  }

  @Test func `coroutines and Swift jobs that never wait for anything else take turns`() async throws {
    let queue = taggedQueue("fairness")
    let executor = CoroutineExecutor(queue)
    // Neither ends before the other has had its turns.
    let (stop, parts, turns) = (Flag(), Locked(0), Locked(0))
    let task = Task(executorPreference: executor) {
      while !stop.isRaised {
        await Task.yield()
        parts.withLock { $0 += 1 }
      }
    }
    let job = co_launch(on: queue) {
      while !stop.isRaised {
        try co_yield()
        turns.withLock { $0 += 1 }
      }
    }
    for _ in 0..<20 { try await onBlock(of: queue) {} }
    while parts.current <= 20 || turns.current <= 20 { try await onBlock(of: queue) {} }
    stop.raise()
    await task.value
    try await job.value
  }

  @Test func `a job that is enqueued while the scheduler is busy starts no drain`() async throws {
    let host = CountingHost()
    let scheduler = Scheduler(host: host, anchor: nil, pool: nil)
    let own = CoroutineExecutor(scheduler, nil)
    let task = Task(executorPreference: own) {
      for _ in 0..<10 { await Task.yield() }
      return true
    }
    #expect(host.count == 1)
    scheduler.drain()
    #expect(await task.value)
    #expect(host.count == 1)
  }

  @Test func `a job that another thread enqueues while a coroutine runs starts no drain`() async throws {
    let host = CountingHost()
    let scheduler = Scheduler(host: host, anchor: nil, pool: nil)
    let own = CoroutineExecutor(scheduler, nil)
    let task = Promise<Task<Bool, Never>>()
    let job = Job<Int>(
      scheduler: scheduler.forRecord(),
      name: nil,
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line)
    ) {
      let enqueued = DispatchSemaphore(value: 0)
      startThread {
        task.fulfill(Task(executorPreference: own) { own.isIsolatingCurrentContext() == true })
        enqueued.signal()
      }
      // The coroutine keeps the drain until the other thread is done.
      enqueued.wait()
      return host.count
    }
    job.launch(.queued, holding: nil)
    scheduler.drain()
    #expect(try await job.value == 1)
    #expect(try await task.value.value)
    #expect(host.count == 1)
  }

  @Test func `an executor whose queue nobody else holds still runs Tasks on it`() async throws {
    weak var held: DispatchQueue?
    let executor: CoroutineExecutor
    do {
      let queue = taggedQueue("held")
      held = queue
      executor = CoroutineExecutor(queue)
    }
    // A drain holds its queue as well: after the first one has ended, the executor is the only holder.
    for _ in 0..<3 {
      #expect(await Task(executorPreference: executor) { currentTag }.value == "held")
      for _ in 0..<100 { await Task.yield() }
      #expect(held != nil)
    }
    withExtendedLifetime(executor) {}
  }

  @Test func `an executor keeps its queue alive, and lets go of it`() async throws {
    weak var gone: DispatchQueue?
    do {
      let queue = DispatchQueue(label: "coroutine.tests.alive")
      gone = queue
      let ledger = Ledger(on: queue)
      #expect(await ledger.add(1) == 1)
    }
    // A thread of Dispatch lets go of the queue some time after its last block; the suite has a time limit.
    while gone != nil { await Task.yield() }
  }

  @Test func `a coroutine of the main queue is isolated to the main actor`() async throws {
    let isMain = try await onCoroutine(on: .main) {
      try co_yield()
      MainActor.preconditionIsolated()
      return MainActor.assumeIsolated { true }
    }
    #expect(isMain)
    let counter = MainCounter()
    let seen = try await onCoroutine(on: .main) {
      // In a Task the body could not wait.
      try co_isolated(MainActor.shared) { _ in
        try co_yield()
        MainActor.preconditionIsolated()
      }
      return try co_await { await counter.next() }
    }
    #expect(seen == 1)
  }

  @Test func `the worker pool runs the jobs of a Task in parallel`() async throws {
    let tags = await Task(executorPreference: WorkerPoolExecutor.shared) {
      await withTaskGroup(of: Int.self) { group in
        for index in 0..<100 {
          group.addTask {
            await Task.yield()
            return index
          }
        }
        return await group.reduce(0, +)
      }
    }.value
    #expect(tags == 4_950)
    let isOnWorker = await Task(executorPreference: WorkerPoolExecutor.shared) {
      Carrier.current?.pointee.readyQueue?.pointee.workerPool != nil
    }.value
    #expect(isOnWorker)
  }

  @Test func `two Tasks on a pool of two workers run at the same time`() async {
    let pool = ownWorkers("parallel")
    let arrivals = [DispatchSemaphore(value: 0), DispatchSemaphore(value: 0)]
    let tasks = arrivals.indices.map { index in
      Task(executorPreference: pool) {
        // It keeps its worker until the other one has come.
        arrivals[1 - index].signal()
        return synchronously { arrivals[index].wait(timeout: .now() + 120) == .success }
      }
    }
    for task in tasks { #expect(await task.value) }
  }

  @Test func `a Swift job does not wait for a worker that computes`() async throws {
    let pool = ownWorkers("swift-jobs")
    let isDone = Locked(false)
    let scheduler = pool.workers[0]
    let job = Job<Bool>(
      scheduler: scheduler.forRecord(),
      name: nil,
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line)
    ) {
      // Left to this worker, which then does not come to it.
      _ = Task(executorPreference: pool) { isDone.withLock { $0 = true } }
      let end = Clock.now + 120_000_000_000
      while !isDone.current, Clock.now < end { sched_yield() }
      return isDone.current
    }
    job.launch(.queued, holding: nil)
    #expect(try await job.value)
  }
}

@MainActor
private final class MainCounter {
  private var count = 0
  func next() -> Int {
    count += 1
    return count
  }
}

/// Counts the drains that are submitted, and runs none.
private final class CountingHost: Host, @unchecked Sendable {
  // Sound because its only state is atomic.
  private let drains = Atomic<Int>(0)
  var count: Int { drains.load(ordering: .relaxed) }
  init() { super.init(label: "counting", mayPoll: false) }
  /// Time stands still, or a drain could end with its time slice, and submit the next one.
  override var now: UInt64 { 1 }
  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    drains.wrappingAdd(1, ordering: .relaxed)
    return true
  }
}
