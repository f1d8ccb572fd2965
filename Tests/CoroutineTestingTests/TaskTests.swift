import Coroutine
import CoroutineTesting
import Dispatch
import Glibc
import Testing

/// Tests of Tasks that the coroutines of a world start by co_await.
@Suite(.timeLimit(.minutes(10)))
struct TaskTests {
  @Test func `a Task's parts run on the world's thread, also after it was suspended`() throws {
    let thread = pthread_self()
    let seen = try World().run {
      try co_await {
        let job = co_launch { () throws -> Int in
          try co_delay(.seconds(3600))
          return 7
        }
        let value = try await job.value
        return (value, pthread_self())
      }
    }
    #expect(seen.0 == 7)
    #expect(seen.1 == thread)
  }

  @Test func `Tasks of coroutines on queues and on the pool share a default actor, in every schedule`() throws {
    let queue = DispatchQueue(label: "own")
    let found = explore(.exhaustive()) {
      let account = Purse()
      let jobs = [nil, queue].map { queue in
        queue.map { co_launch(on: $0) { try co_await { await account.add(1) } } }
          ?? co_launch { try co_await { await account.add(1) } }
      }
      for job in jobs { try job.join() }
      guard try co_await({ await account.sum }) == 2 else { throw LostUpdate() }
    }
    #expect(found.failure == nil)
    #expect(found.runs > 3)
  }

  @Test func `a check before a Task's wait and an act after it is found`() throws {
    let found = explore(.exhaustive()) {
      let account = Purse()
      let jobs = (0..<2).map { _ in
        co_launch {
          try co_await {
            let seen = await account.sum
            try await co_launch { try co_yield() }.value
            await account.set(seen + 1)
          }
        }
      }
      for job in jobs { try job.join() }
      guard try co_await({ await account.sum }) == 2 else { throw LostUpdate() }
    }
    #expect(found.failure?.error is LostUpdate)
  }

  @Test func `a Task that sleeps really is a real wait, and the coroutine is named`() {
    let error = #expect(throws: World.RealWaitError.self) {
      try World().run {
        let job = co_launch(name: "caller") { try co_await { try await Task.sleep(for: .seconds(3600)) } }
        try job.join()
      }
    }
    #expect(error?.wait.contains("\"caller\"") == true)
    #expect(error?.wait.contains("TaskTests.swift") == true)
  }

  @Test func `a Task that a real thread resumes while others run is a real wait`() {
    // A Task that is resumed before it is suspended does not wait.
    let isSuspended = DispatchSemaphore(value: 0)
    let isResumed = DispatchSemaphore(value: 0)
    #expect(throws: World.RealWaitError.self) {
      try World().run {
        let job = co_launch {
          try co_await {
            await withCheckedContinuation { continuation in
              DispatchQueue.global().async {
                isSuspended.wait()
                continuation.resume()
                isResumed.signal()
              }
            }
          }
        }
        try co_yield()
        isSuspended.signal()
        isResumed.wait()
        try job.join()
      }
    }
  }

  @Test func `a declared wait for a Task may be real`() async throws {
    try await onOwnThread {
      let seen = try World().run {
        try World.outside {
          try co_await {
            try await Task.sleep(for: .milliseconds(1))
            return 2
          }
        }
      }
      #expect(seen == 2)
    }
  }

  @Test func `a declared wait for a callback may be real, and one that a coroutine makes need not be declared`()
    async throws
  {
    try await onOwnThread {
      let seen = try World().run {
        let real = try World.outside {
          try co_suspend { (done: Resumer<Int>) in DispatchQueue(label: "real").async { done.resume(1) } }
        }
        return try co_suspend { (done: Resumer<Int>) in
          co_launch {
            try co_delay(.seconds(1))
            done.resume(real + 1)
          }
        }
      }
      #expect(seen == 2)
    }
  }

  @Test func `a wait for a stop that never comes is a deadlock`() {
    #expect(throws: World.DeadlockError.self) {
      try World().run { try co_scope { scope in _ = try scope.launch { try co_await(co_stopping) }.join() } }
    }
  }

  @Test func `an actor on a queue outside of the world is a real wait`() {
    let ledger = Ledger(on: DispatchQueue(label: "outside"))
    #expect(throws: World.RealWaitError.self) { try World().run { try co_isolated(ledger) { $0.sum += 1 } } }
    #expect(throws: Never.self) {
      try World().run {
        let inside = Ledger(on: DispatchQueue(label: "inside"))
        try co_isolated(inside) { $0.sum += 1 }
      }
    }
  }

  @Test func `an executor that outlives its world runs Tasks elsewhere`() async throws {
    let executor = Cell<CoroutineExecutor?>(nil)
    try await onOwnThread {
      try World().run { executor.value = CoroutineExecutor(DispatchQueue(label: "inside")) }
    }
    let ledger = Ledger(on: try #require(executor.value))
    #expect(await Task(executorPreference: executor.value) { 5 }.value == 5)
    await ledger.add(7)
    #expect(await ledger.sum == 7)
  }

  @Test func `a Task that outlives its world ends elsewhere`() async throws {
    let gate = AsyncStream<Int>.makeStream()
    let end = AsyncStream<Int>.makeStream()
    try await onOwnThread {
      try World().run {
        let job = co_launch {
          try co_await {
            for await number in gate.stream {
              end.continuation.yield(number)
              break
            }
            // Not cancelled in the loop: the stream ends at a cancellation.
            await withCheckedContinuation { continuation in
              DispatchQueue.global().async { continuation.resume() }
            }
            end.continuation.yield(5)
            end.continuation.finish()
          }
        }
        try co_yield()
        job.cancel()
        #expect(throws: CancellationError.self) { try job.join() }
      }
    }
    var numbers: [Int] = []
    for await number in end.stream { numbers.append(number) }
    #expect(numbers == [5])
  }
}

private actor Purse {
  private(set) var sum = 0

  func add(_ amount: Int) { sum += amount }
  func set(_ amount: Int) { sum = amount }
}

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var sum = 0
  func add(_ amount: Int) { sum += amount }

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
  init(on executor: CoroutineExecutor) { self.executor = executor }
}

private struct LostUpdate: Error {}
