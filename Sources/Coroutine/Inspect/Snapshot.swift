internal import CCoroutine
import Synchronization

extension CoroutineRuntime {
  /// The live coroutines of a process at about one moment, as values.
  ///
  /// Made by ``CoroutineRuntime/snapshot(stacks:)``. Two values of one snapshot may be of moments that are as far
  /// apart as the snapshot took.
  public struct Snapshot: Sendable, Codable {
    /// The coroutines, in the order of their launches.
    public var coroutines: [Coroutine]
    /// How late the schedulers are that have not reached their timers for a millisecond or more, the latest first.
    public var lateTimers: [Duration]
    /// The last coroutines that have ended, the latest first; 256 at most.
    ///
    /// They are kept from the first of these on: a snapshot, a dump, ``CoroutineRuntime/dumpOnSignal(_:)`` or its
    /// environment variable, a server of diagnostics. Until then an end costs nothing. None in a simulated world.
    public var ended: [Ended]
    /// The parts of Tasks that workers run, then those that wait for one, the first sixteen of each worker; all of them
    /// are counted in ``CoroutineRuntime/Metrics/taskPartsReady``.
    public var tasks: [SwiftTask]
    /// Creates a snapshot of given values, for tests of what reads one.
    public init(
      coroutines: [Coroutine],
      lateTimers: [Duration] = [],
      ended: [Ended] = [],
      tasks: [SwiftTask] = []
    ) {
      self.coroutines = coroutines
      self.lateTimers = lateTimers
      self.ended = ended
      self.tasks = tasks
    }

    /// One coroutine of a snapshot.
    public struct Coroutine: Sendable, Codable, Identifiable {
      /// The number, unique in its process.
      public var id: UInt64
      /// The name given at the launch, or by the coroutine itself (``CurrentCoroutine/name``), as given: a report
      /// escapes it.
      public var name: String?
      /// The place of the launch, as `file:line`.
      public var launchSite: String
      /// What it does.
      public var state: State
      /// What it waits for; nil unless the state is `waiting`.
      public var wait: Wait?
      /// The label of the queue, the worker or the loop that runs it.
      public var scheduler: String
      /// The time in this state.
      ///
      /// Based on the last time at which its scheduler read the clock: too long by the longest time that one
      /// coroutine ran there without a suspension, at most. Zero if the time was not recorded.
      public var since: Duration
      /// Whether it was cancelled.
      public var isCancelled: Bool
      /// Whether its stack was asked for and could not be read, because it moved each time.
      public var isTorn: Bool
      /// The return addresses of its frames, the innermost first; see ``CoroutineRuntime/frames(at:)``.
      ///
      /// Empty if stacks were not asked for, if it has not started, or if it is torn. A generator that it steps comes
      /// before the frames that step it. Of a running coroutine, if it has run for 50 ms, and its thread answers: see
      /// ``CoroutineRuntime/Stall/stack``.
      public var stack: [UInt]
      /// Whether the stack ends before the function that was launched: a function has no frame pointer, or there are
      /// more than 256 frames.
      public var isCut: Bool
      /// The kernel's number of the thread on which it has run for 50 ms or more, as `top -H` shows it; nil if that is
      /// not known.
      public var thread: Int32?
      /// What that thread did: `computing`, `in read(2)` or `asleep in the kernel`; nil if that is not known.
      public var activity: String?

      /// The states of a coroutine.
      public enum State: String, Sendable, Codable {
        /// It was launched, and its body has not begun.
        case notStarted
        /// It waits for nothing but its scheduler.
        case ready
        /// A thread runs it.
        case running
        /// It waits for what ``Snapshot/Coroutine/wait`` says.
        case waiting
      }
    }

    /// What a coroutine waits for.
    public struct Wait: Sendable, Codable {
      /// The kind in one word, for machines: `lock`, `receive`, `job`, `delay`, and so on.
      public var kind: String
      /// The address of what it waits for, if that is one object.
      ///
      /// Others with the same address wait for the same object.
      public var object: UInt?
      /// The number of the coroutine that has to act, if it is known: the owner of a lock, a job that is awaited.
      public var owner: UInt64?
      /// What it waits for in words, with users' texts escaped.
      public var text: String
    }

