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
    var overdue: [String] = []
    let jobs = liveJobs(of: only) { scheduler in
      if let line = overdueTimers(of: scheduler, now) { overdue.append(line) }
    }
    let found = jobs.map { DumpedJob($0, now: now) }
    let names = found.reduce(into: JobNames()) { $0.add($1.title, of: $1.job.record) }
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    let lines = found.reduce(into: header) { $0 += $1.line(names) + "\n" }
    return overdue.sorted().reduce(into: lines) { $0 += $1 + "\n" }
  }

  /// What keeps the threads of the process, in one line: the running coroutines, in the order of their launches, and
  /// the workers that run jobs of Tasks.
  static func running() -> String {
    let now = Clock.now
    var tasks: [String] = []
    let jobs = liveJobs(of: nil) { scheduler in
      if scheduler.runsSwiftJob { tasks.append("a Swift Task's job on \(scheduler.label)") }
    }
    let names = JobNames()
    var lines: [String] = []
    // The line is for a person who has pressed Ctrl-C three times. Each job is inspected once: what runs may change
    // meanwhile, and a lazy collection that is counted and then copied ends the process if it has.
    for job in jobs where lines.count < most {
      let dumped = DumpedJob(job, now: now)
      if dumped.isRunning { lines.append(dumped.line(names)) }
    }
    lines += tasks.sorted()
    if lines.isEmpty { return "No coroutine runs; \(jobs.count) wait\(jobs.count == 1 ? "s" : "")." }
    return "Running: \(lines.joined(separator: "; "))"
  }

  private static var most: Int { 8 }

  /// All live jobs in the order of their launches; calls `visit` with every scheduler.
  private static func liveJobs(of only: [Scheduler]?, _ visit: (Scheduler) -> Void) -> [AnyJob] {
    var jobs: [AnyJob] = []
    func list(_ scheduler: Scheduler) {
      scheduler.listLiveJobs(&jobs)
      visit(scheduler)
    }
    listing.withLock {
      if let only { for scheduler in only { list(scheduler) } } else { SchedulerRegistry.visitAll(list) }
    }
    return jobs.sorted { $0.id < $1.id }
  }

  /// The timers that have been overdue for a millisecond or more: the scheduler's thread does not reach them.
  private static func overdueTimers(of scheduler: Scheduler, _ now: UInt64) -> String? {
    let due = scheduler.nextTimer.load(ordering: .relaxed)
    let now = scheduler.clock
    guard due < now, now - due >= 1_000_000 else { return nil }
    return "timers overdue by \(DumpedJob.milliseconds(now - due)) on \(scheduler.label)"
  }
}
