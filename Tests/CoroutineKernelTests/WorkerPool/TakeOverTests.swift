import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// The tests inspect the workers, and send requests, in place of the watchdog, which they keep from starting.
@Suite("A take-over", .timeLimit(.minutes(10)))
struct TakeOverTests {
  @Test func `is asked for only once a job comes that can be taken`() async throws {
    let pool = unwatchedWorkers("in vain", count: 2)
    let (stuck, other) = (pool.workers[0], pool.workers[1])
    let (over, isReady, isSent) = (DispatchSemaphore(value: 0), Gate(), Gate())
    // Both keep their thread. One becomes ready on the worker, the other one is sent to its inbox.
    let kept = [try await parkedJob(keeping: stuck, isReady), try await parkedJob(keeping: stuck, isSent)]
    let blocking = try await block(on: stuck, until: over) { isReady.open() }
    blocking.cancel()
    stuck.sendTimerWakeup()
    isSent.open()
    while !other.inbox.isIdle { await Task.yield() }
    let lastDrain = other.lastClockRead.load(ordering: .relaxed)
    for _ in 0..<100 { _ = pool.inspectAll() }
    #expect(other.inbox.isIdle && other.lastClockRead.load(ordering: .relaxed) == lastDrain)

    // Where the other worker is slow to begin, a spare worker is asked as well.
    let sent = co_launch(on: stuck.currentQueue) { !stuck.isRunningHere }
    await inspect(pool, until: sent)
    over.signal()
    #expect(try await sent.value)
    try? await blocking.value
    for job in kept { try await job.value }
  }

  // A worker that is blocked counts as stalled after 100 ms.
  @Test(.tags(.realClock)) func `is asked of no spare worker while nothing can be taken`() async throws {
    let pool = unwatchedWorkers("no spare", count: 1)
    let over = DispatchSemaphore(value: 0)
    let blocking = try await block(on: pool.workers[0], until: over)
    blocking.cancel()
    while !pool.inspectAll() { await Task.yield() }
    for _ in 0..<100 { _ = pool.inspectAll() }
    #expect(pool.spares.isEmpty)

    let sent = co_launch(on: pool.workers[0].currentQueue) { Carrier.current != nil }
    await inspect(pool, until: sent)
    #expect(!pool.spares.isEmpty)
    over.signal()
    #expect(try await sent.value)
    try? await blocking.value
  }

  @Test func `lets a job run that a handler waits for, and that is queued behind a request`()
    async throws
  {
    try await whileAHandlerWaits("behind a request") { workers, launch in
      workers[0].askToTakeOver(from: workers[1])
      launch()
      workers[2].askToTakeOver(from: workers[0])
    }
  }

  @Test func `carries out a second request that a handler waits for`() async throws {
    try await whileAHandlerWaits("second request") { workers, launch in
      launch()
      let areSent = DispatchSemaphore(value: 0)
      let busy = try await block(on: workers[2], until: areSent)
      workers[2].askToTakeOver(from: workers[1])
      workers[2].askToTakeOver(from: workers[0])
      areSent.signal()
      try await busy.value
    }
  }

  @Test func `is asked of a different worker for each stuck one, while enough are idle`() {
    let pool = unwatchedWorkers("for each", count: 2)
    var asked: UInt64 = 0
    #expect((0..<3).map { _ in pool.helper(&asked)?.workerIndex } == [0, 1, 0])
  }