    /// A frame of a stack.
    public struct Frame: Sendable, Codable {
      /// The return address.
      public var address: UInt
      /// The name of the function, as Swift would write it; nil if no symbol table has it.
      public var symbol: String?
      /// The path of the program or library that contains the address.
      public var image: String?
      /// The build ID of the image, in hexadecimal digits.
      public var buildID: String?
    }
  }
}

// MARK: - Taking one

extension CoroutineRuntime {
  /// Returns every live coroutine at about this moment, as values.
  ///
  /// Never suspends; any thread, even while all queues and workers are stuck, and in a forked child. It stops nothing,
  /// wakes nothing, and takes no lock for longer than it takes to retain 32 coroutines. The last reference to an
  /// inspected object may be released here, so that its `deinit` runs on the calling thread.
  ///
  /// With `stacks`, each parked coroutine has the return addresses of its frames, the 256 innermost ones at most; a
  /// coroutine that moves meanwhile is read again, and at last has none (``Snapshot/Coroutine/isTorn``). Code without
  /// frame pointers ends a stack early (``Snapshot/Coroutine/isCut``). The thread of a coroutine that has run for 50 ms
  /// or more is asked, by a signal, as for a stall (``Stall/stack``); the answers are waited for, for 100 ms at most.
  /// In builds with a sanitizer there are no stacks, as ``dump(_:)`` says there.
  ///
  /// - Parameter stacks: Whether to read where each coroutine is.
  public static func snapshot(stacks: Bool = false) -> Snapshot { snapshot(stacks: stacks, of: nil) }

  /// A snapshot of the coroutines of `only`, or of all.
  static func snapshot(stacks: Bool, of only: [Scheduler]?) -> Snapshot {
    var coroutines: [Snapshot.Coroutine] = []
    var isSorted = true
    let late = visit(stacks: stacks, of: only) { entry, count in
      if coroutines.isEmpty { coroutines.reserveCapacity(count) }
      if let last = coroutines.last, last.id > entry.id { isSorted = false }
      coroutines.append(entry)
    }
    if !isSorted { coroutines.sort { $0.id < $1.id } }
    let tasks = only == nil ? Snapshot.swiftTasks() : []
    return Snapshot(coroutines: coroutines, lateTimers: late.map(\.by), ended: Snapshot.latestEnded, tasks: tasks)
  }

  /// Writes what ``snapshot(stacks:)`` returns as JSON, in the form that ``Snapshot`` encodes to, in several parts of
  /// about 64 KiB.
  ///
  /// So a million coroutines need no second copy. Waits for nothing itself; any thread, as `snapshot`. Times are
  /// numbers of nanoseconds, addresses are numbers, and names are as they were given. The running coroutines come last.
  ///
  /// - Parameters:
  ///   - stacks: Whether to read where each coroutine is.
  ///   - write: Receives the next part, which is valid during the call. If it throws, nothing more is written.
  public static func snapshotJSON(
    stacks: Bool = false,
    _ write: (UnsafeRawBufferPointer) throws -> Void
  ) rethrows {
    var json = SnapshotJSON()
    let late = try visit(stacks: stacks, of: nil) { entry, _ in
      json.add(entry)
      try json.flush(write)
    }
    json.end(late.map(\.by), Snapshot.latestEnded, Snapshot.swiftTasks())
    try json.flush(all: true, write)
  }

  /// Returns the frames at these return addresses, in their order.
  ///
  /// Names come from the symbol table of the address's image, `.symtab` if it has not been stripped, and are demangled.
  /// An image's table is read once, at the first address in it, in some tens of milliseconds for a large one; an
  /// address that was asked for before takes less than a microsecond. For lines, pass the addresses to a tool:
  /// `llvm-symbolizer` takes the build ID. Merged functions have the name of only one of them.
  ///
  /// Never suspends; any thread. Reads files, so not for signal handlers.
  public static func frames(at addresses: [UInt]) -> [Snapshot.Frame] { Symbols.frames(at: addresses) }

