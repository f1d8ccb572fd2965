internal import CCoroutineInspect

/// The list of live coroutines: one line for each value of a snapshot.
///
/// So a line says what a snapshot says (Snapshot.swift). It may mix two moments of a running coroutine, never
/// of one that stays parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    var lines: [(id: UInt64, text: String)] = []
    var held = HeldUp()
    let late = CoroutineRuntime.visit(stacks: false, of: only) { entry, count in
      lines.reserveCapacity(count)
      lines.append((entry.id, entry.line))
      held.add(entry)
    }
    // The running ones come last.
    lines.sort { $0.id < $1.id }
    let count = lines.count
    let header = "\(count) live coroutine\(count == 1 ? "" : "s")\n"
    let overdue = late.map(\.line).sorted()
    let circles = Deadlocks.find(of: only).map(\.line)
    var tasks: [String] = []
    if only == nil {
      SchedulerRegistry.visitAll { scheduler in
        if let line = scheduler.swiftJobsLine { tasks.append(line) }
      }
    }
    let last = overdue + held.lines(of: only) + circles + tasks.sorted()
    return (lines.map(\.text) + last).reduce(into: header) { $0 += $1 + "\n" }
  }

  /// What keeps the threads of the process, in one line: the running coroutines, in the order of their launches, and
  /// the workers that run jobs of Tasks.
  static func running() -> String {
    var tasks: [String] = []
    let jobs = LiveJobs.list { scheduler in
      if let job = scheduler.swiftJobInWords { tasks.append("\(job) on \(scheduler.label)") }
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
  var line: String {
    "timers overdue by \(by.asMilliseconds) on \(label)" + (keeper.map { ", kept by \($0)" } ?? "")
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
    case .running: "running" + age("for at most") + doing
    case .waiting: "waiting " + (wait?.text ?? "") + age("for")
    }
  }

  /// What the thread of a running coroutine does, if that is known.
  private var doing: String {
    (activity.map { ", \($0)" } ?? "") + (thread.map { ", on thread \($0)" } ?? "")
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
    enum Kind: Int { case list, stacks, descriptors }

    let kind: Kind

    /// One line for each coroutine, as ``CoroutineRuntime/dump()`` returns it.
    public static var list: DumpDetail { DumpDetail(kind: .list) }
    /// Groups of coroutines with equal stacks.
    public static var stacks: DumpDetail { DumpDetail(kind: .stacks) }
    /// The open descriptors of the library, by who has opened them: peer, age, idle time, and who waits for each.
    ///
    /// The idle time of a TCP connection is the kernel's. A leak is a group that grows, and for which no coroutine
    /// waits.
    public static var descriptors: DumpDetail { DumpDetail(kind: .descriptors) }
  }

  /// Describes every live coroutine, as text for people.
  ///
  /// `.stacks` makes one group of the coroutines that wait in the same call for the same kind of thing, and shows the
  /// largest group first: how many they are, the longest and the median time, what they wait for, where they were
  /// launched, one of them, and the functions on their stacks, the innermost first. Of what this library itself does
  /// there, one line is shown: the call that waits. Groups of the library's own coroutines, and of those that make the
  /// dump, have one line each, and come last.
  ///
  /// Both forms end with the coroutines that hold up others, and what they do themselves; then come the circles of
  /// coroutines that can never go on.
  ///
  /// Never suspends; any thread, even while queues are stuck. It stops nothing (``snapshot(stacks:)``). The first call
  /// with `.stacks` reads symbol tables (``frames(at:)``). Names of users, and those of functions, are escaped, so that
  /// none can forge a line.
  public static func dump(_ detail: DumpDetail) -> String {
    switch detail.kind {
    case .list: dump()
    case .stacks: StackDump.text()
    case .descriptors: DescriptorReport.text()
    }
  }
}

// MARK: - Groups of equal stacks

/// The dump by stacks: coroutines with equal stacks and equal waits are one group, the largest first.
///
/// Stacks are compared without the runtime's own innermost frames, and by the function of the outermost one of those.
/// The switch is inlined in two places, to a ready coroutine and to the driver, so two coroutines that wait in the same
/// call differ there. Waits are equal if their kinds are.
struct StackDump {
  private typealias Entry = CoroutineRuntime.Snapshot.Coroutine

