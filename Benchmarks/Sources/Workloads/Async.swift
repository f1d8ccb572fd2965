import Coroutine
import Dispatch
import Driving
import Glibc
import Harness

// Async code called from coroutines, and coroutines awaited by async code, beside what Swift Concurrency needs for it
// in the same process: a Task.immediate, bare and with an executor preference, assumeIsolated, a Task's value; and a
// Task and a semaphore, which code without coroutines needs to call async code or an actor.
// `await_one_suspension_switches` counts voluntary context switches.

func addAsync(to suite: inout Suite) {
  addCalls(to: &suite)
  addAwaited(to: &suite)
}

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 0

  init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }

  func add() { balance += 1 }
}

private func addCalls(to suite: inout Suite) {
  // The three in one process and round for round: with a second thread in the process, each lock costs more.
  suite.figures(
    [
      Figure("await_ready"), Figure("await_ready", owner: "swift"), Figure("await_ready_preferred", owner: "swift"),
    ],
    200_000
  ) { count in
    let ours = try nanoseconds(count) {
      try onQueue { for _ in 0..<count { expect(try co_await { 1 }, equals: 1, "value") } }
    }
    let sum = Counter()
    let bare = nanoseconds(count) { for _ in 0..<count { Task.immediate { _ = sum.increment() } } }
    let executor = WorkerPoolExecutor.shared
    let preferred = nanoseconds(count) {
      for _ in 0..<count { Task.immediate(executorPreference: executor) { _ = sum.increment() } }
    }
    expect(sum.finish(), equals: 2 * count, "Tasks")
    return [ours, bare, preferred]
  }
  suite.row("await_ready", 50_000, owner: "gcd") { count in waitForTasks(count) {} }
  suite.row("await_one_suspension", 50_000, owner: "gcd") { count in waitForTasks(count) { await Task.yield() } }
  suite.row("await_one_suspension", 50_000, owner: "swift") { count in
    try inTask {
      for index in 0..<count {
        let value = await Task {
          await Task.yield()
          return index
        }.value
        expect(value, equals: index, "value")
      }
    }
  }
  addSuspensions("await_one_suspension", to: &suite) { body in try onQueue(body) }
  addSuspensions("await_one_suspension_on_workers", to: &suite) { body in try co_launch(body).blockingWait() }
  suite.row("isolated_own_queue", 1_000_000) { count in
    let queue = DispatchQueue(label: "isolated")
    let ledger = Ledger(on: queue)
    let balance = try co_launch(on: queue) {
      for _ in 0..<count { try co_isolated(ledger) { $0.balance += 1 } }
      return try co_isolated(ledger) { $0.balance }
    }.blockingWait()
    expect(balance, equals: count, "calls")
  }
  suite.row("isolated_own_queue", 1_000_000, owner: "swift") { count in
    let queue = DispatchQueue(label: "assumed")
    let ledger = Ledger(on: queue)
    let balance = try co_launch(on: queue) {
      for _ in 0..<count { ledger.assumeIsolated { $0.balance += 1 } }
      return ledger.assumeIsolated { $0.balance }
    }.blockingWait()
    expect(balance, equals: count, "calls")
  }
  // From a thread that is not the queue's: on it, the semaphore would stop the actor.
  suite.row("isolated_own_queue", 50_000, owner: "gcd") { count in
    let ledger = Ledger(on: DispatchQueue(label: "awaited"))
    waitForTasks(count) { await ledger.add() }
    waitForTasks(1) { expect(await ledger.balance, equals: count, "calls") }
  }
}

/// Adds a row of calls that suspend once, in a coroutine that `launch` runs, and a row of their voluntary context
/// switches.
private func addSuspensions(
  _ name: String,
  to suite: inout Suite,
  launch: @escaping (@escaping @Sendable () throws -> Void) throws -> Void
) {
  suite.figures([Figure(name), Figure("\(name)_switches", unit: "per call")], 100_000) { count in
    let before = voluntarySwitches()
    let start = Clock.wall.now
    try launch {
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
}

/// What code without coroutines needs to call async code: a Task, and a semaphore.
private func waitForTasks(_ count: Int, _ body: @escaping @Sendable () async -> Void) {
  for _ in 0..<count {
    let done = DispatchSemaphore(value: 0)
    Task {
      await body()
      done.signal()
    }
    done.wait()
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
  suite.row("launch_value_immediate", 100_000) { count in
    try inTask {
      for index in 0..<count {
        expect(try await co_launch(start: .immediate) { index }.value, equals: index, "value")
      }
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
  }.blockingWait()
}

private func nanoseconds(_ count: Int, _ body: () throws -> Void) rethrows -> Double {
  let start = Clock.wall.now
  try body()
  return Double(Clock.wall.now - start) / Double(count)
}

private func voluntarySwitches() -> Int {
  var usage = rusage()
  getrusage(Int32(RUSAGE_SELF.rawValue), &usage)
  return usage.ru_nvcsw
}