  /// Reads all coroutines, a few at a time; returns the schedulers that are late.
  ///
  /// `body` gets each with the number of all, those that ran when they were read first as the last ones.
  static func visit(
    stacks: Bool,
    of only: [Scheduler]?,
    _ body: (Snapshot.Coroutine, _ count: Int) throws -> Void
  ) rethrows -> [LateScheduler] {
    if !LiveJobs.isInWorld { EndedJobs.begin() }
    var late: [LateScheduler] = []
    let jobs = LiveJobs.list(of: only) { if let single = LateScheduler($0) { late.append(single) } }
    var reader = SnapshotReader(JobNames(jobs))
    var walker = StackReader(reads: stacks)
    var running: [AnyJob] = []
    for first in stride(from: 0, to: jobs.count, by: StackReader.batch) {
      for entry in walker.read(jobs[first..<min(first + StackReader.batch, jobs.count)]) {
        if entry.job.state == .running {
          running.append(entry.job.job)
        } else {
          try body(reader.coroutine(entry), jobs.count)
        }
      }
    }
    // The walk takes its time, and has seen more of them run than there are threads: they are read again, all at once.
    var entries = walker.readAll(running)
    var threads = RunningStacks()
    for index in entries.indices { threads.read(&entries[index], asks: stacks) }
    for entry in entries {
      let coroutine = reader.coroutine(entry)
      if coroutine.state == .running { for index in late.indices { late[index].note(coroutine, entry.job.scheduler) } }
      try body(coroutine, jobs.count)
    }
    return late.sorted { $0.by > $1.by }
  }
}

// MARK: - The form for tools

// The form of a snapshot for tools. Times are numbers of nanoseconds: what a Duration writes by itself is an array of
// two numbers that no tool reads. `SnapshotJSON.swift` writes the same form.

extension CoroutineRuntime.Snapshot {
  private enum Key: String, CodingKey { case coroutines, lateTimers, ended, tasks }

  /// Reads times as nanoseconds.
  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: Key.self)
    self.init(
      coroutines: try values.decode([Coroutine].self, forKey: .coroutines),
      lateTimers: try values.decode([Int64].self, forKey: .lateTimers).map { .nanoseconds($0) },
      ended: try values.decodeIfPresent([Ended].self, forKey: .ended) ?? [],
      tasks: try values.decodeIfPresent([SwiftTask].self, forKey: .tasks) ?? []
    )
  }

  /// Writes times as nanoseconds.
  public func encode(to encoder: any Encoder) throws {
    var values = encoder.container(keyedBy: Key.self)
    try values.encode(coroutines, forKey: .coroutines)
    try values.encode(lateTimers.map(\.wholeNanoseconds), forKey: .lateTimers)
    try values.encode(ended, forKey: .ended)
    try values.encode(tasks, forKey: .tasks)
  }
}

extension CoroutineRuntime.Snapshot.Coroutine {
  private enum Key: String, CodingKey {
    case id, name, launchSite, state, wait, scheduler, since, isCancelled, isTorn, stack, isCut, thread, activity
  }

