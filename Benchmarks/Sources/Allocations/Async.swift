import Coroutine
import Dispatch
import Glibc
import Harness
import Synchronization

// What Swift's jobs cost on a queue's scheduler, and what a call of async code does.

private actor Ledger {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  var balance = 0

  init(_ executor: CoroutineExecutor) { self.executor = executor }

  /// Waits `count` times; each time the rest runs as a turn of this actor.
  func wait(_ count: Int, in waiting: Waiting) async {
    for _ in 0..<count {
      await withUnsafeContinuation { waiting.leave($0) }
      balance += 1
    }
    expect(balance, equals: count, "turns")
  }
}

/// Where a Task leaves its continuation for a coroutine to take, from any two threads.
private final class Waiting: Sendable {
  private let continuation = Mutex<UnsafeContinuation<Void, Never>?>(nil)
  let hasEnded = Atomic(false)

  func leave(_ continuation: UnsafeContinuation<Void, Never>) { self.continuation.withLock { $0 = continuation } }
  var isEmpty: Bool { continuation.withLock { $0 == nil } }
  func take() -> UnsafeContinuation<Void, Never>? { continuation.withLock { $0.take() } }
}

func countAsync(into counts: inout Counts) throws {
  try countJobs("executor_job", into: &counts, pause: co_yield, on: { CoroutineExecutor.current })
  // The coroutine keeps its turn, because each new turn of a queue makes a block for Dispatch.
  let other = DispatchQueue(label: "other")
  let busy = co_launch(on: other) { while true { try co_yield() } }
  try countJobs("executor_job_other_queue", into: &counts, pause: spin, on: { CoroutineExecutor(other) })
  busy.cancel()
  try countJobs("executor_job_workers", into: &counts, pause: spin, on: { WorkerPoolExecutor.shared })
  // With the preference, since Swift 6.3 leaves the actor for the wait itself, and comes back for the turn.
  let own = { CoroutineExecutor.current }
  try countWaits("executor_job_serial", into: &counts, pause: co_yield, on: own) { count, waiting in
    guard let executor = CoroutineExecutor.current else { return {} }
    let ledger = Ledger(executor)
    return { await ledger.wait(count, in: waiting) }
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

/// Waits for another thread without a turn for anything else on this queue.
private func spin() { sched_yield() }

/// Counts what a resumed Task allocates: it waits on `executor`, and a coroutine resumes it. (`Task.yield` makes a job
/// each time.)
private func countJobs(
  _ name: String,
  into counts: inout Counts,
  pause: @escaping () throws -> Void,
  on executor: @escaping () -> (any TaskExecutor)?
) throws {
  try countWaits(name, into: &counts, pause: pause, on: executor) { count, waiting in
    { for _ in 0..<count { await withUnsafeContinuation { waiting.leave($0) } } }
  }
}

/// The same of a Task that runs what `waits` returns: it waits a number of times.
private func countWaits(
  _ name: String,
  into counts: inout Counts,
  pause: @escaping () throws -> Void,
  on executor: @escaping () -> (any TaskExecutor)? = { nil },
  waits: @escaping (Int, Waiting) -> @Sendable () async -> Void
) throws {
  try counts.countWithin(name, 1000) { count in
    let waiting = Waiting()
    let body = waits(count, waiting)
    Task(executorPreference: executor()) {
      await body()
      waiting.hasEnded.store(true, ordering: .releasing)
    }
    // What the Task allocates before it first waits is not counted.
    while waiting.isEmpty { try pause() }
    return {
      while !waiting.hasEnded.load(ordering: .acquiring) {
        if let continuation = waiting.take() { continuation.resume() } else { try pause() }
      }
    }
  }
}
