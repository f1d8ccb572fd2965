import CCoroutine
import Synchronization

// The loop of a world: it gathers, takes the next candidate, and lets it take a step.

extension SimulatedWorld {
  /// Runs `body` in a coroutine, and all coroutines that it launches, on the calling thread, until none is left.
  ///
  /// Called once.
  package func run<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    cco_guard_thread()
    let outer = (carrier: cco_thread().pointee.carrier, locals: cco_thread().pointee.locals)
    cco_worlds_changed(1)
    defer {
      cco_worlds_changed(-1)
      cco_thread().pointee.carrier = outer.carrier
      cco_thread().pointee.locals = outer.locals
    }
    let pool = executor(of: nil)
    mount(pool)
    let job = Job(
      scheduler: pool.scheduler.forRecord(),
      name: "body",
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line),
      body: body
    )
    job.launch(.queued, holding: nil)
    // The body has inherited the caller's bindings; handlers and Swift jobs do not see them, as in a drain.
    cco_thread().pointee.locals = nil
    var failure: (any Error)?
    do {
      try drive(until: { job.completion.known.isSettled })
      settleLeftovers()
      if case .success = job.completion.seenOutcome(as: Success.self), hasLive {
        failure = policy.leftRunning(dump)
      }
    } catch {
      failure = error
    }
    if isTraced { endDump = dump }
    close()
    if failure == nil, job.completion.known.isSettled,
      case .failure(let error) = job.completion.seenOutcome(as: Success.self)
    {
      throw finding ?? error
    }
    if let failure = finding ?? failure { throw failure }
    return try job.completion.get(as: Success.self)
  }

  /// Takes steps until the body has ended.
  private func drive(until isOver: () -> Bool) throws {
    while !isOver() {
      gather()
      if let candidate = takeNext() {
        perform(candidate)
        if steps - stepsBefore > mostSteps { throw policy.overLimit(nil, dump) }
      } else if !wakeSettled() && !waitOutside() {
        if let due = nextTimer, due - Self.start > timeLimit { throw policy.overLimit(timeLimit, dump) }
        if !passTime() { throw waitsForTask ?? policy.deadlock(dump) }
        stepsBefore = steps
      }
    }
  }

  /// Removes and returns the next candidate.
  ///
  /// It is the one that was chosen at the last point; without a point, the policy chooses it now.
  func takeNext() -> Candidate? {
    if case .interrupted(let candidate, let next) = step {
      step = .idle(previous: candidate)
      return next
    }
    if candidates.isEmpty { return nil }
    if candidates.count == 1 || isEnding { return candidates.remove(at: 0) }
    let previous = step.candidate?.id ?? 0
    let index = candidates.withWindow { policy.chooseNext($0, continues: false, previous: previous) }
    return candidates.remove(at: index)
  }

  /// Takes one step.
  func perform(_ chosen: Candidate) {
    let executor = chosen.executor
    mount(executor)
    steps += 1
    var candidate = chosen
    if let arrival = candidate.arrival {
      arrivals -= 1
      executor.carrier.pointee.job = nil
      guard let job = executor.scheduler.arrive(arrival) else { return executor.ended(chosen, &candidates) }
      candidate = Candidate(.job(job), id: job.pointee.label.id, executor, isHead: chosen.isHead)
    }
    step = .running(Run(candidate))
    executor.carrier.pointee.now = now
    // Dumps read this.
    executor.scheduler.lastClockRead.store(now, ordering: .relaxed)
    footprints?.begin(candidate)
    defer { endStep() }
    guard let job = candidate.job else {
      executor.carrier.pointee.job = nil
      candidate.run()
      executor.ended(candidate, &candidates)
      if isTraced { policy.stepEnded(SimulatedStep(candidate, now: elapsed)) }
      return
    }
    if job.hold.deferWake() { return executor.ended(candidate, &candidates) }
    // Every wait begins with a decrement of this number, and calls the host (`reachesPoint`) if it is below zero.
    executor.carrier.pointee.waitsLeft = 0
    executor.carrier.pointee.grant(0)
    let traced = isTraced ? job.handle.takeUnretainedValue() : nil
    executor.scheduler.resumeInWorld(job, executor.carrier)
    // It may have let others of its queue overtake it.
    executor.ended(step.candidate ?? candidate, &candidates)
    if let traced { policy.stepEnded(SimulatedStep(traced, isInterrupted: step.hasInterrupted(job), now: elapsed)) }
  }
}