  /// Reads `since` as nanoseconds.
  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: Key.self)
    self.init(
      id: try values.decode(UInt64.self, forKey: .id),
      name: try values.decodeIfPresent(String.self, forKey: .name),
      launchSite: try values.decode(String.self, forKey: .launchSite),
      state: try values.decode(State.self, forKey: .state),
      wait: try values.decodeIfPresent(CoroutineRuntime.Snapshot.Wait.self, forKey: .wait),
      scheduler: try values.decode(String.self, forKey: .scheduler),
      since: .nanoseconds(try values.decode(Int64.self, forKey: .since)),
      isCancelled: try values.decode(Bool.self, forKey: .isCancelled),
      isTorn: try values.decode(Bool.self, forKey: .isTorn),
      stack: try values.decode([UInt].self, forKey: .stack),
      isCut: try values.decode(Bool.self, forKey: .isCut),
      thread: try values.decodeIfPresent(Int32.self, forKey: .thread),
      activity: try values.decodeIfPresent(String.self, forKey: .activity)
    )
  }

  /// Writes `since` as nanoseconds.
  public func encode(to encoder: any Encoder) throws {
    var values = encoder.container(keyedBy: Key.self)
    try values.encode(id, forKey: .id)
    try values.encodeIfPresent(name, forKey: .name)
    try values.encode(launchSite, forKey: .launchSite)
    try values.encode(state, forKey: .state)
    try values.encodeIfPresent(wait, forKey: .wait)
    try values.encode(scheduler, forKey: .scheduler)
    try values.encode(since.wholeNanoseconds, forKey: .since)
    try values.encode(isCancelled, forKey: .isCancelled)
    try values.encode(isTorn, forKey: .isTorn)
    try values.encode(stack, forKey: .stack)
    try values.encode(isCut, forKey: .isCut)
    try values.encodeIfPresent(thread, forKey: .thread)
    try values.encodeIfPresent(activity, forKey: .activity)
  }
}

extension Duration {
  /// The whole nanoseconds, as many as a number has room for.
  var wholeNanoseconds: Int64 {
    let (seconds, attoseconds) = components
    let (product, isTooLarge) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    let (sum, isStillTooLarge) = product.addingReportingOverflow(attoseconds / 1_000_000_000)
    if isTooLarge || isStillTooLarge { return seconds < 0 ? .min : .max }
    return sum
  }
}

// MARK: - Values of jobs

/// Makes the values of a snapshot, and keeps texts that many coroutines share.
struct SnapshotReader {
  private let names: JobNames
  private var launchSites: [LaunchSiteKey: String] = [:]
  /// The text of the wait before, with its source: neighbours often wait for the same object.
  private var lastWait: (source: AnyObject, kind: WaitKind, wait: CoroutineRuntime.Snapshot.Wait)?
  /// Where the bodies of co_blocking were, when the first of them was asked for.
  private var blocking: [UInt64: String]?

  /// The file, by the address of its literal, and the line.
  private struct LaunchSiteKey: Hashable {
    let file: UnsafePointer<UInt8>
    let line: UInt32
  }

  init(_ names: JobNames) { self.names = names }

  /// The value of one job, which names others by `names`.
  static func value(
    of inspected: InspectedJob,
    _ names: JobNames = JobNames()
  ) -> CoroutineRuntime.Snapshot.Coroutine {
    var reader = SnapshotReader(names)
    return reader.coroutine(StackReader.Entry(job: inspected))
  }

  /// The value of one job that was inspected.
  mutating func coroutine(_ entry: StackReader.Entry) -> CoroutineRuntime.Snapshot.Coroutine {
    let (inspected, job) = (entry.job, entry.job.job)
    return CoroutineRuntime.Snapshot.Coroutine(
      id: job.id,
      name: job.shownName,
      launchSite: launchSite(of: job),
      state: inspected.state,
      wait: inspected.isWaiting ? wait(of: inspected) : nil,
      scheduler: inspected.worker,
      since: .nanoseconds(Int64(clamping: inspected.nanosecondsInState)),
      isCancelled: inspected.isCancelled,
      isTorn: entry.isTorn,
      stack: entry.stack,
      isCut: entry.isCut,
      thread: entry.thread?.number,
      activity: entry.thread?.activity?.description
    )
  }

  private mutating func launchSite(of job: AnyJob) -> String {
    let site = job.record.label.pointee.launchSite
    let key = LaunchSiteKey(file: site.file, line: site.line)
    if let known = launchSites[key] { return known }
    let text = site.description
    launchSites[key] = text
    return text
  }

