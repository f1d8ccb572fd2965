/// The list of live coroutines.
///
/// The dump first retains all live jobs (LiveJobs.swift). It then inspects the jobs, and the sources that they wait
/// for, while their owners keep running, and never holds two of their locks at once (Inspection.swift). A line may mix
/// two moments of a running coroutine, never of one that stays parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    let now = Clock.now
    var late: [(scheduler: Scheduler, by: UInt64)] = []
    let jobs = LiveJobs.list(of: only) { scheduler in if let by = scheduler.lateness { late.append((scheduler, by)) } }
    let found = jobs.map { DumpedJob($0, now: now) }
    let names = JobNames(jobs)
    let overdue = late.map { "timers overdue by \(DumpedJob.milliseconds($1)) on \($0.label)\(keeper(of: $0, found))" }
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    let lines = found.reduce(into: header) { $0 += $1.line(names) + "\n" }
    let circles = Deadlocks.find(of: only).map(\.line)
    let stacks = StackUses.list(of: only).map(StackUses.line)
    return (overdue.sorted() + circles + stacks).reduce(into: lines) { $0 += $1 + "\n" }
  }

  /// Who keeps a scheduler from its timers, in words: the coroutine that runs there, or a Task.
  private static func keeper(of scheduler: Scheduler, _ found: [DumpedJob]) -> String {
    if scheduler.runsSwiftJob { return ", kept by a Swift Task's job" }
    let keeper = found.first { $0.isRunning && $0.job.currentScheduler === scheduler }
    return keeper.map { ", kept by \(JobNames.title(of: $0.job))" } ?? ""
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
