#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

// One call of `work`: claims jobs, and runs a coroutine for each.
//
// Coroutines:  the caller's claims; one for each job; two keep leases, or end handlers whose lease ends; one makes
//              jobs available, rescues and deletes; one listens.
// Invariants
//  1. `room` has `concurrency` permits. A claim asks for no more jobs than it holds permits; each job takes one
//     along, and its coroutine gives it back. So nothing is claimed ahead.
//  2. A job is in `held` from before its coroutine is launched until its end is reported, or its lease is lost. What
//     is in `held` is extended.
//  3. A claim is never cut off by a cancellation: it would leave jobs in the state running that no worker runs. If its
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
  /// Sorted by their numbers, so that two runs treat them in one order.
  var all: [RunningJob] { jobs.withLock { $0.values.sorted { $0.id < $1.id } } }
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

// MARK: - An attempt

// One attempt: the handler, and the report of its end.
//
// | the handler | the report |
// |---|---|
// | has finished, snoozed or discarded | none: the row has changed already |
// | returns without that | completed, with no effects |
// | throws | failed; discarded if no attempt is left |
// | ends because the worker is cancelled | given back, and the attempt does not count |
// | ends because the lease is lost | none: the row belongs to somebody else |
// | has lost its COMMIT, and the row could not be read | the row is read now: completed, or failed |

extension Worker {
  /// Runs the handler, and reports how it has ended.
  ///
  /// Suspends; throws nothing.
  func attempt(_ claimed: JobTable.Claimed, _ running: RunningJob) {
    let begun = ContinuousClock.now
    onEvent(.started(claimed.id, attempt: claimed.attempt))
    switch decoded(claimed.payload, of: claimed.id) as Result<Payload, WorkError> {
    case .failure(let error): discard(running, error)
    case .success(let payload):
      let onEvent = onEvent
      let job = WorkJob(claimed, payload: payload, core: core, running: running) {
        onEvent(.discarded(claimed.id, $0))
      }
      do {
        try co_timeout(core.options.timeout) { try handle(job) }
        end(claimed, running, nil)
      } catch {
        end(claimed, running, error)
      }
    }
    if running.phase == .completed { onEvent(.finished(claimed.id, ContinuousClock.now - begun)) }
    // The next job of the key may run now; this worker has room for it.
    if claimed.key != nil { _ = bell.trySend(()) }
  }

  private func end(_ claimed: JobTable.Claimed, _ running: RunningJob, _ error: (any Error)?) {
    switch running.phase {
    case .completed, .ended, .lost: return
    case .unknown: resolve(claimed, running)
    case .held, .finishing:
      guard let error else { return complete(running) }
      if let refused = error as? PostgresError, refused.kind == .leaseLost {
        lost(running)
      } else if isCancelled {
        report(running) { _ = try core.table.release(running.id, fence: running.fence, core.db) }
        running.move(to: .ended)
        core.wake()
      } else {
        fail(claimed, running, error)
      }
    }
  }

  private func complete(_ running: RunningJob) {
    let isDeleted = core.options.keepCompleted <= .zero
    let done = report(running) {
      try core.table.complete(running.id, fence: running.fence, isDeleted: isDeleted, core.db)
        // The answer of an earlier try may have been lost.
        || core.outcome(running, isDeleted: isDeleted) == .committed
    }
    if done == true { running.move(to: .completed) } else if done == false { lost(running) }
  }

  private func fail(_ claimed: JobTable.Claimed, _ running: RunningJob, _ error: any Error) {
    let delay = core.options.backoff(claimed.attempt)
    let state = report(running) {
      try core.table.fail(running.id, fence: running.fence, delay: delay, error: errorText(error), core.db)
    }
    running.move(to: .ended)
    onEvent(.failed(claimed.id, attempt: claimed.attempt, error))
    switch state {
    case "discarded":
      onEvent(.discarded(claimed.id, error))
      // For those that wait for its answer.
      core.wake()
    case "retryable": _ = dueBell.trySend(())
    default: core.wake()
    }
  }

  private func discard(_ running: RunningJob, _ error: any Error) {
    let text = errorText(error)
    _ = report(running) { try core.table.discard(running.id, fence: running.fence, error: text, core.db) }
    running.move(to: .ended)
    onEvent(.discarded(running.id, error))
    core.wake()
  }

