import Synchronization

/// One job as a snapshot reads it, while its owner keeps running.
///
/// The reader retains the job (LiveJobs.swift), and reads atomics only. It reads the source of a wait as
/// Inspection.swift explains, and never holds two locks at once.
struct InspectedJob {
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

  init(_ job: AnyJob) {
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
    now = scheduler.clock
    guard isWaiting, let address = kind.sourceAddress(number) else { return }
    source = Inspection.source(of: record, word, at: address)
    if kind == .select { cases = source.flatMap { Inspection.cases(of: record, word, in: $0) } }
  }

  var isWaiting: Bool { word & 0xFF == 1 }

  /// The time at which the job parked, yielded or was launched; 0 if it was not recorded.
  private var since: UInt64 { sinceWord }

  var isCancelled: Bool { flags & JobFlags.cancelled != 0 }

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

  private static func milliseconds(_ nanoseconds: UInt64) -> String {
    Duration.nanoseconds(Int64(clamping: nanoseconds)).asMilliseconds
  }

  /// What the job does.
  var state: CoroutineRuntime.Snapshot.Coroutine.State {
    if isWaiting { return .waiting }
    if word & 0xFF != 0 { return .ready }
    return kind == .start ? .notStarted : kind == .ready ? .ready : .running
  }

  /// Zero if the time was not recorded, or the job runs on its launcher's thread: its scheduler reads no clock for it.
  var nanosecondsInState: UInt64 {
    let isForeign = flags & JobFlags.foreign != 0
    let start = state == .running ? (isForeign ? 0 : lastClockRead) : since
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
