import CLinux
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// One test for each way in which a coroutine of the pool changes its thread (Carrier.swift has the list).
@Suite("A coroutine that keeps its thread", .timeLimit(.minutes(10)))
struct KeptThreadTests {
  @Test func `is passed by a worker that steals, and keeps its place among the others`() {
    let pool = ownWorkers("half", count: 1)
    pool.watching.store(true, ordering: .relaxed)
    let worker = pool.workers[0]
    func taken(_ pattern: String, atLeast minimum: Int) -> [String] {
      let jobs = pattern.map { character in
        let job = Job(
          scheduler: .passUnretained(worker),
          name: String(character),
          stack: .standard,
          launchSite: LaunchSite(file: #fileID, line: #line),
          body: {}
        )
        if character == "k" { job.record.pointee.flags.store(JobFlags.keepsThread, ordering: .relaxed) }
        return job
      }
      let queue = worker.readyQueue
      queue.pointee.queue = JobQueue()
      for job in jobs { queue.pointee.queue.append(job.record) }
      queue.markKept(pattern.contains("k"))
      var stolen = JobQueue()
      queue.takeHalf(atLeast: minimum, into: &stolen)
      let names = [stolen, queue.pointee.queue].map { queue in
        var (names, job) = ("", queue.first)
        while let current = job {
          names += current.handle.takeUnretainedValue().name ?? ""
          if current.pointee.next == nil { #expect(queue.last == current) }
          job = current.pointee.next
        }
        #expect(queue.count == names.count)
        return names
      }
      queue.pointee.queue = JobQueue()
      return withExtendedLifetime(jobs) { names }
    }
    #expect(taken("abcd", atLeast: 2) == ["ab", "cd"])
    #expect(taken("kakb", atLeast: 2) == ["ab", "kk"])
    #expect(taken("akbkck", atLeast: 2) == ["abc", "kkk"])
    #expect(taken("kkk", atLeast: 1) == ["", "kkk"])
    #expect(taken("k", atLeast: 0) == ["", "k"])
    #expect(taken("abkk", atLeast: 2) == ["ab", "kk"])
    #expect(taken("a", atLeast: 2) == ["", "a"])
    // A worker that looks for work gives up where so many are in front that it would keep the lock for long.
    let crowd = String(repeating: "k", count: 129)
    #expect(taken(crowd + "a", atLeast: 2) == ["", crowd + "a"])
    #expect(taken(crowd + "a", atLeast: 1) == ["", crowd + "a"])
    #expect(taken(crowd + "a", atLeast: 0) == ["a", crowd])
  }

  @Test func `is not taken along by the coroutine of another worker that wakes it`() async throws {
    let pool = ownWorkers("waker")
    for _ in 0..<20 {
      let (gate, second) = (Gate(), Gate())
      let job = try await kept(on: pool.workers[0]) {
        try gate.pass()
        try second.pass()
      }
      try await parked(job, on: pool.workers[0])
      try await onCoroutine(on: pool.workers[1].currentQueue) { gate.open() }
      try await onOwnThread { second.open() }
      #expect(try await job.value)
    }
  }

  @Test func `is not taken along with a batch of events of another worker`() async throws {
    let pool = ownWorkers("batch")
    let pipes = (0..<4).map { _ in PipePair.sockets() }
    let watched = try pipes.map { try WatchedDescriptor(dup($0.reader), shortReadMeansEmpty: false) }
    // The worker of the first wait takes the events from then on.
    try await onCoroutine(on: pool.workers[1].currentQueue) { for descriptor in watched { try descriptor.watch() } }
    var jobs: [Job<Bool>] = []
    for descriptor in watched {
      jobs.append(
        try await kept(on: pool.workers[0]) {
          let count = try descriptor.perform(.reading) { number in
            var byte: UInt8 = 0
            let count = read(number, &byte, 1)
            return WatchedDescriptor.Attempt(count < 0 ? -Int64(errno) : Int64(count))
          }
          #expect(count == 1)
        }
      )
    }
    for job in jobs { try await parked(job, on: pool.workers[0]) }
    for pipe in pipes { #expect(pipe.put()) }
    for job in jobs { #expect(try await job.value) }
    for descriptor in watched { _ = descriptor.close() }
  }

  // The watchdog looks at the workers by the real clock.
  @Test(.tags(.realClock), arguments: [1, 2])
  func `is not taken over while another coroutine computes, neither ready, nor in the inbox, nor cancelled`(
    workers: Int
  ) async throws {
    let pool = ownWorkers("computing", count: workers)
    let worker = pool.workers[0]
    let gates = (0..<2).map { _ in Gate() }
    var waiting: [Job<Bool>] = []
    for gate in gates { waiting.append(try await kept(on: worker) { try gate.pass() }) }
    let cancelled = try await kept(on: worker) { _ = outcome { try waitForCancellation() } }
    for job in waiting + [cancelled] { try await parked(job, on: worker) }
    let (isTaken, others) = (Flag(), Flag())
    let hog = co_launch(on: worker.currentQueue) { [waiting] in
      try go(to: worker)
      // In the ready queue, in front of one that may be taken.
      gates[0].open()
      let free = co_launch { isTaken.raise() }
      startThread {
        // In the inbox.
        gates[1].open()
        cancelled.cancel()
        let again = co_launch(on: worker.currentQueue) { others.raise() }
        withExtendedLifetime(again) {}
      }
      while !isTaken.isRaised || !others.isRaised { sched_yield() }
      // Several inspections later.
      RealClock.block(for: .milliseconds(60))
      let ended = waiting.map(\.isFinished) + [cancelled.isFinished]
      try free.join()
      return ended
    }
    #expect(try await hog.value == [false, false, false])
    for job in waiting + [cancelled] { #expect(try await job.value) }
  }

  // The thread of a spare worker ends after a time.
  @Test(.tags(.realClock)) func `keeps the thread of a spare worker alive while it waits`() async throws {
    let pool = ownWorkers("spare thread", count: 1, spareRest: 1_000_000)
    let gate = Gate()
    let job = Locked<Job<Bool>?>(nil)
    let isOver = Flag()
    let hog = co_launch(on: pool.workers[0].currentQueue) {
      job.current = co_launch { try keepsThread { try gate.pass() } }
      while !isOver.isRaised { sched_yield() }
    }
    while job.current.map({ !$0.record.seemsWaiting }) ?? true { await Task.yield() }
    isOver.raise()
    try await hog.value
    // Not by the pool's list, which its watchdog may be changing.
    let spare = try #require(job.current?.currentScheduler)
    #expect(spare !== pool.workers[0])
    // Much longer than the thread of a spare worker rests.
    RealClock.block(for: .milliseconds(50))
    #expect((spare.host as? WorkerHost)?.hasThread == true)
    gate.open()
    #expect(try await job.current?.value == true)
    while (spare.host as? WorkerHost)?.hasThread == true { await Task.yield() }
  }

  @Test func `async code brings it back, wherever that ends`() async throws {
    let pool = ownWorkers("async")
    for _ in 0..<20 {
      let job = try await kept(on: pool.workers[0]) {
        try co_await { await resumedElsewhere() }
        try co_await { try await co_launch(on: pool.workers[1].currentQueue) { try co_yield() }.value }
        try co_awaitToEnd { await Task.yield() }
        _ = try co_blocking { 1 }
      }
      #expect(try await job.value)
    }
  }

  @Test func `does not make idle workers look for it all the time`() async throws {
    let pool = ownWorkers("looking")
    let before = pool.backoffs.load(ordering: .relaxed)
    var jobs: [Job<Bool>] = []
    for _ in 0..<4 {
      jobs.append(
        try await kept(on: pool.workers[0]) {
          while pool.backoffs.load(ordering: .relaxed) == before { try co_yield() }
        }
      )
    }
    for job in jobs { #expect(try await job.value) }
  }

  // A rescuer takes an interrupt out of the inbox of the worker that the job has left.
  @Test(.tags(.realClock)) func `a queue's coroutine, cancelled through its former worker, stays on its queue`()
    async throws
  {
    let pool = ownWorkers("former")
    let worker = pool.workers[0]
    let queue = taggedQueue("queue")
    let isOver = Flag()
    let job = Locked<Job<String?>?>(nil)
    let hog = co_launch(on: worker.currentQueue) {
      try go(to: worker)
      let moved = co_launch(start: .immediate) {
        // Sends an interrupt that stays in the worker's inbox, and that nothing here sees.
        try co_scope { scope in
          let isSent = Flag()
          startThread {
            scope.cancel()
            isSent.raise()
          }
          while !isSent.isRaised { sched_yield() }
        }
        try co_switch(to: queue)
        _ = outcome { try waitForCancellation() }
        return currentTag
      }
      job.current = moved
      while moved.currentScheduler === worker || !moved.record.seemsWaiting { sched_yield() }
      // Its interrupt is already under way, so this sends no other one.
      moved.cancel()
      while !isOver.isRaised { sched_yield() }
    }
    while job.current == nil { await Task.yield() }
    #expect(try await job.current?.value == "queue")
    isOver.raise()
    try await hog.value
  }
}

/// Whether the thread is the same before and after `body`, which waits.
private func keepsThread(_ body: () throws -> Void) throws -> Bool {
  try co_pinned {
    let thread = clinux_thread_id()
    try body()
    return clinux_thread_id() == thread
  }
}

/// Suspends until the running coroutine is on `worker`: another worker may have stolen it.
private func go(to worker: Scheduler) throws {
  while !worker.isRunningHere { try co_switch(to: worker.currentQueue!) }
}

/// Launches `body` in a coroutine that keeps the thread of `worker`; the result says whether it did.
///
/// It runs until it first waits, so that no other worker can have it.
private func kept(on worker: Scheduler, _ body: @escaping @Sendable () throws -> Void) async throws -> Job<Bool> {
  try await onCoroutine(on: worker.currentQueue) {
    try go(to: worker)
    return co_launch(start: .immediate) { try keepsThread(body) }
  }
}

/// Waits until the job is parked, and the worker has switched to something else.
private func parked(_ job: AnyJob, on worker: Scheduler) async throws {
  while !job.record.seemsWaiting { await Task.yield() }
  try await onCoroutine(on: worker.currentQueue) {}
}
