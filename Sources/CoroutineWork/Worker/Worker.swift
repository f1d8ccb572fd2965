#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials
import Synchronization

// One call of `work`: claims jobs, and runs a coroutine for each.
//
// Coroutines:  the caller's claims; one for each job; two keep leases, or end handlers whose lease ends; one listens.
//              What looks for jobs, rescues and deletes is shared by all workers of the program: Station.swift.
//              Statements go over connections beside the pool's limit, so handlers cannot hold them up.
// Invariants
//  1. `room` has `concurrency` permits. A claim asks for no more jobs than it holds permits, and each job takes one
//     along. It gives the permit back at its end, or when its handler has nothing left to do but to wait for the COMMIT
//     of its finish, or for the report of its end: so the next claim is under way meanwhile.
//     `active` has as many permits. A handler runs with one, until its end has been reported. So no more than
//     `concurrency` handlers run, and a job that was claimed before one of them has ended waits for a COMMIT or a
//     report. If it has to wait for longer, because a handler goes on after its finish, it is given back. It keeps its
//     room until a handler has ended, and nothing is claimed before that, or this worker would claim it again.
//  2. A job is in `held` from before its coroutine is launched until its end is reported, or its lease is lost. What
//     is in `held` is extended.
//  3. If the answer to a claim is lost, also by a cancellation, jobs that have this worker's name and are not in `held`
//     are given back before the next claim, or before the worker ends.
//  4. After the cancellation no statement is waited for longer than half a second, and none begins if the server did
//     not answer before. So a stop ends soon after its limit; what was not reported then runs again after its lease.

final class Worker<Payload: Codable & Sendable>: Sendable {
  typealias Handler = @Sendable (WorkJob<Payload>) throws -> Void

  let core: QueueCore
  let concurrency: Int
  let onEvent: @Sendable (WorkEvent) -> Void
  let onDiscard: WorkJob<Payload>.OnDiscard?
  let handle: Handler
  let link: Link
  let held = Held()
  let name = Program.nextWorker()
  let bell: WakeUps.Bell
  let member: StationMember
  /// How many jobs a claim asks for at most.
  let claiming: BatchSize
  let room: FairSemaphore
  let active: FairSemaphore
  /// The number of jobs that were given back because no handler has ended, and keep their room.
  private let givenBack = Atomic<Int>(0)
  /// The key with a limit of which the last claim has taken a job: the next claim begins behind it.
  private let lastKey = ThreadMutex<String?>(nil)

  init(
    _ core: QueueCore,
    concurrency: Int,
    onEvent: @escaping @Sendable (WorkEvent) -> Void,
    onDiscard: WorkJob<Payload>.OnDiscard?,
    _ handle: @escaping Handler
  ) {
    if concurrency <= 0 {
      misuse("a worker that runs no job at a time would wait for ever; its concurrency is 1 or more")
    }
    self.core = core
    self.concurrency = concurrency
    self.onEvent = onEvent
    self.onDiscard = onDiscard
    self.handle = handle
    link = Link(core, onEvent: onEvent)
    bell = core.wakeUps.addBell()
    member = StationMember(core, bell: bell, link: link)
    claiming = BatchSize(min(concurrency, 1_024))
    // A semaphore counts no further.
    room = FairSemaphore(min(concurrency, .max / 2))
    active = FairSemaphore(min(concurrency, .max / 2))
  }

