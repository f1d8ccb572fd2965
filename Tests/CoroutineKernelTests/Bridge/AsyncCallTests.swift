import Dispatch
import Glibc
import Testing

@testable import Coroutine

private final class Buffer {
  var bytes: [Int] = []
}

/// A default actor: it prefers no executor of its own.
private actor Free {
  func tag() -> String? { currentTag }
}

private actor Elsewhere {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
  func tag() -> String? { currentTag }
}

@Suite("co_await of async code", .timeLimit(.minutes(10)))
struct AsyncCallTests {
  @Test func `code that is ready at once leaves neither the thread nor the coroutine's turn`() async throws {
    let seen = try await onSerialQueue {
      let other = Trace()
      _ = co_launch { other("ran") }
      let thread = pthread_self()
      let isSame = try co_await { pthread_equal(pthread_self(), thread) != 0 }
      return (isSame, other.all)
    }
    #expect(seen.0)
    #expect(seen.1.isEmpty)
  }

  @Test func `after a suspension the code continues on the coroutine's queue`() async throws {
    let tags = try await onCoroutine(on: taggedQueue("continues")) {
      try co_await {
        await Task.yield()
        let first = currentTag
        await resumedElsewhere()
        return [first, currentTag]
      }
    }
    #expect(tags == ["continues", "continues"])
  }

  @Test func `only an actor with another executor changes the queue, and the code comes back after it`() async throws {
    let elsewhere = Elsewhere(on: taggedQueue("b"))
    let tags = try await onCoroutine(on: taggedQueue("a")) {
      try co_await {
        let free = await Free().tag()
        let before = currentTag
        let there = await elsewhere.tag()
        return [free, before, there, currentTag]
      }
    }
    #expect(tags == ["a", "a", "b", "a"])
  }

  @Test func `on the worker pool the code continues on a worker`() async throws {
    let isOnWorker = try await onCoroutine {
      try co_await {
        await resumedElsewhere()
        return Carrier.current?.pointee.readyQueue?.pointee.workerPool != nil
      }
    }
    #expect(isOnWorker)
  }

  @Test func `the Task has the priority of the queue`() async throws {
    let priorities: [(DispatchQoS, TaskPriority)] = [
      (.userInitiated, .userInitiated), (.utility, .utility), (.background, .background),
    ]
    for (qos, priority) in priorities {
      let queue = DispatchQueue(label: "coroutine.tests.qos", qos: qos)
      let seen = try await onCoroutine(on: queue) { try co_await { Task.currentPriority } }
      #expect(seen == priority)
    }
  }

  @Test func `cancellation leaves at once and cancels the Task, which ends later`() async throws {
    let (started, go, ended) = (Gate(), Gate(), Gate())
    let isCancelled = Locked(false)
    let job = co_launch(on: taggedQueue("left")) {
      try co_await {
        started.open()
        await withTaskCancellationHandler {
          _ = try? await co_launch { try go.pass() }.value
        } onCancel: {
          isCancelled.withLock { $0 = true }
        }
        ended.open()
      }
    }
    try await onCoroutine { try started.pass() }
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    go.open()
    try await onCoroutine { try ended.pass() }
    #expect(isCancelled.current)
  }

  @Test func `to the end, it waits for a Task although cancelled, and gives its value`() async throws {
    for queue in [taggedQueue("to-end"), nil] {
      let started = Gate()
      let job = co_launch(on: queue) {
        let buffer = Buffer()
        var count = 0
        try co_awaitToEnd {
          buffer.bytes.append(1)
          await Task.yield()
          started.open()
          while !Task.isCancelled { await Task.yield() }
          await resumedElsewhere()
          count += 1
          buffer.bytes.append(2)
        }
        return buffer.bytes + [count]
      }
      try await onCoroutine { try started.pass() }
      job.cancel()
      #expect(try await job.value == [1, 2, 1])
    }
  }

  @Test func `to the end, a value need not be Sendable, and an error comes out`() async throws {
    let seen = try await onSerialQueue {
      let buffer = try co_awaitToEnd {
        await Task.yield()
        let buffer = Buffer()
        buffer.bytes = [7]
        return buffer
      }
      return "\(buffer.bytes) \(outcome { try co_awaitToEnd { throw Oops("async") } })"
    }
    #expect(seen == "[7] Oops(async)")
  }

  @Test func `a coroutine that is cancelled before does not start the Task`() async throws {
    let ran = Locked(false)
    let job = co_launch(start: .lazy) {
      let seen = outcome { try co_await { ran.withLock { $0 = true } } }
      return seen
    }
    job.cancel()
    _ = await asyncOutcome { try await job.value }
    #expect(!ran.current)
  }

  @Test func `many calls at once on one queue each get their own value`() async throws {
    let queue = taggedQueue("crowd")
    let jobs = (0..<200).map { index in
      co_launch(on: index.isMultiple(of: 2) ? queue : nil) {
        try co_await {
          for _ in 0..<(index % 5) { await Task.yield() }
          return try await co_launch(on: queue) { index }.value
        }
      }
    }
    for (index, job) in jobs.enumerated() { #expect(try await job.value == index) }
  }
}
