import Synchronization

/// The line of a dump about one job.
///
/// The dump retains the job, and reads atomics only. It reads the source of a wait as Inspection.swift explains.
struct DumpedJob {
  let job: AnyJob
  /// The label of the job's scheduler.
  let worker: String
  let kind: WaitKind
  let word: UInt64
  private let flags: UInt32
  /// The word `waitingSince`.
  let sinceWord: UInt64
  private let now: UInt64
  /// The time at which the job's scheduler last read the clock.
  private let lastClockRead: UInt64
  /// The source that the wait has recorded (JobRecord.waitSource).
  private let number: UInt
  private(set) var source: (any Inspectable)?
  private var cases: [InspectedCase]?
  private let _caseCount: UInt8

  init(_ job: AnyJob, now: UInt64) {
    let record = job.record
    self.job = job
    word = record.pointee.wait.load(ordering: .sequentiallyConsistent)
    kind = WaitKind(rawValue: record.pointee.waitKind.load(ordering: .relaxed)) ?? .nothing
    number = record.pointee.waitSource.load(ordering: .acquiring)
    _caseCount = record.pointee.selectCount.load(ordering: .relaxed)
    sinceWord = record.pointee.waitingSince.load(ordering: .relaxed)
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

  var isWaiting: Bool { word & 0xFF == 1 }

  /// The time at which the job parked, yielded or was launched; 0 if it was not recorded.
  private var since: UInt64 { JobRecord.time(in: sinceWord) }

  /// Whether a thread runs the job.
  var isRunning: Bool { word & 0xFF == 0 && kind != .start && kind != .ready }

  func line(_ names: JobNames) -> String {
    let launchSite = job.record.label.pointee.launchSite.description
    return
      "\(JobNames.title(of: job)) \(state(names))\(isCancelled ? ", cancelled" : "") on \(worker), launched at \(launchSite)"
  }

  var isCancelled: Bool { flags & JobFlags.cancelled != 0 }

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
    case .job: return names.isEmpty ? nil : (source as? AnyJob).map { names.job($0) }
    case .readable, .writable, .descriptor: return "\(number)"
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

// For snapshots.
extension DumpedJob {
  var snapshotState: CoroutineRuntime.Snapshot.Coroutine.State {
    if isWaiting { return .waiting }
    if word & 0xFF != 0 { return .ready }
    return kind == .start ? .notStarted : kind == .ready ? .ready : .running
  }

  /// Zero if the time was not recorded.
  var nanosecondsInState: UInt64 {
    let start = snapshotState == .running ? lastClockRead : since
    return start == 0 ? 0 : now - min(now, start)
  }

  /// What the job waits for, in words.
  func waitText(_ names: JobNames) -> String { kind.phrase + (detail(names).map { " (\($0))" } ?? "") }

  /// The address of the one object that the job waits for.
  var object: UInt? { kind == .select ? nil : kind.sourceAddress(number) }

  /// The number of the coroutine that has to act.
  func owner(_ names: JobNames) -> UInt64? {
    if kind == .job { return (source as? AnyJob)?.id }
    return (source as? any Owned).flatMap { names.id(ofOwner: $0.ownerInDump) }
  }
}
