#if Postgres
import Coroutine
import CoroutinePostgres

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