  /// Works until it is stopped or cancelled.
  ///
  /// Suspends.
  func run() throws {
    defer { core.wakeUps.remove(bell) }
    guard try link.persistUntilStop({ try Tables.check(core.db.reserve, schema: core.schema) }) != nil else { return }
    core.station.join(member)
    defer { core.station.leave(member) }
    try co_scope { helpers in
      let all = [
        helpers.launch(name: "leases of \(core.queue)") { try self.helper { try self.extendLeases() } },
        helpers.launch(name: "ends of leases of \(core.queue)") { try self.helper { try self.cutLeases() } },
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
    let end = member.end
    var cost = Duration.zero
    var backoff = ClaimBackoff()
    while !co_isStopping {
      let hasRoom = try co_select {
        room.onAcquire { true }
        stopping.onAwait { _ in false }
        end.onAwait {
          try $0.get()
          return false
        }
      }
      guard hasRoom, try handlersHaveEnded(stopping) else { return }
      var free = 1
      let most = claiming.count
      // While there are more jobs than room: a claim costs as much as several jobs, so it is not made for one. It waits
      // for half of the room, but not longer than the last claim has taken.
      let half = min(most, concurrency) / 2 - free
      if cost > .zero, half > 0 {
        free += try co_select {
          room.onAcquire(half) { half }
          stopping.onAwait { _ in 0 }
          SelectCase.onTimeout(min(cost, .milliseconds(20))) { 0 }
        }
      }
      while free < most, room.tryAcquire() { free += 1 }
      let batch = JobTable.batch(free)
      room.release(free - batch)
      free = batch
      let begun = ContinuousClock.Instant.steady
      let (claimed, until) = try claim(free)
      let took = ContinuousClock.Instant.steady - begun
      cost = claimed.count == free ? took : .zero
      backoff.claimed(claimed.count, in: took, now: begun + took)
      room.release(free - claimed.count)
      for job in claimed {
        held.add(RunningJob(job.id, fence: job.fence, until: until, room: room, isRoomEarly: isRoomEarly(job)))
      }
      // In a cancelled scope no body runs; what was not begun is given back by `run`.
      try co_checkCancelled()
      for job in claimed { launch(job, in: jobs) }
      if claimed.count < free {
        try co_select {
          bell.onReceive { _ in }
          stopping.onAwait { _ in }
          end.onAwait { try $0.get() }
        }
        let left = backoff.left(at: .steady)
        if left > .zero {
          try co_select {
            stopping.onAwait { _ in }
            end.onAwait { try $0.get() }
            SelectCase.onTimeout(left) {}
          }
        }
      }
    }
  }

  /// Waits while jobs that were given back keep their room; returns false if the worker is asked to stop.
  private func handlersHaveEnded(_ stopping: StopSignal) throws -> Bool {
    while givenBack.load(ordering: .relaxed) > 0 {
      // First come, first served: behind those jobs.
      let isFree = try co_select {
        active.onAcquire { true }
        stopping.onAwait { _ in false }
        member.end.onAwait {
          try $0.get()
          return false
        }
      }
      guard isFree else { return false }
      active.release()
    }
    return true
  }

  private func claim(_ limit: Int) throws -> ([JobTable.Claimed], until: ContinuousClock.Instant) {
    let lease = core.options.usedLease
    var isUnknown = false
    func releaseUnknown() throws {
      let kept = held.all.filter { $0.phase != .ended }
      try core.table.releaseUnknown(worker: name, but: kept.map(\.id), core.db.reserve)
    }
    do {
      let claimed = try link.persistUntilStop(limit: max(.seconds(10), lease)) {
        if isUnknown {
          try co_timeout(.seconds(8), releaseUnknown)
          isUnknown = false
        }
        let until = ContinuousClock.Instant.steady + lease
        isUnknown = true
        let jobs = try claiming.running { most in
          let count = JobTable.batch(min(limit, most))
          // There is no smaller one; but it must be here before its lease ends.
          return try co_timeout(count == 1 ? max(.seconds(8), lease / 2) : .seconds(8)) {
            try claimNext(count, lease)
          }
        }
        isUnknown = false
        return (jobs, until)
      }
      if let claimed { return claimed }
      // Asked to stop while the server does not answer. Without this, jobs of a claim whose answer was lost wait for
      // the end of their leases.
      if isUnknown { co_lastWord(releaseUnknown) }
      return ([], .steady)
    } catch {
      if isUnknown, !link.isOut { co_lastWord(releaseUnknown) }
      room.release(limit)
      throw error
    }
  }

  /// Claims jobs of keys with a limit, and others.
  private func claimNext(_ most: Int, _ lease: Duration) throws -> [JobTable.Claimed] {
    guard let limit = core.options.keyLimit else {
      return try core.table.claim(most, lease: lease, worker: name, core.db.reserve)
    }
    let last = lastKey.withLock { $0 }
    let (jobs, next) = try core.db.reserve.transaction(retries: 3) { t in
      func claim(after last: String?) throws -> (jobs: [JobTable.Claimed], last: String?) {
        try core.table.claim(most, limit: limit, after: last, lease: lease, worker: name, t)
      }
      var found = try claim(after: last)
      // Of keys that have used up their rate there may be more than one claim looks at. The next one goes on behind
      // these, so an idle key is found whatever their number is.
      for _ in 0..<8 where found.jobs.isEmpty && found.last != nil { found = try claim(after: found.last) }
      // Once around: those before the last key.
      return last == nil || !found.jobs.isEmpty || found.last != nil ? found : try claim(after: nil)
    }
    lastKey.withLock { $0 = next }
    // Room is made by the end of a job, which rings, and by time.
    if jobs.count < most, let interval = limit.interval { core.station.expect(after: max(interval, .milliseconds(20))) }
    let left = JobTable.batch(most - jobs.count)
    return left == 0 ? jobs : try jobs + core.table.claim(left, lease: lease, worker: name, core.db.reserve)
  }

  private func launch(_ claimed: JobTable.Claimed, in jobs: Scope) {
    guard let running = held[claimed.id, claimed.fence] else { return }
    let coroutine = jobs.launch(name: "\(core.queue) \(claimed.id)") { [self] in
      defer {
        held.remove(running)
        running.end()
        running.giveRoom()
      }
      guard running.begin(), mayBegin(claimed, running) else { return }
      defer { active.release() }
      // A throw says that the body has not run: then it has the usual stack.
      do { try co_withStack(JSONFormat.stack) { attempt(claimed, running) } } catch { attempt(claimed, running) }
    }
    running.runs(in: coroutine)
  }

  /// Whether the room of a job may go to the next one before its end.
  ///
  /// Not that of a key: the next one of the key cannot be claimed before the COMMIT. Not in a queue with limits, which
  /// count what has been claimed, nor in one with a single attempt, which a program that is killed would have used up.
  private func isRoomEarly(_ claimed: JobTable.Claimed) -> Bool {
    claimed.key == nil && core.options.keyLimit == nil && core.options.attempts > 1
  }

  /// Waits until one handler less runs; returns false if the job has ended instead.
  ///
  /// Suspends. A job that has waited for a second is given back, for other workers. So is one whose worker is asked to
  /// stop; and at once one that has no other attempt, because a program that is killed would have used it up.
  private func mayBegin(_ claimed: JobTable.Claimed, _ running: RunningJob) -> Bool {
    if active.tryAcquire() { return true }
    let stopping = co_stopping
    let limit = claimed.attempt < claimed.attempts ? Duration.seconds(1) : .zero
    do {
      let isMine = try co_select {
        active.onAcquire { true }
        stopping.onAwait { _ in false }
        SelectCase.onTimeout(limit) { false }
      }
      if isMine { return true }
      givenBack.add(1, ordering: .relaxed)
      defer { givenBack.subtract(1, ordering: .relaxed) }
      // An extension that finds it given back does not take that for a loss.
      running.move(to: .finishing)
      report(running, .release)
      running.move(to: .ended)
      held.remove(running)
      core.wake()
      try active.acquire()
      active.release()
    } catch {
      end(claimed, running, nil, error)
    }
    return false
  }

  /// Gives jobs back that were claimed and never begun: the worker was cancelled in between.
  private func returnUnbegun() {
    let jobs = held.all
    guard !jobs.isEmpty else { return }
    let answers = jobs.map { core.station.ends.send(JobEnd(id: $0.id, fence: $0.fence, kind: .release)) }
    for job in jobs { held.remove(job) }
    if !link.isOut { co_lastWord { for answer in answers { _ = try co_await(answer) } } }
  }

  private func listen() throws {
    guard core.options.usesNotifications else { return }
    let notes = try link.persist(unless: { $0.kind == .ended }, { try core.db.listen(core.wakeUps.channel) })
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
// | has not begun, because a large payload could not be read | failed, without `onDiscard` |
// | returns without that | completed, with no effects |
// | throws, whatever it throws | failed; discarded if no attempt is left; lost if the row belongs to somebody else |
// | ends because the worker is cancelled | given back, and the attempt does not count |
// | ends because the lease is lost | none: the row belongs to somebody else |
// | has lost its COMMIT, and the row could not be read | the row is read now: completed, or failed |

extension Worker {
  /// Runs the handler, and reports how it has ended.
  ///
  /// Suspends; throws nothing.
  func attempt(_ claimed: JobTable.Claimed, _ running: RunningJob) {
    let begun = ContinuousClock.Instant.steady
    onEvent(.started(claimed.id, attempt: claimed.attempt))
    var job: WorkJob<Payload>?
    do {
      try co_timeout(core.options.timeout) {
        guard let text = try claimed.payload ?? core.table.payload(of: claimed, core.db) else {
          throw RunningJob.loss(claimed.id)
        }
        let made = WorkJob(
          claimed,
          payload: try decoded(text, of: claimed.id).get() as Payload,
          core: core,
          running: running,
          onDiscard: onDiscard,
          onEvent: onEvent
        )
        job = made
        try handle(made)
      }
      end(claimed, running, job, nil)
    } catch let error as WorkError where job == nil { discard(running, error) } catch {
      end(claimed, running, job, error)
    }
    if running.phase == .completed { onEvent(.finished(claimed.id, ContinuousClock.Instant.steady - begun)) }
    // The next job of the key may run now; this worker has room for it.
    if claimed.key != nil { _ = bell.trySend(()) }
  }

  private func end(
    _ claimed: JobTable.Claimed,
    _ running: RunningJob,
    _ job: WorkJob<Payload>?,
    _ error: (any Error)?
  ) {
    switch running.phase {
    case .completed, .ended, .lost: return
    case .unknown: resolve(claimed, running, job)
    case .held, .finishing:
      guard let error else { return complete(running) }
      // Not judged by the error: the handler may throw one of another job's or of a lease of its own. The row says
      // whether this job was lost.
      if isCancelled {
        running.giveRoomEarly()
        report(running, .release)
        running.move(to: .ended)
        core.wake()
      } else {
        fail(claimed, running, job, error)
      }
    }
  }

  private func complete(_ running: RunningJob) {
    let isDeleted = core.options.keepCompleted <= .zero
    running.giveRoomEarly()
    guard let state = report(running, isDeleted ? .delete : .complete) else { return }
    // The answer of an earlier try may have been lost.
    let isDone =
      state == "completed" || repeating(running) { try core.outcome(running, isDeleted: isDeleted) } == .committed
    if isDone { running.move(to: .completed) } else { lost(running) }
  }

  private func fail(
    _ claimed: JobTable.Claimed,
    _ running: RunningJob,
    _ job: WorkJob<Payload>?,
    _ error: any Error
  ) {
    let delay = core.options.backoff(claimed.attempt)
    let state: String??
    if let onDiscard, let job, claimed.attempt >= claimed.attempts {
      state = giveUp(running, job, error, delay, onDiscard)
    } else {
      running.giveRoomEarly()
      state = report(running, .fail, wait: delay, error: errorText(error))
    }
    if case .some(nil) = state { return lost(running) }
    running.move(to: .ended)
    onEvent(.failed(claimed.id, attempt: claimed.attempt, error))
    switch state ?? nil {
    case "discarded":
      onEvent(.discarded(claimed.id, error))
      core.wake()
    case "retryable", "scheduled": core.station.expect(after: delay)
    default: core.wake()
    }
  }

  /// Gives a job up with the effects of `onDiscard`; if those fail, it runs again.
  ///
  /// Returns what `report` returns.
  private func giveUp(
    _ running: RunningJob,
    _ job: WorkJob<Payload>,
    _ error: any Error,
    _ delay: Duration,
    _ onDiscard: WorkJob<Payload>.OnDiscard
  ) -> String?? {
    // As long as an attempt: the effects are the program's.
    let state: Result<String?, any Error>? = repeating(running, limit: core.options.timeout) {
      do { return .success(try job.giveUp(.fail, error, onDiscard)) } catch let error as PostgresError
        where [.lost, .cannotConnect, .commitUnknown].contains(error.kind)
      {
        // Of an outage; if it was committed after all, the job is not held any more.
        throw error
      } catch {
        try co_checkCancelled()
        return .failure(error)
      }
    }
    switch state {
    case .success(let state): return .some(state)
    case .failure(let other):
      onEvent(.failed(running.id, attempt: job.attempt, other))
      return report(running, .snooze, wait: delay, error: errorText(other))
    case nil: return nil
    }
  }

  private func discard(_ running: RunningJob, _ error: any Error) {
    report(running, .discard, error: errorText(error))
    running.move(to: .ended)
    onEvent(.discarded(running.id, error))
    core.wake()
  }

  /// The COMMIT of a finish was lost, and its outcome was not known to the handler.
  private func resolve(_ claimed: JobTable.Claimed, _ running: RunningJob, _ job: WorkJob<Payload>?) {
    switch repeating(running, { try core.outcome(running, isDeleted: core.options.keepCompleted <= .zero) }) {
    case .committed: running.move(to: .completed)
    case .notCommitted:
      fail(claimed, running, job, PostgresError(.lost, "the connection was lost during COMMIT; nothing was committed"))
    case .lost, .gone, nil: lost(running)
    }
  }

  private func lost(_ running: RunningJob) {
    if running.move(to: .lost) { onEvent(.leaseLost(running.id)) }
  }

  /// Reports the end of an attempt; returns the state that follows, `.some(nil)` if the job was not held any more, or
  /// nil if it is not known.
  ///
  /// Suspends for the server's answer, and repeats what outages have stopped, until the job is lost; if the worker is
  /// cancelled, for half a second more at most.
  @discardableResult
  private func report(_ running: RunningJob, _ kind: JobEnd.Kind, wait: Duration = .zero, error: String = "")
    -> String??
  {
    let end = JobEnd(id: running.id, fence: running.fence, kind: kind, wait: wait, error: error)
    var answer = core.station.ends.send(end)
    return repeating(running) {
      do { return try co_await(answer) } catch {
        // A cancellation of this coroutine, or its deadline, leaves the answer still to come.
        if answer.isSettled { answer = core.station.ends.send(end) }
        throw error
      }
    }
  }

  /// Runs `body` until it returns; nil once the job is lost, the pool is closed, or the worker was cancelled.
  ///
  /// Asks the server. What cannot be told to it runs again when its lease has ended.
  private func repeating<R>(_ running: RunningJob, limit: Duration? = .seconds(5), _ body: () throws -> R) -> R? {
    var pause = Duration.milliseconds(50)
    while running.phase != .lost {
      do {
        let result = try co_timeout(limit, body)
        link.tell(nil)
        return result
      } catch {
        if isCancelled { return link.isOut ? nil : co_shield { try? co_timeout(lastWordLimit, body) } }
        if let error = error as? PostgresError, error.kind == .ended { return nil }
        link.tell(error)
        if (try? co_delay(pause)) == nil { return nil }
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
      let asked = ContinuousClock.Instant.steady
      do {
        let found = try co_timeout(lease / 3) {
          try core.table.extend(jobs.map { ($0.id, $0.fence) }, lease: lease, core.db.reserve)
        }
        let states = Dictionary(found) { first, _ in first }
        for job in jobs {
          if states[job.id] == "running" { job.extend(until: asked + lease) } else { lose(job) }
        }
        link.tell(nil)
        wait = max(lease / 3 - (ContinuousClock.Instant.steady - asked), .milliseconds(10))
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
      let now = ContinuousClock.Instant.steady
      for job in held.all where job.until - lease / 6 < now { lose(job) }
    }
  }

  /// The row says that the job is not this worker's, or was cancelled.
  private func lose(_ job: RunningJob) {
    job.lose(telling: onEvent)
  }
}

/// How long a worker lets its bell ring after claims in vain, as those of a paused queue are, or of one whose jobs
/// other workers have.
///
/// Each job that is added rings. So claims in vain would follow each other without a pause, and each costs the server
/// more than the addition. The time doubles with each of them, and is counted from the end of the claim: a bell that
/// rings later than that has its claim at once.
struct ClaimBackoff {
  private var length = Duration.zero
  private var end = ContinuousClock.Instant.steady

  /// What is left of the time.
  func left(at now: ContinuousClock.Instant) -> Duration { end - now }

  /// Notes a claim that has ended `now`.
  mutating func claimed(_ count: Int, in time: Duration, now: ContinuousClock.Instant) {
    length = count > 0 ? .zero : min(max(time, length * 2), .milliseconds(5))
    end = now + length
  }
}
#endif
