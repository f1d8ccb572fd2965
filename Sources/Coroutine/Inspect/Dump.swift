/// The list of live coroutines: one line for each value of a snapshot.
///
/// So a line says what a snapshot says (Runtime+Snapshot.swift). It may mix two moments of a running coroutine, never
/// of one that stays parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    var (lines, count) = ("", 0)
    var keepers: [String: String] = [:]
    let late = CoroutineRuntime.visit(stacks: false, of: only) { entry, _ in
      lines += entry.line + "\n"
      count += 1
      if entry.state == .running { keepers[entry.scheduler] = entry.title }
    }
    let header = "\(count) live coroutine\(count == 1 ? "" : "s")\n"
    let overdue = late.map { $0.line(keptBy: keepers[$0.label]) }.sorted()
    let circles = Deadlocks.find(of: only).map(\.line)
    return (overdue + circles).reduce(into: header + lines) { $0 += $1 + "\n" }
  }

  /// What keeps the threads of the process, in one line: the running coroutines, in the order of their launches, and
  /// the workers that run jobs of Tasks.
  static func running() -> String {
    var tasks: [String] = []
    let jobs = LiveJobs.list { scheduler in
      if scheduler.runsSwiftJob { tasks.append("a Swift Task's job on \(scheduler.label)") }
    }
    var lines: [String] = []
    // The line is for a person who has pressed Ctrl-C three times. Each job is inspected once: what runs may change
    // meanwhile, and a lazy collection that is counted and then copied ends the process if it has.
    for job in jobs where lines.count < most {
      let inspected = InspectedJob(job)
      if inspected.state == .running { lines.append(SnapshotReader.value(of: inspected).line) }
    }
    lines += tasks.sorted()
    if lines.isEmpty { return "No coroutine runs; \(jobs.count) wait\(jobs.count == 1 ? "s" : "")." }
    return "Running: \(lines.joined(separator: "; "))"
  }

  private static var most: Int { 8 }
}

extension LateScheduler {
  /// The line of a report: what is late, and the coroutine or the Task that runs there.
  func line(keptBy coroutine: String?) -> String {
    let keeper = runsTask ? "a Swift Task's job" : coroutine
    return "timers overdue by \(by.asMilliseconds) on \(label)" + (keeper.map { ", kept by \($0)" } ?? "")
  }
}

extension CoroutineRuntime.Snapshot.Coroutine {
  /// `#7 "fetch" waiting for a lock (…) for 2 ms, cancelled on app.net, launched at Server/main.swift:48`.
  var line: String {
    "\(title) \(stateText)\(isCancelled ? ", cancelled" : "") on \(scheduler), launched at \(launchSite)"
  }

  /// The number, and the name if there is one: `#7 "name"`.
  var title: String { "#\(id)" + (name.map { " \"\($0.asName)\"" } ?? "") }

  /// What it does, and for how long if that is known.
  var stateText: String {
    switch state {
    case .notStarted: "not started" + age("for")
    // A coroutine that was woken has waited for a part of the time.
    case .ready: "ready" + age("for at most")
    case .running: "running" + age("for at most")
    case .waiting: "waiting " + (wait?.text ?? "") + age("for")
    }
  }

  private func age(_ words: String) -> String { since == .zero ? "" : " \(words) \(since.asMilliseconds)" }
}

extension Duration {
  /// The whole milliseconds, as reports show them.
  var asMilliseconds: String { "\(max(0, wholeNanoseconds) / 1_000_000) ms" }
}
