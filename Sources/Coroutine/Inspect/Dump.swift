/// The list of live coroutines.
///
/// The dump first retains all live jobs (LiveJobs.swift). It then inspects the jobs, and the sources that they wait
/// for, while their owners keep running, and never holds two of their locks at once (Inspection.swift). A line may mix
/// two moments of a running coroutine, never of one that stays parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    let now = Clock.now
    var overdue: [String] = []
    let jobs = LiveJobs.list(of: only) { scheduler in
      guard let late = scheduler.lateness else { return }
      overdue.append("timers overdue by \(DumpedJob.milliseconds(late)) on \(scheduler.label)")
    }
    let found = jobs.map { DumpedJob($0, now: now) }
    let names = JobNames(jobs)
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    let lines = found.reduce(into: header) { $0 += $1.line(names) + "\n" }
    return overdue.sorted().reduce(into: lines) { $0 += $1 + "\n" }
  }

  /// What keeps the threads of the process, in one line: the running coroutines, in the order of their launches, and
  /// the workers that run jobs of Tasks.
  static func running() -> String {
    let now = Clock.now
    var tasks: [String] = []
    let jobs = LiveJobs.list { scheduler in
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
}