  /// The COMMIT of a finish was lost, and its outcome was not known to the handler.
  private func resolve(_ claimed: JobTable.Claimed, _ running: RunningJob) {
    switch report(running, { try core.outcome(running, isDeleted: core.options.keepCompleted <= .zero) }) {
    case .committed: running.move(to: .completed)
    case .notCommitted:
      fail(claimed, running, PostgresError(.lost, "the connection was lost during COMMIT; nothing was committed"))
    case .lost, .gone, nil: lost(running)
    }
  }

  private func lost(_ running: RunningJob) {
    if running.move(to: .lost) { onEvent(.leaseLost(running.id)) }
  }

  /// Runs `body` until it returns; nil once the job is lost, or 5 s after the worker's cancellation.
  ///
  /// Not cut off by a cancellation: what is not reported runs again when its lease has ended. Asks the server.
  @discardableResult
  func report<R>(_ running: RunningJob, _ body: () throws -> R) -> R? {
    var pause = Duration.milliseconds(50)
    var end: ContinuousClock.Instant?
    while running.phase != .lost {
      if isCancelled {
        end = end ?? ContinuousClock.now + .seconds(5)
        if ContinuousClock.now > end! { return nil }
      }
      do {
        let result = try co_shield { try co_timeout(.seconds(5), body) }
        link.tell(nil)
        return result
      } catch {
        link.tell(error)
        co_shield { _ = try? co_delay(pause) }
        pause = min(pause * 2, .seconds(2))
      }
    }
    return nil
  }

  private var isCancelled: Bool {
    do { try co_checkCancelled() } catch { return true }
    return false
  }
}

// MARK: - Leases

// Leases of jobs. The server's clock says when a lease has ended; this program's steady clock says when it may have.
// A job's `until` is measured from before the claim or the extension was sent, so it is not later than the server's
// end unless the server's clock jumps, and then the fence decides.

extension Worker {
  /// Extends all leases every third of their length.
  ///
  /// Suspends, until cancelled.
  func extendLeases() throws {
    let lease = core.options.usedLease
    var wait = lease / 3
    while true {
      try co_delay(wait)
      let jobs = held.all.filter { $0.phase == .held || $0.phase == .finishing || $0.phase == .unknown }
      guard !jobs.isEmpty else {
        wait = lease / 3
        continue
      }
      let asked = ContinuousClock.now
      do {
        let found = try co_timeout(lease / 3) {
          try core.table.extend(jobs.map { ($0.id, $0.fence) }, lease: lease, core.db)
        }
        let states = Dictionary(found) { first, _ in first }
        for job in jobs {
          if states[job.id] == "running" { job.extend(until: asked + lease) } else { lose(job) }
        }
        link.tell(nil)
        wait = max(lease / 3 - (ContinuousClock.now - asked), .milliseconds(10))
      } catch {
        try co_checkCancelled()
        link.tell(error)
        wait = lease / 20
      }
    }
  }

  /// Cancels handlers whose lease ends within a sixth of its length, because nothing extends it.
  ///
  /// Suspends, until cancelled.
  func cutLeases() throws {
    let lease = core.options.usedLease
    while true {
      try co_delay(lease / 12)
      let now = ContinuousClock.now
      for job in held.all where job.until - lease / 6 < now { lose(job) }
    }
  }

  /// The row says that the job is not this worker's, or was cancelled.
  private func lose(_ job: RunningJob) {
    if job.lose() { onEvent(.leaseLost(job.id)) }
  }

  /// Makes jobs available, rescues those of dead workers, deletes old ones.
  ///
  /// Suspends, until cancelled.
  func tend() throws {
    var nextPrune = ContinuousClock.now
    while true {
      let wait: Duration = try link.persist {
        let changed = try core.table.promote(core.db) + core.table.rescue(core.db)
        if changed > 0 { _ = bell.trySend(()) }
        return try core.table.untilNextDue(core.db) ?? core.options.poll
      }
      if ContinuousClock.now >= nextPrune {
        try prune()
        // Not all programs at once.
        nextPrune = ContinuousClock.now + .seconds(Double.random(in: 30...60))
      }
      try co_select {
        dueBell.onReceive { _ in }
        // A little later than due: the two clocks do not tick at once.
        SelectCase.onTimeout(min(wait + .milliseconds(2), core.options.poll)) {}
      }
    }
  }

  private func prune() throws {
    while try link.persist(limit: .seconds(30), { try core.table.prune(core.options, core.db) }) >= 1_000 {
      try co_delay(.milliseconds(20))
    }
    while try link.persist(limit: .seconds(30), { try core.table.pruneKeys(core.db) }) >= 1_000 {}
  }
}
#endif