  private mutating func wait(of inspected: InspectedJob) -> CoroutineRuntime.Snapshot.Wait {
    if let lastWait, let source = inspected.source, lastWait.source === source, lastWait.kind == inspected.kind,
      inspected.kind != .select, inspected.kind != .answer
    {
      return lastWait.wait
    }
    let wait = CoroutineRuntime.Snapshot.Wait(
      kind: inspected.kind.name,
      object: inspected.object,
      owner: inspected.owner(names),
      text: inspected.waitText(names) + position(of: inspected)
    )
    if let source = inspected.source { lastWait = (source, inspected.kind, wait) }
    return wait
  }
}

extension SnapshotReader {
  /// Where the body is that a coroutine waits for, in parentheses; empty for other waits.
  private mutating func position(of inspected: InspectedJob) -> String {
    guard inspected.kind == .blocking else { return "" }
    let positions = blocking ?? BlockingPositions.now()
    blocking = positions
    return positions[inspected.job.id].map { " (\($0))" } ?? ""
  }
}

// MARK: - One job, read while it runs

/// One job as a snapshot reads it, while its owner keeps running.
///
/// The reader retains the job (LiveJobs), and reads atomics only. It reads the source of a wait as
/// Inspection.swift explains, and never holds two locks at once.
struct InspectedJob {
  let job: AnyJob
  /// The job's scheduler, and its label.
  let scheduler: ObjectIdentifier
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
  let number: UInt
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
    self.scheduler = ObjectIdentifier(scheduler)
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
    case .answer:
      guard let actor = source as? any OwnedSource else { return nil }
      let isOwed = actor.owners(awaitedBy: job.record) != nil
      return "from \(actor.inspect(names))\(isOwed ? "" : ", which has delegated it")"
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
    if kind == .answer {
      return (source as? any OwnedSource)?.owners(awaitedBy: job.record)?.first.flatMap { names.id(ofOwner: $0) }
    }
    return (source as? any Owned).flatMap { names.id(ofOwner: $0.ownerInDump) }
  }
}

// MARK: - The live jobs

/// The live jobs of some schedulers, which are retained, in the order of their launches.
///
/// Every snapshot begins with this walk. It retains all live jobs, a few in each critical section of a
/// scheduler's live lock. So each listed job stays alive, and neither launches nor ends wait for long.
enum LiveJobs {
  /// Held while live jobs are listed: a scheduler remembers the place of one walk.
  static let listing = ThreadLock()

  /// Returns the live jobs of `only`, and calls `visit` with each scheduler; without `only`, see `visitAll`.
  static func list(of only: [Scheduler]? = nil, _ visit: (Scheduler) -> Void = { _ in }) -> [AnyJob] {
    var jobs: [AnyJob] = []
    var isSorted = true
    func list(_ scheduler: Scheduler) {
      scheduler.listLiveJobs(&jobs)
      visit(scheduler)
    }
    listing.withLock {
      if let only { for scheduler in only { list(scheduler) } } else { visitAll(list) }
    }
    // A list begins with the latest job, so the jobs of one scheduler are sorted already when they are reversed.
    jobs.reverse()
    for index in jobs.indices.dropFirst() where jobs[index - 1].id > jobs[index].id {
      isSorted = false
      break
    }
    return isSorted ? jobs : jobs.sorted { $0.id < $1.id }
  }
}

extension LiveJobs {
  /// Calls `body` with the schedulers of the process, or, in a simulated world, with those of that world.
  ///
  /// Not with those of other worlds: a reference that is held from outside changes when an object of theirs is
  /// released, and so the run.
  static func visitAll(_ body: (Scheduler) -> Void) {
    let isInWorld = isInWorld
    SchedulerRegistry.visitAll { scheduler in
      guard scheduler.host.controlsOrder == isInWorld, !isInWorld || scheduler.host.isCurrent(scheduler) else { return }
      body(scheduler)
    }
  }

  /// Whether the caller is a coroutine or a handler of a simulated world.
  static var isInWorld: Bool {
    Carrier.current?.callerScheduler?._withUnsafeGuaranteedRef { $0.host.controlsOrder } ?? false
  }

