import Synchronization

/// The list of live coroutines.
///
/// Under each scheduler's live lock, which keeps every listed job alive, the dump only takes references. It then looks at the
/// jobs, and at what they wait for, while their owners go on, and holds no lock over another (Inspection.swift). A line may mix
/// two moments of a coroutine that runs, never of one that stays parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    let now = Clock.now
    var jobs: [AnyJob] = []
    var overdue: [String] = []
    let visit: (Scheduler) -> Void = { scheduler in
      scheduler.liveLock.lock()
      var job = scheduler.firstLive
      while let current = job {
        jobs.append(current.handle.takeUnretainedValue())
        job = current.pointee.nextLive
      }
      scheduler.liveLock.unlock()
      if let line = overdueTimers(of: scheduler, now) { overdue.append(line) }
    }
    if let only { for scheduler in only { visit(scheduler) } } else { SchedulerRegistry.visitAll(visit) }
    jobs.sort { $0.id < $1.id }
    let found = jobs.map { DumpedJob($0, now: now) }
    let names = found.reduce(into: JobNames()) { $0.add($1.title, of: $1.job.record) }
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    let lines = found.reduce(into: header) { $0 += $1.line(names) + "\n" }
    return overdue.sorted().reduce(into: lines) { $0 += $1 + "\n" }
  }

  /// Timers that the scheduler should have looked at a millisecond ago or more: its thread does not get to them.
  private static func overdueTimers(of scheduler: Scheduler, _ now: UInt64) -> String? {
    let due = scheduler.nextTimer.load(ordering: .relaxed)
    let now = scheduler.clock
    guard due < now, now - due >= 1_000_000 else { return nil }
    return "timers overdue by \(DumpedJob.milliseconds(now - due)) on \(scheduler.label)"
  }
}
