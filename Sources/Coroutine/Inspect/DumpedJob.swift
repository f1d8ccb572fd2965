import Synchronization

/// The line of a dump about one job.
///
/// The dump retains the job, and reads atomics only. It reads the source of a wait as Inspection.swift explains.
struct DumpedJob {
  let job: AnyJob
  /// The number, and the name if there is one: `#7 "name"`.
  let title: String
  private let worker: String
  private let kind: WaitKind
  private let word: UInt64
  private let flags: UInt32
  /// The time at which the job parked, yielded or was launched; 0 if it was not recorded.
  private let since: UInt64
  private let now: UInt64
  /// The time at which the job's scheduler last read the clock.
  private let lastClockRead: UInt64
  /// The source that the wait has recorded (JobRecord.waitSource).
  private let number: UInt
  private var source: (any Inspectable)?
  private var cases: [InspectedCase]?
  private let _caseCount: UInt8

  init(_ job: AnyJob, now: UInt64) {
    let record = job.record
    self.job = job
    title = "#\(job.id)" + (job.jobName.map { " \"\(String(cString: $0.cString))\"" } ?? "")
    word = record.pointee.wait.load(ordering: .sequentiallyConsistent)
    kind = WaitKind(rawValue: record.pointee.waitKind.load(ordering: .relaxed)) ?? .nothing
    number = record.pointee.waitSource.load(ordering: .acquiring)
    _caseCount = record.pointee.selectCount.load(ordering: .relaxed)
    since = record.pointee.waitingSince.load(ordering: .relaxed)
    flags = record.pointee.flags.load(ordering: .relaxed)
    let scheduler = job.currentScheduler
    worker = scheduler.label
    lastClockRead = scheduler.lastClockRead.load(ordering: .relaxed)
    self.now = scheduler.clock
    guard isWaiting, let address = kind.sourceAddress(number) else { return }
    source = Inspection.source(of: record, word, at: address)
    if kind == .select { cases = source.flatMap { Inspection.cases(of: record, word, in: $0) } }
  }

  /// What the job does or waits for.
  var shortState: String { state(JobNames()) }

  private var isWaiting: Bool { word & 0xFF == 1 }

  /// Whether a thread runs the job.
  var isRunning: Bool { word & 0xFF == 0 && kind != .start && kind != .ready }

  func line(_ names: JobNames) -> String {
    let launchSite = job.record.label.pointee.launchSite.description
    return "\(title) \(state(names))\(isCancelled ? ", cancelled" : "") on \(worker), launched at \(launchSite)"
  }

  private var isCancelled: Bool { flags & JobFlags.cancelled != 0 }

  private func state(_ names: JobNames) -> String {
    if isWaiting { return "waiting \(kind.phrase)\(detail(names).map { " (\($0))" } ?? "")\(age(since, " for "))" }
    if word & 0xFF != 0 { return "ready\(age(since, ", parked ", " ago"))" }
    switch kind {
    case .start: return "not started\(age(since, " for "))"
    case .ready: return "ready\(age(since, " for "))"
    default:
      let isForeign = flags & JobFlags.foreign != 0
      return isForeign ? "running on its launcher's thread" : "running\(age(lastClockRead, " for at most "))"
    }
  }

  /// Describes the source of the wait.
  private func detail(_ names: JobNames) -> String? {
    switch kind {
    case .job: return names.awaited(number)
    case .readable, .writable: return "\(number)"
    case .delay:
      let end = UInt64(number)
      if end == Duration.never { return "never ends by itself" }
      if end > now { return "ends in \(Self.milliseconds(end - now))" }
      return "overdue by \(Self.milliseconds(now - end))"
    case .select:
      let list = cases.map { $0.map { text($0, names) }.joined(separator: "; ") }
      return "\(_caseCount) case\(_caseCount == 1 ? "" : "s")" + (list.map { ": \($0)" } ?? "")
    default: return source?.inspect(names)
    }
  }

  private func text(_ single: InspectedCase, _ names: JobNames) -> String {
    if let timeout = single.timeout { return "timeout of \(Self.milliseconds(timeout))" }
    guard let source = single.source as? any Inspectable else { return "await an Awaitable" }
    return "\(source.verb(of: single.queue)) \(source.inspect(names))"
  }

  /// Returns how long ago `since` is, in words, or nothing if no time was recorded.
  ///
  /// A time after the beginning of the dump counts as the beginning.
  private func age(_ since: UInt64, _ before: String, _ after: String = "") -> String {
    since == 0 ? "" : before + Self.milliseconds(now - min(now, since)) + after
  }

  static func milliseconds(_ nanoseconds: UInt64) -> String { "\(nanoseconds / 1_000_000) ms" }
}

extension WaitKind {
  /// The words after "waiting".
  var phrase: String {
    switch self {
    case .start, .nothing, .ready: "for its turn"
    case .callback: "for a callback"
    case .task: "for a Task"
    case .delay: "for a delay"
    case .job: "for a job"
    case .promise: "for a promise"
    case .children: "for its children"
    case .select: "in a select"
    case .blocking: "for blocking work"
    case .readable: "for a readable descriptor"
    case .writable: "for a writable descriptor"
    case .lock: "for a lock"
    case .receive: "to receive"
    case .send: "to send"
    case .permits: "for permits"
    case .condition: "for a condition"
    case .group: "for a count to reach zero"
    case .answer: "for an answer"
    case .decision: "for its supervisor"
    case .queue: "to continue on another queue"
    }
  }

  /// The address of the `Inspectable` that a wait of this kind has recorded, if any.
  func sourceAddress(_ number: UInt) -> UInt? {
    switch self {
    case .receive, .send, .lock, .permits, .select: number
    // The recorded address is that of its completion, the first property.
    case .promise: number &- UInt(objectHeader)
    default: nil
    }
  }
}
