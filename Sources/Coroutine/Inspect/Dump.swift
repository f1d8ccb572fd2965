import Synchronization

/// The list of live coroutines.
///
/// The dump first retains all live jobs, a few in each critical section of a scheduler's live lock, which keeps every
/// listed job alive. It then inspects the jobs, and the sources that they wait for, while their owners keep running,
/// and never holds two of their locks at once (Inspection.swift). A line may mix two moments of a running coroutine,
/// never of one that stays parked.
enum Dump {
  /// Held while live jobs are listed: a scheduler remembers the place of one walk.
  private static let listing = ThreadLock()

  static func text(of only: [Scheduler]? = nil) -> String {
    let now = Clock.now
    var jobs: [AnyJob] = []
    var overdue: [String] = []
    let visit: (Scheduler) -> Void = { scheduler in
      scheduler.listLiveJobs(&jobs)
      if let line = overdueTimers(of: scheduler, now) { overdue.append(line) }
    }
    listing.withLock {
      if let only { for scheduler in only { visit(scheduler) } } else { SchedulerRegistry.visitAll(visit) }
    }
    jobs.sort { $0.id < $1.id }
    let found = jobs.map { DumpedJob($0, now: now) }
    let names = found.reduce(into: JobNames()) { $0.add($1.title, of: $1.job.record) }
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    let lines = found.reduce(into: header) { $0 += $1.line(names) + "\n" }
    return overdue.sorted().reduce(into: lines) { $0 += $1 + "\n" }
  }

  /// The timers that have been overdue for a millisecond or more: the scheduler's thread does not reach them.
  private static func overdueTimers(of scheduler: Scheduler, _ now: UInt64) -> String? {
    let due = scheduler.nextTimer.load(ordering: .relaxed)
    let now = scheduler.clock
    guard due < now, now - due >= 1_000_000 else { return nil }
    return "timers overdue by \(DumpedJob.milliseconds(now - due)) on \(scheduler.label)"
  }
}