  @Test func `does not change the order of an actor's jobs that the worker enqueues meanwhile`() async throws {
    let worker = unwatchedWorkers("Swift jobs", count: 1).workers[0]
    let ledger = Ledger(on: worker.currentQueue!)
    let (isFirstSent, areTaken, isSecondSent) = (Flag(), Flag(), Flag())
    let job = co_launch(on: worker.currentQueue) {
      worker.sendTimerWakeup()
      note(1, in: ledger)
      isFirstSent.raise()
      while !areTaken.isRaised { sched_yield() }
      note(2, in: ledger)
      isSecondSent.raise()
    }
    // A rescuer that has the messages in its hands, and keeps none.
    try await onOwnThread {
      while !isFirstSent.isRaised { sched_yield() }
      let taken = worker.asWorker {
        worker.inbox.takeOut(from: $0) { _ in
          areTaken.raise()
          while !isSecondSent.isRaised { sched_yield() }
          return false
        }
      }
      if taken.mustStart { worker.submit() }
    }
    try await job.value
    while await ledger.notes.count < 2 { await Task.yield() }
    #expect(await ledger.notes == [1, 2])
  }
}

/// Enqueues a job of the actor from the carrier of its scheduler.
private func note(_ number: Int, in ledger: Ledger) {
  ledger.assumeIsolated { ledger in
    _ = Task { ledger.note(number) }
  }
}

/// Worker 1 is blocked, and a handler of it waits for a job in the inbox of worker 0, which is blocked as well.
///
/// `send` launches that job, and makes worker 2 take over from both. The handler blocks worker 2, and worker 3 takes
/// over from that one.
private func whileAHandlerWaits(
  _ label: String,
  _ send: ([Scheduler], _ launch: () -> Void) async throws -> Void
) async throws {
  let workers = unwatchedWorkers(label, count: 4).workers
  let (over, hasBegun, hasRun) = (DispatchSemaphore(value: 0), Flag(), Flag())
  let (source, wasSeen) = (Promise<Int>(), Promise<Bool>())
  let first = try await block(on: workers[0], until: over)
  let second = try await block(on: workers[1], until: over) {
    _ = source.tap { _ in
      hasBegun.raise()
      let end = Clock.now + 300_000_000_000
      while !hasRun.isRaised, Clock.now < end { sched_yield() }
      wasSeen.fulfill(hasRun.isRaised)
    }
  }
  source.fulfill(1)
  try await send(workers) { co_launch(on: workers[0].currentQueue) { hasRun.raise() } }
  while !hasBegun.isRaised { await Task.yield() }
  workers[3].askToTakeOver(from: workers[2])
  #expect(try await onCoroutine { try co_await(wasSeen) }, "it ran only when the handler had given up")
  over.signal()
  for job in [first, second] { try await job.value }
}

/// A pool whose watchdog does not start.
private func unwatchedWorkers(_ label: String, count: Int) -> WorkerPool {
  let pool = ownWorkers(label, count: count)
  pool.watching.store(true, ordering: .relaxed)
  return pool
}

/// Launches a job that blocks the thread of `worker` until the semaphore is signalled once, and waits until it runs.
private func block(
  on worker: Scheduler,
  until over: DispatchSemaphore,
  _ first: @escaping @Sendable () -> Void = {}
) async throws -> Job<Void> {
  let hasBegun = Flag()
  let job = co_launch(on: worker.currentQueue) {
    while !worker.isRunningHere { try co_switch(to: worker.currentQueue!) }
    first()
    hasBegun.raise()
    over.wait()
    over.signal()
  }
  while !hasBegun.isRaised { await Task.yield() }
  return job
}

/// Launches a job that keeps the thread of `worker`, and waits until it is parked at the gate.
private func parkedJob(keeping worker: Scheduler, _ gate: Gate) async throws -> Job<Void> {
  let job = try await onCoroutine(on: worker.currentQueue) {
    while !worker.isRunningHere { try co_switch(to: worker.currentQueue!) }
    return co_launch(start: .immediate) { try co_pinned { try gate.pass() } }
  }
  while !job.record.seemsWaiting || !worker.inbox.isIdle { await Task.yield() }
  return job
}

/// Inspects the workers until the job has ended, or for five minutes: beside other tests a yield may take seconds.
private func inspect(_ pool: WorkerPool, until job: Job<Bool>) async {
  let end = Clock.now + 300_000_000_000
  while !job.completion.isSettled, Clock.now < end {
    _ = pool.inspectAll()
    await Task.yield()
  }
}