  private struct Key: Hashable {
    let state: Entry.State
    let kind: String?
    let isTorn: Bool
    let isCut: Bool
    let frames: [UInt]
    /// Whether it is this library's, which comes last.
    let isOwn: Bool
  }

  /// A group, without its members: a million coroutines in one group take one number each.
  private struct Group {
    let first: Entry
    var since: [Duration] = []
    var launchSites = Tally()
    var waits = WaitTally()
    var schedulers: Set<String> = []
    var cancelled = 0

    mutating func add(_ entry: Entry) {
      since.append(entry.since)
      launchSites.add(entry.launchSite)
      if let wait = entry.wait { waits.add(wait.text) }
      if entry.isCancelled { cancelled += 1 }
      if entry.state == .running { schedulers.insert(entry.scheduler) }
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

  /// What the members of a group wait for: the kind, and how many different things.
  private struct WaitTally {
    private var phrase = ""
    private var things: [String: Int] = [:]
    private var isMore = false
    // Of all members, also of those whose things are not told apart any more.
    private var overdue = 0
    private var onThreads = 0

    mutating func add(_ text: String) {
      let head = text.firstIndex(of: "(") ?? text.endIndex
      if phrase.isEmpty { phrase = text[..<head].trimmed }
      guard head < text.endIndex else { return }
      let thing = String(text[head...].dropFirst().dropLast())
      if thing.hasPrefix("overdue") { overdue += 1 }
      if thing.hasPrefix("on thread") { onThreads += 1 }
      if things[thing] != nil || things.count < 1_024 { things[thing, default: 0] += 1 } else { isMore = true }
    }

    /// `for readable descriptors (15)`, or with the one for which most wait.
    func summary(_ kind: String, of total: Int) -> String {
      guard let most = things.min(by: { ($1.value, $0.key) < ($0.value, $1.key) }) else { return phrase }
      if things.count == 1, !isMore { return "\(phrase) (\(most.key))" }
      let count = "\(things.count)\(isMore ? " or more" : "")"
      switch kind {
      case "readable", "writable", "descriptor": return "\(phrase) (\(count) descriptors)"
      case "delay": return overdue == 0 ? phrase : "\(phrase) (\(overdue) overdue)"
      case "blocking": return "\(phrase) (\(onThreads) on threads, \(total - onThreads) in the queue)"
      default:
        let example = most.value > 1 ? "\(most.value) for" : "for example"
        return "\(phrase) (\(count) different ones, \(example) \(most.key))"
      }
    }
  }

  /// A frame, and how often it stands there in a row: a function that calls itself.
  private struct Shown {
    let named: Symbols.Named
    var times = 1

    /// What is equal for equal frames: the address, and of the runtime's own frames the function, because the switch is
    /// inlined into its callers twice.
    var key: UInt {
      guard named.owner == .runtime, let symbol = named.frame.symbol else { return named.frame.address }
      return UInt(bitPattern: symbol.hashValue)
    }
  }

  private var groups: [Key: Group] = [:]
  private var held = HeldUp()
  /// The coroutine that makes the dump.
  private let caller = RunningCoroutine.label?.id
  private var shown: [[UInt]: [Shown]] = [:]
  private var count = 0

  static func text(of only: [Scheduler]? = nil) -> String {
    var dump = StackDump()
    let late = CoroutineRuntime.visit(stacks: true, of: only) { entry, _ in dump.add(entry) }
    return dump.text(late, dump.held.lines(of: only), Deadlocks.find(of: only).map(\.line))
  }

  private mutating func add(_ entry: Entry) {
    count += 1
    held.add(entry)
    let frames = shownFrames(of: entry.stack)
    let key = Key(
      state: entry.state,
      kind: entry.wait?.kind,
      isTorn: entry.isTorn,
      isCut: entry.isCut,
      // However deep a function has called itself.
      frames: frames.map(\.key),
      isOwn: isOwn(entry, frames)
    )
    groups[key, default: Group(first: entry)].add(entry)
  }

  /// Whether a coroutine was launched by this library, and is in no code of the program.
  private func isOwn(_ entry: Entry, _ frames: [Shown]) -> Bool {
    guard Library.contains(entry.launchSite) else { return false }
    if entry.id == caller { return true }
    return !frames.isEmpty && !frames.contains { $0.named.owner == .program }
  }

  /// The frames of a stack that a report shows: of each run of the runtime's own, only the outermost one, which is the
  /// call that waits, or the step of a generator; and of those that have called the body, none.
  private mutating func shownFrames(of stack: [UInt]) -> [Shown] {
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
    var folded: [Shown] = []
    for frame in frames {
      if folded.last?.named.frame.address == frame.frame.address {
        folded[folded.count - 1].times += 1
      } else {
        folded.append(Shown(named: frame))
      }
    }
    shown[stack] = folded
    return folded
  }

  private func text(_ late: [LateScheduler], _ held: [String], _ circles: [String]) -> String {
    var text =
      "\(count) live coroutine\(count == 1 ? "" : "s") in \(groups.count) group\(groups.count == 1 ? "" : "s")\n"
    if let reason = Self.whyWithoutStacks { text += "stacks \(reason)\n" }
    let sorted = groups.sorted { ($1.value.since.count, $0.value.first.id) < ($0.value.since.count, $1.value.first.id) }
    for (key, group) in sorted where !key.isOwn { text += "\n" + describe(key, group) }
    let own = sorted.filter(\.key.isOwn)
    if !own.isEmpty { text += "\nof the library:\n" }
    for (key, group) in own { text += "  \(heading(key, group)), launched at \(group.launchSites.summary)\n" }
    for single in late { text += "\n" + single.line + "\n" }
    if !held.isEmpty { text += "\n" + held.joined(separator: "\n") + "\n" }
    for circle in circles { text += "\n" + circle + "\n" }
    return text
  }

  /// The sentence that explains why no stack was read; nil if stacks can be read.
  private static var whyWithoutStacks: String? {
    let reader = StackReader()
    return reader.status == CCO_WALK_READY ? nil : String(cString: cco_walk_message(reader.status))
  }

  /// `29 waiting, longest 4 ms, median 3 ms, for a lock (…)`, or `1 waiting, 3 ms, for a lock (…)`.
  private func heading(_ key: Key, _ group: Group) -> String {
    let (first, times) = (group.first, group.since.sorted())
    var text = "\(times.count) \(Self.phrase(key.state))"
    let (longest, median) = (times[times.count - 1], times[times.count / 2])
    text += times.count == 1 ? ", \(longest.asMilliseconds)" : ", longest \(longest.asMilliseconds)"
    if times.count > 1 { text += ", median \(median.asMilliseconds)" }
    if key.state == .waiting { text += ", " + group.waits.summary(key.kind ?? "", of: times.count) }
    if key.isTorn { text += ", moving too fast to read" }
    if times.count == 1, let activity = first.activity { text += ", " + activity }
    if times.count == 1, let thread = first.thread { text += ", on thread \(thread)" }
    // Each was read at its own moment.
    if group.schedulers.count < times.count, key.state == .running {
      text += ", one after the other: there are \(group.schedulers.count) threads"
    }
    if group.cancelled > 0 { text += ", \(group.cancelled) cancelled" }
    return text
  }

  private func describe(_ key: Key, _ group: Group) -> String {
    let first = group.first
    let example = "\(first.title) on \(first.scheduler)"
    var text = heading(key, group)
    text += "\n  launched at \(group.launchSites.summary)\n"
    text += "  \(group.since.count == 1 ? "it is" : "for example") \(example)\n"
    let frames = shown[first.stack] ?? []
    for frame in frames { text += "    \(frame.named.line)\(frame.times > 1 ? ", \(frame.times) times" : "")\n" }
    if key.isCut { text += "    … cut here: a function has no frame pointer, or there are more than 256 frames\n" }
    if let reason = first.whyWithoutStack { text += "    \(reason)\n" }
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

extension Substring {
  fileprivate var trimmed: String { String(last == " " ? dropLast() : self) }
}
