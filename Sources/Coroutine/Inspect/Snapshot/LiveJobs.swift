import Synchronization

/// The live jobs of some schedulers, which are retained, in the order of their launches.
///
/// Every dump and every snapshot begins with this walk. It retains all live jobs, a few in each critical section of a
/// scheduler's live lock. So each listed job stays alive, and neither launches nor ends wait for long.
enum LiveJobs {
  /// Held while live jobs are listed: a scheduler remembers the place of one walk.
  static let listing = ThreadLock()

  /// Returns the live jobs of `only`, or of all schedulers, and calls `visit` with each scheduler.
  static func list(of only: [Scheduler]? = nil, _ visit: (Scheduler) -> Void = { _ in }) -> [AnyJob] {
    var jobs: [AnyJob] = []
    var isSorted = true
    func list(_ scheduler: Scheduler) {
      scheduler.listLiveJobs(&jobs)
      visit(scheduler)
    }
    listing.withLock {
      if let only { for scheduler in only { list(scheduler) } } else { SchedulerRegistry.visitAll(list) }
    }
    // A list begins with the latest job, so the jobs of one scheduler are sorted already when they are reversed.
    jobs.reverse()
    for index in jobs.indices.dropFirst() where jobs[index - 1].id > jobs[index].id {
      isSorted = false
      break
    }
    return isSorted ? jobs : jobs.sorted { $0.id < $1.id }
  }
}

extension Scheduler {
  /// How late the scheduler is with its first timer; nil below a millisecond.
  ///
  /// Its thread does not reach it: the coroutine that runs there keeps it.
  var lateness: UInt64? {
    let due = nextTimer.load(ordering: .relaxed)
    let now = clock
    return due < now && now - due >= 1_000_000 ? now - due : nil
  }
}
