import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

@Suite("A pool whose workers are all blocked", .timeLimit(.minutes(10)))
struct SpareWorkerTests {
  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock)) func `runs the coroutines that wait behind them`() async throws {
    let pool = ownWorkers("all blocked")
    try await whileBlocked(pool) {
      var jobs: [Job<Int>] = []
      for index in 0..<100 {
        jobs.append(
          co_launch(on: pool.workers[index % 2].currentQueue) {
            for _ in 0..<3 { try co_yield() }
            try co_delay(.milliseconds(1))
            return index
          }
        )
      }
      for (index, job) in jobs.enumerated() { try await expect(job, index) }
    }
  }

  @Test func `wakes the coroutines that were parked there before`() async throws {
    let pool = ownWorkers("parked before")
    let gate = Promise<Int>()
    let parked = (0..<10).map { index in
      co_launch(on: pool.workers[index % 2].currentQueue) { try co_await(gate) + index }
    }
    try await whileBlocked(pool) {
      gate.fulfill(100)
      for (index, job) in parked.enumerated() { try await expect(job, 100 + index) }
    }
  }

  @Test func `runs the handlers that are bound to them`() async throws {
    let pool = ownWorkers("handlers")
    let source = Promise<Int>()
    let ran = Promise<Int>()
    try await onCoroutine(on: pool.workers[0].currentQueue) {
      _ = source.tap { _ in ran.fulfill(7) }
    }
    try await whileBlocked(pool) {
      source.fulfill(1)
      let value = try await onCoroutine { try co_await(ran) }
      #expect(value == 7)
    }
  }

  @Test func `runs Swift jobs, and coroutines that call async code, and keeps task-locals`() async throws {
    let pool = ownWorkers("swift jobs")
    try await whileBlocked(pool) {
      let task = Task(executorPreference: pool) {
        await Task.yield()
        return Carrier.current?.pointee.readyQueue?.pointee.workerPool != nil
      }
      let isOnWorker = await task.value
      #expect(isOnWorker)
      let job = Request.$name.withValue("seen") {
        co_launch(on: pool.workers[0].currentQueue) {
          try co_await {
            await Task.yield()
            return Request.name == "seen" ? 1 : 0
          } + (Request.name == "seen" ? 1 : 0)
        }
      }
      try await expect(job, 2)
    }
    #expect(!pool.spares.isEmpty)
  }

  @Test func `has help again and again`() async throws {
    let pool = ownWorkers("again", count: 1)
    for _ in 0..<3 {
      try await whileBlocked(pool) {
        try await onCoroutine(on: pool.workers[0].currentQueue) { try co_yield() }
      }
    }
  }

  // Asked here in place of the watchdog: that adds one more if the first waits for a processor for as long as a stall.
  @Test func `uses a spare worker that has no work, before it gets another`() throws {
    let pool = ownWorkers("reused", count: 1)
    pool.watching.store(true, ordering: .relaxed)
    let spare = try #require(pool.spareWorker())
    for _ in 0..<3 { #expect(pool.spareWorker() === spare) }
    #expect(pool.spares.count == 1)
  }

  // Looked at here in place of the watchdog, so that no clock decides what goes on.
  @Test func `gives further work to spare workers that go on, where as many go on as there are workers`() throws {
    let pool = ownWorkers("lively", count: 2)
    pool.watching.store(true, ordering: .relaxed)
    for count in 1...2 {
      let spare = try #require(pool.spareWorker())
      #expect(pool.spares.count == count)
      // As if it had a message, and ran.
      let hasWoken = spare.inbox.wakeUp()
      #expect(hasWoken)
    }
    // Each has read its clock since the look before, which there was none of.
    _ = pool.inspectAll()
    #expect(pool.spareWorker() === pool.spares[0] && pool.spares.count == 2)
    // None has.
    _ = pool.inspectAll()
    let third = try #require(pool.spareWorker())
    #expect(third === pool.spares[2])
  }

  @Test func `has 64 spare workers at most`() async throws {
    let pool = ownWorkers("limit", count: 1)
    pool.watching.store(true, ordering: .relaxed)
    let release = DispatchSemaphore(value: 0)
    var jobs: [Job<Void>] = []
    for _ in 0..<64 {
      let spare = try #require(pool.spareWorker())
      jobs.append(co_launch(on: spare.currentQueue) { release.wait() })
    }
    #expect(pool.spares.count == 64)
    #expect(pool.spareWorker() == nil)
    for _ in jobs { release.signal() }
    for job in jobs { try await job.value }
    while !pool.spares.contains(where: { $0.inbox.isIdle }) { await Task.yield() }
    #expect(pool.spareWorker() != nil)
    #expect(pool.spares.count == 64)
  }

  @Test func `blocked spare workers are helped by further ones`() async throws {
    let pool = ownWorkers("spares", count: 1)
    let release = DispatchSemaphore(value: 0)
    let blocked = Locked(0)
    let jobs = (0..<4).map { _ in
      co_launch(on: pool.workers[0].currentQueue) {
        blocked.withLock { $0 += 1 }
        release.wait()
      }
    }
    while blocked.current < 4 { await Task.yield() }
    for _ in jobs { release.signal() }
    for job in jobs { try await job.value }
    #expect(pool.spares.count >= 3)
  }

  // A thread sleeps, and the watchdog looks at the workers, by the real clock.
  @Test(.tags(.realClock)) func `ends the threads of spare workers without work, and starts them again`() async throws {
    let pool = ownWorkers("ended threads", count: 1, spareRest: 1_000_000)
    for round in 0..<3 {
      let gate = Promise<Int>()
      var parked: [Job<Int>] = []
      try await whileBlocked(pool) {
        let isThere = Arrivals()
        for _ in 0..<3 {
          parked.append(
            co_launch(on: pool.workers[0].currentQueue) {
              isThere.arrive()
              return try co_await(gate)
            }
          )
        }
        try await isThere.wait(for: 3)
      }
      // The list belongs to the watchdog while it watches.
      while pool.watching.load(ordering: .acquiring) { await Task.yield() }
      #expect(!pool.spares.isEmpty)
      // Nobody waits in a thread of theirs, not even the coroutines that are parked there.
      while pool.spares.contains(where: { ($0.host as? WorkerHost)?.hasThread ?? false }) { await Task.yield() }
      gate.fulfill(round)
      for job in parked { try await expect(job, round) }
    }
  }

  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock)) func `is reported to the handler, with the name of the coroutine, once a stall`() async {
    await #expect(processExitsWith: .success) {
      let reports = Locked<[CoroutineRuntime.Stall]>([])
      CoroutineRuntime.onStall(after: .milliseconds(20)) { stall in reports.withLock { $0.append(stall) } }
      let isDone = Flag()
      let job = co_launch(name: "greedy") { while !isDone.isRaised { sched_yield() } }
      while reports.current.isEmpty { sched_yield() }
      // The watchdog looks again, and says nothing of the same stall.
      RealClock.block(for: .milliseconds(100))
      isDone.raise()
      try await job.value
      let found = reports.current
      let isRight =
        found.count == 1 && found[0].coroutine?.contains("greedy") == true && !found[0].isTask
        && found[0].duration >= .milliseconds(20)
        && found[0].description.contains("co_blocking")
      exit(isRight ? 0 : 1)
    }
  }

  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock)) func `is reported after 100 ms, unless another time is chosen`() async {
    await #expect(processExitsWith: .success) {
      let reports = Locked<[CoroutineRuntime.Stall]>([])
      CoroutineRuntime.onStall(after: .milliseconds(1)) { _ in }
      CoroutineRuntime.onStall { stall in reports.withLock { $0.append(stall) } }
      #expect(CoroutineRuntime.Stall.threshold == 100_000_000)
      try await co_launch { while reports.current.isEmpty { sched_yield() } }.value
      #expect(reports.current[0].duration >= .milliseconds(100))
    }
  }

  @Test(.tags(.realClock)) func `is reported to nobody after the handler was removed, and is helped nevertheless`()
    async
  {
    await #expect(processExitsWith: .success) {
      let reports = Locked(0)
      CoroutineRuntime.onStall(after: .milliseconds(1)) { _ in reports.withLock { $0 += 1 } }
      CoroutineRuntime.onStall(after: .milliseconds(1), nil)
      let pool = ownWorkers("silent", count: 1)
      try await whileBlocked(pool) {
        // Each is behind a coroutine that has stalled a worker.
        for _ in 0..<3 { try await onCoroutine(on: pool.workers[0].currentQueue) {} }
      }
      #expect(!pool.spares.isEmpty)
      #expect(reports.current == 0)
    }
  }

  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock)) func `is reported if a Task's job keeps a worker, and what waits behind it runs`() async {
    await #expect(processExitsWith: .success) {
      let reports = Locked<[CoroutineRuntime.Stall]>([])
      CoroutineRuntime.onStall(after: .milliseconds(20)) { stall in reports.withLock { $0.append(stall) } }
      let pool = ownWorkers("Task", count: 1)
      let worker = pool.workers[0]
      let isDone = Flag()
      let task = Task(executorPreference: pool) { while !isDone.isRaised { sched_yield() } }
      while !reports.current.contains(where: { $0.worker == worker.label }) { sched_yield() }
      let behind = await Task(executorPreference: pool) { 1 }.value
      let launched = try await onCoroutine(on: worker.currentQueue) { 2 }
      // The watchdog looks again, and says nothing of the same stall.
      RealClock.block(for: .milliseconds(100))
      isDone.raise()
      await task.value
      let found = reports.current.filter { $0.worker == worker.label }
      let isRight =
        behind + launched == 3 && found.count == 1 && found[0].isTask && found[0].coroutine == nil
        && found[0].duration >= .milliseconds(20) && found[0].description.contains(#/^Swift Task \d+'s job has kept /#)
      exit(isRight ? 0 : 1)
    }
  }
}

private enum Request {
  @TaskLocal static var name = ""
}

private func expect(_ job: Job<Int>, _ wanted: Int) async throws {
  let value = try await job.value
  #expect(value == wanted)
}

/// Runs `body` while a coroutine blocks the thread of each worker of `pool`.
private func whileBlocked(_ pool: WorkerPool, _ body: () async throws -> Void) async throws {
  let release = DispatchSemaphore(value: 0)
  let blocked = Locked(0)
  let jobs = pool.workers.map { worker in
    co_launch(on: worker.currentQueue) {
      blocked.withLock { $0 += 1 }
      release.wait()
    }
  }
  while blocked.current < jobs.count { await Task.yield() }
  try await body()
  for _ in jobs { release.signal() }
  for job in jobs { try await job.value }
}
