internal import CCoroutineInspect

/// The list of live coroutines: one line for each value of a snapshot.
///
/// So a line says what a snapshot says (Snapshot.swift). It may mix two moments of a running coroutine, never
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
    var tasks: [String] = []
    if only == nil {
      SchedulerRegistry.visitAll { scheduler in
        let waiting = scheduler.swiftJobsWaiting
        if waiting > 0 { tasks.append("jobs of Swift Tasks that wait for \(scheduler.label): \(waiting)") }
      }
    }
    return (overdue + circles + tasks.sorted()).reduce(into: header + lines) { $0 += $1 + "\n" }
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

// MARK: - Forms

extension CoroutineRuntime {
  /// The forms of a dump for people.
  public struct DumpDetail: Sendable, Hashable {
    enum Kind { case list, stacks }

    let kind: Kind

    /// One line for each coroutine, as ``CoroutineRuntime/dump()`` returns it.
    public static var list: DumpDetail { DumpDetail(kind: .list) }
    /// Groups of coroutines with equal stacks.
    public static var stacks: DumpDetail { DumpDetail(kind: .stacks) }
  }

  /// Describes every live coroutine, as text for people.
  ///
  /// `.stacks` makes one group of the coroutines that wait in the same call for the same kind of thing, and shows the
  /// largest group first: how many they are, what they wait for, the longest and the median time, where they were
  /// launched, one of them, and the functions on their stacks, the innermost first. What this library itself does there
  /// is left out, except for the call that waits. Circles of coroutines that can never go on come last, as in a list.
  ///
  /// Never suspends; any thread, even while queues are stuck. It stops nothing (``snapshot(stacks:)``). The first call
  /// with `.stacks` reads symbol tables (``frames(at:)``). Names of users, and those of functions, are escaped, so that
  /// none can forge a line.
  public static func dump(_ detail: DumpDetail) -> String {
    switch detail.kind {
    case .list: dump()
    case .stacks: StackDump.text()
    }
  }
}

// MARK: - Groups of equal stacks

/// The dump by stacks: coroutines with equal stacks and equal waits are one group, the largest first.
///
/// Stacks are compared without the runtime's own innermost frames. The switch is inlined in two places, to a ready
/// coroutine and to the driver, so two coroutines that wait in the same call differ there. Waits are equal if their
/// kinds are.
struct StackDump {
  private typealias Entry = CoroutineRuntime.Snapshot.Coroutine

  private struct Key: Hashable {
    let state: Entry.State
    let kind: String?
    let isTorn: Bool
    let frames: [UInt]
  }

  /// A group, without its members: a million coroutines in one group take one number each.
  private struct Group {
    let first: Entry
    var since: [Duration] = []
    var launchSites = Tally()
    var waits = Tally()
    var cancelled = 0

    mutating func add(_ entry: Entry) {
      since.append(entry.since)
      launchSites.add(entry.launchSite)
      if let wait = entry.wait { waits.add(wait.text) }
      if entry.isCancelled { cancelled += 1 }
    }
  }

  /// How often each text occurs, for the first of them.
  private struct Tally {
    private var counts: [String: Int] = [:]
    private var others = 0

    mutating func add(_ text: String) {
      if let count = counts[text] {
        counts[text] = count + 1
      } else if counts.count < 32 {
        counts[text] = 1
      } else {
        others += 1
      }
    }

    /// The most frequent texts, with their counts if there are several.
    var summary: String {
      let sorted = counts.sorted { ($1.value, $0.key) < ($0.value, $1.key) }
      if sorted.count == 1, others == 0 { return sorted[0].key }
      let shown = sorted.prefix(4)
      let rest = sorted.dropFirst(4).reduce(others) { $0 + $1.value }
      let list = shown.map { "\($0.key) (\($0.value))" }.joined(separator: "; ")
      return rest == 0 ? list : "\(list); \(rest) more"
    }
  }

  private var groups: [Key: Group] = [:]
  private var shown: [[UInt]: [Symbols.Named]] = [:]
  private var count = 0

  static func text(of only: [Scheduler]? = nil) -> String {
    var dump = StackDump()
    let late = CoroutineRuntime.visit(stacks: true, of: only) { entry, _ in dump.add(entry) }
    return dump.text(late, Deadlocks.find(of: only).map(\.line))
  }

  private mutating func add(_ entry: Entry) {
    count += 1
    let frames = shownFrames(of: entry.stack).map(\.frame.address)
    let key = Key(state: entry.state, kind: entry.wait?.kind, isTorn: entry.isTorn, frames: frames)
    groups[key, default: Group(first: entry)].add(entry)
  }

  /// The frames of a stack that a report shows: of each run of the runtime's own, only the outermost one, which is the
  /// call that waits, or the step of a generator; and of those that have called the body, none.
  private mutating func shownFrames(of stack: [UInt]) -> [Symbols.Named] {
    if let known = shown[stack] { return known }
    let named = Symbols.named(stack)
    var frames: [Symbols.Named] = []
    var isInRuntime = true
    // From the root inwards.
    for frame in named.reversed() {
      switch frame.owner {
      case .runtime:
        if !isInRuntime { frames.append(frame) }
        isInRuntime = true
      case .standard where isInRuntime: break
      case .standard, .program:
        isInRuntime = false
        frames.append(frame)
      }
    }
    // A stack of the runtime alone, or without names, is shown whole, but for the frame of the switch.
    frames = frames.isEmpty ? Array(named.dropFirst()) : frames.reversed()
    shown[stack] = frames
    return frames
  }

  private func text(_ late: [LateScheduler], _ circles: [String]) -> String {
    var text =
      "\(count) live coroutine\(count == 1 ? "" : "s") in \(groups.count) group\(groups.count == 1 ? "" : "s")\n"
    if let reason = Self.whyWithoutStacks { text += "stacks \(reason)\n" }
    let sorted = groups.sorted { ($1.value.since.count, $0.value.first.id) < ($0.value.since.count, $1.value.first.id) }
    for (key, group) in sorted { text += "\n" + describe(key, group) }
    for single in late { text += "\n" + single.line(keptBy: nil) + "\n" }
    for circle in circles { text += "\n" + circle + "\n" }
    return text
  }

  /// The sentence that explains why no stack was read; nil if stacks can be read.
  private static var whyWithoutStacks: String? {
    let reader = StackReader()
    return reader.status == CCO_WALK_READY ? nil : String(cString: cco_walk_message(reader.status))
  }

  private func describe(_ key: Key, _ group: Group) -> String {
    let (first, times) = (group.first, group.since.sorted())
    let example = "\(first.title) on \(first.scheduler)"
    var text = "\(times.count) \(Self.phrase(key.state))"
    if key.state == .waiting { text += " \(group.waits.summary)" }
    if key.isTorn { text += ", moving too fast to read" }
    let (longest, median) = (times[times.count - 1], times[times.count / 2])
    text +=
      times.count == 1
      ? ", for \(longest.asMilliseconds)" : ", longest \(longest.asMilliseconds), median \(median.asMilliseconds)"
    if group.cancelled > 0 { text += ", \(group.cancelled) cancelled" }
    text += "\n  launched at \(group.launchSites.summary)\n  \(times.count == 1 ? "it is" : "for example") \(example)\n"
    for named in shown[first.stack] ?? [] { text += "    \(named.line)\n" }
    return text
  }

  private static func phrase(_ state: Entry.State) -> String {
    switch state {
    case .notStarted: "not started"
    case .ready: "ready"
    case .running: "running"
    case .waiting: "waiting"
    }
  }
}