  /// Returns the live jobs for which `isWanted` is true, in no order: those of `only`; without that, see `visitAll`.
  ///
  /// `isWanted` is called under the lock of a scheduler's live list.
  static func list(of only: [Scheduler]?, where isWanted: (JobRef) -> Bool) -> [AnyJob] {
    var jobs: [AnyJob] = []
    listing.withLock {
      if let only { return only.forEach { $0.listLiveJobs(&jobs, where: isWanted) } }
      visitAll { $0.listLiveJobs(&jobs, where: isWanted) }
    }
    return jobs
  }
}

/// A scheduler whose thread has not reached its first timer for a millisecond or more: what runs there keeps it.
struct LateScheduler {
  let label: String
  let by: Duration
  /// What runs there, in words: the job of a Task, or a coroutine.
  private(set) var keeper: String?
  private let scheduler: ObjectIdentifier

  /// Nil if the scheduler is not late.
  init?(_ scheduler: Scheduler) {
    let due = scheduler.nextTimer.load(ordering: .relaxed)
    let now = scheduler.clock
    guard due < now, now - due >= 1_000_000 else { return nil }
    label = scheduler.label
    by = .nanoseconds(Int64(clamping: now - due))
    keeper = scheduler.swiftJobInWords
    self.scheduler = ObjectIdentifier(scheduler)
  }

  /// Notes a coroutine that runs on a scheduler, if it is this one: labels are not unique.
  mutating func note(_ running: CoroutineRuntime.Snapshot.Coroutine, _ scheduler: ObjectIdentifier) {
    if scheduler == self.scheduler, keeper == nil { keeper = running.title }
  }
}

// MARK: - Kinds of waits in words

extension WaitKind {
  /// The kind in one word, for machines.
  var name: String {
    switch self {
    case .start: "start"
    case .nothing: "nothing"
    case .ready: "ready"
    case .callback: "callback"
    case .task: "task"
    case .delay: "delay"
    case .job: "job"
    case .promise: "promise"
    case .children: "children"
    case .select: "select"
    case .blocking: "blocking"
    case .readable: "readable"
    case .writable: "writable"
    case .descriptor: "descriptor"
    case .lock: "lock"
    case .receive: "receive"
    case .send: "send"
    case .permits: "permits"
    case .condition: "condition"
    case .group: "group"
    case .answer: "answer"
    case .decision: "decision"
    case .queue: "queue"
    case .change: "change"
    }
  }

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
    case .descriptor: "for a readable or writable descriptor"
    case .lock: "for a lock"
    case .receive: "to receive"
    case .send: "to send"
    case .permits: "for permits"
    case .condition: "for a condition"
    case .group: "for a count to reach zero"
    case .answer: "for an answer"
    case .decision: "for its supervisor"
    case .queue: "to continue on another queue"
    case .change: "for a change"
    }
  }

  /// The address of the `Inspectable` that a wait of this kind has recorded, if any.
  func sourceAddress(_ number: UInt) -> UInt? {
    switch self {
    case .receive, .change, .send, .lock, .permits, .condition, .group, .select, .job: number
    case .answer: number == 0 ? nil : number
    // The recorded address is that of its completion, the first property of a promise.
    case .promise: number &- UInt(objectHeader)
    default: nil
    }
  }
}

// MARK: - The coroutine of the calling thread

/// The coroutine that runs on the calling thread, for products that label what it does.
package enum RunningCoroutine {
  /// Its number, and its name as reports show it; nil outside a coroutine.
  ///
  /// Never suspends. One thread-local lookup, and a copy of the name.
  package static var label: (id: UInt64, name: String?)? {
    Carrier.current?.pointee.job?.handle._withUnsafeGuaranteedRef {
      ($0.id, $0.nameForReports.map { String(cString: $0.cString) })
    }
  }
  /// The title of the running coroutine, for code of it that changes the title often; nil outside a coroutine.
  ///
  /// Valid until the coroutine ends.
  package static var title: CoroutineTitle? { Carrier.current?.pointee.job?.madeTitle() }
}
