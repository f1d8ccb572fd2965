import Coroutine
import Dispatch
import Harness

// What Swift's jobs cost on a queue's scheduler, and what a call of async code does.

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 0

  init(_ executor: CoroutineExecutor) { self.executor = executor }
}

private final class Waiting: @unchecked Sendable {
  // Sound because the coroutine and the Task take turns on one queue.
  var continuation: UnsafeContinuation<Void, Never>?
}

func countAsync(into counts: inout Counts) throws {
  // A Task on the queue's executor waits, and a coroutine resumes it. (`Task.yield` makes a job each time.)
  try counts.countWithin("executor_job", 1000) { count in
    let waiting = Waiting()
    let ended = Tally()
    Task(executorPreference: CoroutineExecutor.current) {
      for _ in 0..<count { await withUnsafeContinuation { waiting.continuation = $0 } }
      ended.add(1)
    }
    return {
      while ended.value == 0 {
        if let continuation = waiting.continuation.take() { continuation.resume() }
        try co_yield()
      }
    }
  }
  try counts.countWithin("isolated_own_queue", 1000) { count in
    guard let executor = CoroutineExecutor.current else { return {} }
    let ledger = Ledger(executor)
    return { for _ in 0..<count { try co_isolated(ledger) { $0.balance += 1 } } }
  }
  try counts.count("await_ready", 1000) { count in
    for _ in 0..<count { expect(try co_await { 1 }, equals: 1, "value") }
  }
  try counts.count("await_one_suspension", 1000) { count in
    for _ in 0..<count {
      let value = try co_await {
        await Task.yield()
        return 1
      }
      expect(value, equals: 1, "value")
    }
  }
}
