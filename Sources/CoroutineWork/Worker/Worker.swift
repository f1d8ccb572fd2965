#if Postgres
import Coroutine
import CoroutinePostgres

// One call of `work`: claims jobs, and runs a coroutine for each.
//
// Coroutines:  the caller's claims; one for each job; two keep leases, or end handlers whose lease ends; one makes
//              jobs available, rescues and deletes; one listens.
// Invariants
//  1. `room` has `concurrency` permits. A claim asks for no more jobs than it holds permits; each job takes one
//     along, and its coroutine gives it back. So nothing is claimed ahead.
//  2. A job is in `held` from before its coroutine is launched until its end is reported, or its lease is lost. What
//     is in `held` is extended.
//  3. A claim is never cut off by a cancellation: it would leave jobs in the state running that nobody runs. If its
//     answer is lost, jobs that have this worker's name and are not in `held` are given back before the next claim.

final class Worker<Payload: Codable & Sendable>: Sendable {
  typealias Handler = @Sendable (WorkJob<Payload>) throws -> Void

  let core: QueueCore
  let concurrency: Int
  let onEvent: @Sendable (WorkEvent) -> Void
  let handle: Handler
  let link: Link
  let held = Held()
  let name = Program.nextWorker()
  let bell: WakeUps.Bell
  /// Rings when a job of this worker waits for its time.
  let dueBell = WakeUps.Bell(.dropOldest(1))
  let room: FairSemaphore

  init(
    _ core: QueueCore,
    concurrency: Int,
    onEvent: @escaping @Sendable (WorkEvent) -> Void,
    _ handle: @escaping Handler
  ) {
    precondition(concurrency > 0, "a worker that runs no job at a time would wait for ever")
    self.core = core
    self.concurrency = concurrency
    self.onEvent = onEvent
    self.handle = handle
    link = Link(core, onEvent: onEvent)
    bell = core.wakeUps.addBell()
    room = FairSemaphore(concurrency)
  }

  /// Works until it is stopped or cancelled.
  ///
  /// Suspends.
  func run() throws {
    defer { core.wakeUps.remove(bell) }
    guard try link.persistUntilStop({ try Tables.version(core.db, schema: core.schema) }) != nil else { return }
    try co_scope { helpers in
      let all = [
        helpers.launch(name: "leases of \(core.queue)") { try self.helper { try self.extendLeases() } },
        helpers.launch(name: "ends of leases of \(core.queue)") { try self.helper { try self.cutLeases() } },
        helpers.launch(name: "states of \(core.queue)") { try self.helper { try self.tend() } },
        helpers.launch(name: "wake-ups of \(core.queue)") { try self.helper { try self.listen() } },
      ]
      defer { for helper in all { helper.cancel() } }
      do {
        try co_scope(failures: .isolated) { jobs in try claimAndLaunch(jobs) }
      } catch {
        returnUnbegun()
        throw error
      }
    }
  }

  /// A helper ends by cancellation, or the worker ends with its error.
  private func helper(_ body: () throws -> Void) throws {
    do { try body() } catch let error as WorkError { throw error } catch { return }
  }

  private func claimAndLaunch(_ jobs: Scope) throws {
    let stopping = co_stopping
    while !co_isStopping {
      let hasRoom = try co_select {
        room.onAcquire { true }
        stopping.onAwait { _ in false }
      }
      guard hasRoom else { return }
      var free = 1
      while free < concurrency, room.tryAcquire() { free += 1 }
      let batch = JobTable.batch(free)
      room.release(free - batch)
      free = batch
      let (claimed, until) = try claim(free)
      room.release(free - claimed.count)
      for job in claimed { held.add(RunningJob(job.id, fence: job.fence, until: until)) }
      // In a cancelled scope no body runs; what was not begun is given back by `run`.
      try co_checkCancelled()
      for job in claimed { launch(job, in: jobs) }
      if claimed.count < free {
        try co_select {
          bell.onReceive { _ in }
          stopping.onAwait { _ in }
          SelectCase.onTimeout(core.options.poll) {}
        }
      }
    }
  }

  private func claim(_ limit: Int) throws -> ([JobTable.Claimed], until: ContinuousClock.Instant) {
    var isUnknown = false
    do {
      let claimed = try link.persistUntilStop {
        if isUnknown {
          try core.table.releaseUnknown(worker: name, but: held.all.map(\.id), core.db)
          isUnknown = false
        }
        let until = ContinuousClock.now + core.options.usedLease
        isUnknown = true
        let jobs = try co_shield {
          try co_timeout(.seconds(8)) {
            try core.table.claim(limit, lease: core.options.usedLease, worker: name, core.db)
          }
        }
        isUnknown = false
        return (jobs, until)
      }
      if let claimed { return claimed }
      // Asked to stop while the server does not answer. Without this, jobs of a claim whose answer was lost wait for
      // the end of their leases.
      if isUnknown {
        _ = try? co_timeout(.seconds(2)) {
          try core.table.releaseUnknown(worker: name, but: held.all.map(\.id), core.db)
        }
      }
      return ([], .now)
    } catch {
      room.release(limit)
      throw error
    }
  }

  private func launch(_ claimed: JobTable.Claimed, in jobs: Scope) {
    guard let running = held[claimed.id, claimed.fence] else { return }
    let coroutine = jobs.launch(name: "\(core.queue) \(claimed.id)") { [self] in
      defer {
        held.remove(running)
        running.end()
        room.release()
      }
      attempt(claimed, running)
    }
    running.runs(in: coroutine)
  }

  /// Gives jobs back that were claimed and never begun: the worker was cancelled in between.
  private func returnUnbegun() {
    for job in held.all {
      held.remove(job)
      report(job) { _ = try core.table.release(job.id, fence: job.fence, core.db) }
    }
  }

  private func listen() throws {
    guard core.options.usesNotifications else { return }
    let notes = try link.persist(unless: .ended) {
      try core.db.listen(core.wakeUps.channel)
    }
    defer { notes.stop() }
    while try notes.receive() != nil { _ = bell.trySend(()) }
  }
}

/// The jobs that a worker holds.
final class Held: Sendable {
  private let jobs = ThreadMutex<[Int64: RunningJob]>([:])
  var all: [RunningJob] { jobs.withLock { Array($0.values) } }
  subscript(id: Int64, fence: Int64) -> RunningJob? {
    jobs.withLock { jobs in jobs[id].flatMap { $0.fence == fence ? $0 : nil } }
  }
  /// A later claim of the same job replaces an earlier one, which was lost.
  func add(_ job: RunningJob) {
    let earlier = jobs.withLock { $0.updateValue(job, forKey: job.id) }
    _ = earlier?.lose()
  }
  func remove(_ job: RunningJob) {
    jobs.withLock { if $0[job.id] === job { $0[job.id] = nil } }
  }
}
#endif
