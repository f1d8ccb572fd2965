import Synchronization

/// The live jobs of some schedulers, which are retained, in the order of their launches.
///
/// Every snapshot begins with this walk. It retains all live jobs, a few in each critical section of a
/// scheduler's live lock. So each listed job stays alive, and neither launches nor ends wait for long.
enum LiveJobs {
  /// Held while live jobs are listed: a scheduler remembers the place of one walk.
  static let listing = ThreadLock()

  /// Returns the live jobs of `only`, and calls `visit` with each scheduler; without `only`, see `visitAll`.
  static func list(of only: [Scheduler]? = nil, _ visit: (Scheduler) -> Void = { _ in }) -> [AnyJob] {
    var jobs: [AnyJob] = []
    var isSorted = true
    func list(_ scheduler: Scheduler) {
      scheduler.listLiveJobs(&jobs)
      visit(scheduler)
    }
    listing.withLock {
      if let only { for scheduler in only { list(scheduler) } } else { visitAll(list) }
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

extension LiveJobs {
  /// Calls `body` with the schedulers of the process, or, in a simulated world, with those of that world.
  ///
  /// Not with those of other worlds: a reference that is held from outside changes when an object of theirs is
  /// released, and so the run.
  private static func visitAll(_ body: (Scheduler) -> Void) {
    let isInWorld = isInWorld
    SchedulerRegistry.visitAll { scheduler in
      guard scheduler.host.controlsOrder == isInWorld, !isInWorld || scheduler.host.isCurrent(scheduler) else { return }
      body(scheduler)
    }
  }

  /// Whether the caller is a coroutine or a handler of a simulated world.
  static var isInWorld: Bool {
    Carrier.current?.callerScheduler?._withUnsafeGuaranteedRef { $0.host.controlsOrder } ?? false
  }

  /// Returns the live jobs for which `isWanted` is true, in no order: those of `only`; without that, see `visitAll`.
  ///
  /// `isWanted` is called under the lock of a scheduler's live list.
  static func list(of only: [Scheduler]?, where isWanted: (JobRef) -> Bool) -> [AnyJob] {
    var jobs: [AnyJob] = []
    listing.withLock {
      if let only { return only.forEach { $0.listLiveJobs(&jobs, where: isWanted) } }
      visitAll { $0.listLiveJobs(&jobs, where: isWanted) }
    }
    return jobs
  }
}

/// A scheduler whose thread has not reached its first timer for a millisecond or more: what runs there keeps it.
struct LateScheduler {
  let label: String
  let by: Duration
  /// Whether a job of a Task runs there.
  let runsTask: Bool

  /// Nil if the scheduler is not late.
  init?(_ scheduler: Scheduler) {
    let due = scheduler.nextTimer.load(ordering: .relaxed)
    let now = scheduler.clock
    guard due < now, now - due >= 1_000_000 else { return nil }
    label = scheduler.label
    by = .nanoseconds(Int64(clamping: now - due))
    runsTask = scheduler.runsSwiftJob
  }
}
