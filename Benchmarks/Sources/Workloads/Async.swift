import Coroutine
import Dispatch
import Driving
import Glibc
import Harness

// Async code called from coroutines, and coroutines awaited by async code, beside what Swift Concurrency needs for it
// in the same process: a bare Task.immediate, assumeIsolated, a Task's value; and a Task and a semaphore, which code
// without coroutines needs to call async code. `await_one_suspension_switches` counts voluntary context switches.

func addAsync(to suite: inout Suite) {
  addCalls(to: &suite)
  addAwaited(to: &suite)
}

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 0

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
}

private func addCalls(to suite: inout Suite) {
  suite.row("await_ready", 200_000) { count in
    try onQueue { for _ in 0..<count { expect(try co_await { 1 }, equals: 1, "value") } }
  }
  suite.row("await_ready", 200_000, owner: "swift") { count in
    let sum = Counter()
    for _ in 0..<count { Task.immediate { _ = sum.increment() } }
    expect(sum.finish(), equals: count, "Tasks")
  }
  suite.row("await_one_suspension", 50_000, owner: "gcd") { count in
    for _ in 0..<count {
      let done = DispatchSemaphore(value: 0)
      Task { done.signal() }
      done.wait()
    }
  }
  suite.figures(
    [Figure("await_one_suspension"), Figure("await_one_suspension_switches", unit: "per call")],
    100_000
  ) { count in
    let before = voluntarySwitches()
    let start = Clock.wall.now
    try onQueue {
      for _ in 0..<count {
        let value = try co_await {
          await Task.yield()
          return 1
        }
        expect(value, equals: 1, "value")
      }
    }
    let took = Double(Clock.wall.now - start) / Double(count)
    return [took, Double(voluntarySwitches() - before) / Double(count)]
  }
  suite.row("isolated_own_queue", 1_000_000) { count in
    let queue = DispatchQueue(label: "isolated")
    let ledger = Ledger(on: queue)
    let balance = try co_launch(on: queue) {
      for _ in 0..<count { try co_isolated(ledger) { $0.balance += 1 } }
      return try co_isolated(ledger) { $0.balance }
    }.wait()
    expect(balance, equals: count, "calls")
  }
  suite.row("isolated_own_queue", 1_000_000, owner: "swift") { count in
    let queue = DispatchQueue(label: "assumed")
    let ledger = Ledger(on: queue)
    let balance = try co_launch(on: queue) {
      for _ in 0..<count { ledger.assumeIsolated { $0.balance += 1 } }
      return ledger.assumeIsolated { $0.balance }
    }.wait()
    expect(balance, equals: count, "calls")
  }
}

private func addAwaited(to suite: inout Suite) {
  suite.row("launch_value", 100_000) { count in
    try inTask {
      for index in 0..<count { expect(try await co_launch { index }.value, equals: index, "value") }
    }
  }
  suite.row("launch_value_on_workers", 100_000) { count in
    try inTask(preferring: WorkerPoolExecutor.shared) {
      for index in 0..<count { expect(try await co_launch { index }.value, equals: index, "value") }
    }
  }
  suite.row("launch_value", 100_000, owner: "swift") { count in
    try inTask {
      for index in 0..<count { expect(await Task { index }.value, equals: index, "value") }
    }
  }
}

/// Runs async code from this thread, on Swift's threads unless `executor` is another, and waits for it.
private func inTask(
  preferring executor: (any TaskExecutor)? = nil,
  _ body: @escaping @Sendable () async throws -> Void
) throws {
  try co_launch {
    try co_await { try await Task.detached(executorPreference: executor) { try await body() }.value }
  }.wait()
}

private func voluntarySwitches() -> Int {
  var usage = rusage()
  getrusage(Int32(RUSAGE_SELF.rawValue), &usage)
  return usage.ru_nvcsw
}
