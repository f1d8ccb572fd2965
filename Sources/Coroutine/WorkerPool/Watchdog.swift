internal import CLinux
import Synchronization

// The watchdog of the workers: a thread that inspects them while some worker is busy, or backs off. Every two
// milliseconds, or a little later, if a worker could help, may soon have stalled, or has not come to its work since the
// look before; every 25 ms if all are busy. It
// continues until no worker has begun a drain for one interval: a worker that is busy for a moment in each millisecond
// would otherwise stop and start it all the time, at three system calls each.
//
// A worker whose current job computes for long, or blocks, cannot run its other work. If ready jobs, messages, due
// timers or handlers that another worker may take wait there in two inspections in a row, and the drain has not read
// its clock in between, the watchdog asks an idle worker to take them over (TakeOver.swift): for each stuck worker
// another one, while there are enough. The events of the worker's descriptors it takes itself, and sends the jobs as
// messages.
//
// If no worker is idle, it asks one that is busy and comes to its work: whose drain has read its clock since the look
// before. Otherwise what was placed on a worker that computes for 50 ms would wait for that, beside a worker that runs
// thousands of jobs meanwhile, and that never steals because it never runs dry. If there is none either, and the worker
// has stalled (StallWatch), it asks a spare worker (below). A stall
// is reported once, to the handler of CoroutineRuntime.onStall. Only what the thread has used of its processor, or
// slept, counts for a stall (ThreadUse): a thread that is runnable but not scheduled has not stalled, and
// a spare worker would not help it.
//
// It also ends back-offs: first of one worker, as a probe, and if no worker has backed off again by the next
// inspection, of all.
//
// The interval. A worker that goes idle while the watchdog is slow could help at once, so it makes the watchdog fast
// (startWatching). The watchdog sets `isSlow`, and reads the idle bits after that. A worker sets its idle bit, and
// reads `isSlow` after that. So one of them sees the other. The watchdog schedules the slow interval before it sets
// `isSlow`, so that the fast interval, scheduled by the thread that clears `isSlow`, replaces it.

extension WorkerPool {
  /// Whether a worker may need help, now or soon, or backs off.
  private var hasToWatch: Bool {
    withoutDrain().nonzeroBitCount < workers.count || isAnyBackingOff || isSpareBusy.load(ordering: .relaxed)
      || isAnythingLeft
  }

  /// Whether a worker without a thread has something that waits for one.
  private var isAnythingLeft: Bool {
    withoutThread.load(ordering: .relaxed) != 0
      && workers.contains { $0.asWorker { $0.isLeft.load(ordering: .relaxed) } }
  }

  func startWatching() {
    guard hasToWatch else { return }
    if watching.exchange(true, ordering: .sequentiallyConsistent) {
      // The load comes first because of its cost: a worker that goes idle does this each time.
      guard isSlow.load(ordering: .sequentiallyConsistent), withoutDrain() != 0,
        isSlow.exchange(false, ordering: .sequentiallyConsistent)
      else { return }
    }
    watchdog.schedule(.soon, for: self)
  }

  func watch() {
    // Cleared before the inboxes are read: a spare worker that gets busy has a message first, and then sets it.
    _ = isSpareBusy.exchange(false, ordering: .acquiringAndReleasing)
    let hasWorked = noteClockReads()
    let anyStalled = inspectAll()
    if spares.contains(where: { !$0.inbox.isIdle }) { isSpareBusy.store(true, ordering: .relaxed) }
    retryThreads(Clock.now)
    let backoffs = backoffs.load(ordering: .relaxed)
    endBackoffs(ofAll: backoffs == lastBackoffs)
    lastBackoffs = backoffs
    guard hasToWatch || hasWorked else {
      watching.store(false, ordering: .sequentiallyConsistent)
      // A worker that got work, or backed off, before this store saw `watching` set. So this checks once more for it.
      startWatching()
      return
    }
    guard withoutDrain() == 0, !anyStalled, !isNearStall, !isAnyLate else {
      return watchdog.schedule(.soon, for: self)
    }
    watchdog.schedule(.later, for: self)
    isSlow.store(true, ordering: .sequentiallyConsistent)
    if withoutDrain() != 0, isSlow.exchange(false, ordering: .sequentiallyConsistent) {
      watchdog.schedule(.soon, for: self)
    }
  }

  /// Whether a worker has read its clock since the last call.
  private func noteClockReads() -> Bool {
    let reads = workers.reduce(0) { $0 &+ $1.lastClockRead.load(ordering: .relaxed) }
    defer { lastClockReads = reads }
    return reads != lastClockReads
  }

  /// Has the work of every stuck worker taken over, and reports stalls; returns whether a worker has stalled.
  ///
  /// Called before back-offs are ended, because the workers that back off can help.
  func inspectAll() -> Bool {
    let (mask, now) = (withoutDrain(), Clock.now)
    var (asked, anyStalled) = (UInt64(0), false)
    (isNearStall, isAnyLate) = (false, false)
    // By index, because `workers + spares` would allocate at each sample. A spare worker may be added meanwhile.
    for index in watched.indices {
      let worker = index < workers.count ? workers[index] : spares[index - workers.count]
      guard index < workers.count ? mask & (1 << UInt64(index)) == 0 : !worker.inbox.isIdle else {
        watched[index] = WatchedWorker()
        continue
      }
      let hasStalled = watched[index].look(at: worker, now, in: tasks) { workers + self.spares }
      isNearStall = isNearStall || watched[index].isNearStall
      anyStalled = anyStalled || hasStalled
      isAnyLate = isAnyLate || watched[index].isLate
      guard watched[index].isStuck else { continue }
      (helper(&asked) ?? lively(&asked) ?? (hasStalled ? spareWorker() : nil))?.askToTakeOver(from: worker)
    }
    return anyStalled
  }

  /// A worker that is idle or, if there is none, one that backs off; one that was not `asked`, if possible.
  func helper(_ asked: inout UInt64) -> Scheduler? {
    let idle = idle.load(ordering: .acquiring)
    let any = idle | backingOff.load(ordering: .acquiring)
    let mask = idle & ~asked != 0 ? idle & ~asked : any & ~asked != 0 ? any & ~asked : any
    guard mask != 0 else { return nil }
    asked |= mask & (0 &- mask)
    return workers[mask.trailingZeroBitCount]
  }
}

extension WorkerPool {
  /// A busy worker that has read its clock since the look before; one that was not `asked`, if possible.
  private func lively(_ asked: inout UInt64) -> Scheduler? {
    var found: Int?
    for index in workers.indices where watched[index].isLively {
      found = index
      if asked & (1 << UInt64(index)) == 0 { break }
    }
    guard let found else { return nil }
    asked |= 1 << UInt64(found)
    return workers[found]
  }
}

// MARK: One worker

/// A worker as the watchdog has seen it; as it was created if the worker is idle.
struct WatchedWorker {
  private var busy: BusyWorker?
  private var stalls = StallWatch()
  private var takeOver = TakeOverWatch()

  /// Looks at a worker whose drain runs; returns whether it has stalled.
  mutating func look(
    at worker: Scheduler,
    _ now: UInt64,
    in tasks: String,
    searching homes: () -> [Scheduler]
  ) -> Bool {
    // A worker that has read its clock since has looked at its descriptors, or will soon.
    if worker.lastClockRead.load(ordering: .relaxed) == busy?.lastClockRead {
      worker.ownPoller?._withUnsafeGuaranteedRef { $0.takeForOwner() }
    }
    let thread = (worker.host as? WorkerHost)?.threadID.load(ordering: .relaxed) ?? 0
    var seen = BusyWorker(worker, on: thread, now, since: busy)
    if !seen.isUnchanged { stalls = StallWatch() }
    if seen.isUnchanged, seen.use.isDue(now, StallReports.threshold.load(ordering: .relaxed)) {
      seen.sample(now, in: tasks)
      stalls.sampled(seen, of: worker, searching: homes)
    }
    busy = seen
    takeOver.look(at: worker, isUnchanged: seen.isUnchanged, now)
    return stalls.countStalls(of: seen)
  }

  /// Whether a worker has to be asked to take over.
  var isStuck: Bool { takeOver.isStuck }

  /// Whether work has waited there since the look before, and the drain has not read its clock.
  var isLate: Bool { takeOver.isLate }

  /// Whether the worker is busy, and had read its clock between the last two looks.
  var isLively: Bool { busy.map { !$0.isUnchanged } ?? false }

  /// Whether the worker may soon have stalled.
  var isNearStall: Bool { busy.map(stalls.isNear) ?? false }
}

/// The thread of a running drain since the drain last read its clock: a worker's, or that of a queue of the program.
struct BusyWorker {
  let lastClockRead: UInt64
  /// The kernel's number of the thread; 0 if it has not begun to run.
  let thread: Int32
  /// What the thread has done since the first look with this `lastClockRead`, which is old if the worker has just got
  /// work.
  private(set) var use: ThreadUse
  /// Whether the drain has not read its clock since the look before.
  private(set) var isUnchanged = false

  /// Looks at a scheduler, for the first time or after `last`.
  init(_ scheduler: Scheduler, on thread: Int32, _ now: UInt64, since last: BusyWorker?) {
    let read = scheduler.lastClockRead.load(ordering: .relaxed)
    if let last, last.lastClockRead == read, last.thread == thread {
      self = last
      isUnchanged = true
    } else {
      (lastClockRead, self.thread, use) = (read, thread, ThreadUse(of: thread, now))
    }
  }

  /// Samples the thread; `tasks` is the directory of the process's threads.
  mutating func sample(_ now: UInt64, in tasks: String) { use.sample(thread, now, in: tasks) }
}

/// Whether a worker has stalled: its thread has been used, or has slept, for longer than the threshold.
struct StallWatch {
  /// The coroutine, or the job of a Task, that seems to be stalling a thread.
  struct Suspect {
    /// Its number; 0 if it was not found, `max` for a Task.
    let id: UInt64
    /// A number that each wait and each yield changes (`stallMark`); for a Task `Scheduler.swiftJobChanges`.
    let mark: UInt64
    /// The time that the thread had been kept when it was found, in ns.
    let total: UInt64
    /// The time that the thread had been kept when the stall was reported, or was last found to go on; nil before.
    var reported: UInt64?
    /// The time that the thread had been kept when the coroutine was first found cancelled; nil before, and `max` once
    /// that was reported as well.
    var cancelled: UInt64?
  }

  private var suspect: Suspect?
  private var reports = 0
  private var counted = 0

  /// Has what keeps the thread reported; called after each sample.
  ///
  /// `homes` are the schedulers in whose lists the coroutine may be.
  mutating func sampled(_ busy: BusyWorker, of scheduler: Scheduler, searching homes: () -> [Scheduler]) {
    if StallReports.report?(scheduler, busy, &suspect, homes) ?? false { reports += 1 }
  }

  /// Counts what was not counted before: each report, and the first stall without a handler too; returns whether the
  /// worker has stalled.
  mutating func countStalls(of busy: BusyWorker) -> Bool {
    let hasStalled = busy.use.total > StallReports.threshold.load(ordering: .relaxed)
    let stalls = max(reports, hasStalled ? 1 : 0)
    if stalls > counted { SchedulerRegistry.ended.addShared(UInt64(stalls - counted), to: .stalls) }
    counted = stalls
    return hasStalled
  }

  /// Whether a stall may soon be reported.
  func isNear(_ busy: BusyWorker) -> Bool {
    guard let suspect, suspect.reported == nil else { return false }
    return busy.use.total > StallReports.threshold.load(ordering: .relaxed) / 2
  }
}

/// Whether another worker has to be asked to take over what a worker does not reach.
///
/// Work has been waiting at two looks in a row, and the drain has not read its clock in between: it reads it every few
/// jobs, and by that time has reached everything that waited before.
struct TakeOverWatch {
  /// Whether a ready job, a message, a due timer or a handler waits there that another worker may take.
  private var hasWork = false
  /// The number of looks since a worker was asked to take over, while it has not begun.
  private var patience = 0
  private(set) var isStuck = false
  /// Whether there is such work, and the drain has not read its clock since the look before.
  private(set) var isLate = false

  mutating func look(at worker: Scheduler, isUnchanged: Bool, _ now: UInt64) {
    let hadWork = hasWork
    hasWork = worker.hasWorkToTakeOver(at: now)
    isLate = isUnchanged && hasWork
    patience = worker.asWorker { $0.isRescued.load(ordering: .relaxed) } ? patience &+ 1 : 0
    isStuck = isUnchanged && hadWork && hasWork && patience % 8 == 0
  }
}

/// The threshold of stalls, and what reports them (Inspect/Stalls.swift), which the kernel does not name.
enum StallReports {
  /// The time after which a worker counts as stalled, in ns.
  static let threshold = Atomic<UInt64>(100_000_000)
  /// Whether the drains of queues say on which thread they run.
  static let watchQueues = Atomic<Bool>(false)
  /// The time after which a coroutine that goes on in spite of its cancellation is reported, in ns.
  static let patienceWithCancelled = Atomic<UInt64>(10_000_000_000)

  // Sound because they are written once, before the first scheduler is there (`applyEnvironment`).

  /// Reports what keeps a thread, if it has stalled; returns whether it has done so.
  nonisolated(unsafe) static var report:
    ((Scheduler, BusyWorker, inout StallWatch.Suspect?, _ homes: () -> [Scheduler]) -> Bool)?
  /// Notes the calling thread for the drain of a queue, and returns its number.
  nonisolated(unsafe) static var queueDrainBegins: ((QueueHost) -> Int32)?
  /// Says that a stalled worker needs a spare one, and that all, as many as given, are taken.
  nonisolated(unsafe) static var sparesAreTaken: ((Int) -> Void)?
}

// MARK: - Its thread

// The thread that inspects the workers of a pool. It sleeps on a word between two inspections
// (ThreadWords.swift). A timer source of Dispatch would make a dozen system calls on three threads for each
// inspection: 0.2 calls a request of a server with one busy connection. It also needs a free descriptor when it is
// first set.
//
// The thread starts with the first inspection that is scheduled, and lives as long as the pool, for ever.

final class WatchdogThread: Sendable {
  private let word = WatchdogWord()

  /// Makes the pool's next inspection begin after `time`; the last call counts.
  ///
  /// Any thread.
  func schedule(_ time: WatchdogWord.Time, for pool: WorkerPool) {
    switch word.schedule(time) {
    case .nothing: break
    case .wake: word.wake()
    case .start:
      let code = WorkerHost.startThread({ WatchdogThread.main($0) }, Unmanaged.passUnretained(pool).toOpaque())
      guard code != 0 else { return }
      // Done without: nothing is taken over meanwhile. The next worker that goes idle tries again.
      word.withdraw()
      pool.watching.store(false, ordering: .sequentiallyConsistent)
    }
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    // Not by an implicit conversion, which allocates: the thread may begin where there is no memory.
    "co-watchdog".withCString { clinux_name_thread($0) }
    let pool = Unmanaged<WorkerPool>.fromOpaque(argument).takeUnretainedValue()
    pool.watchdog.serve(pool)
  }

  private func serve(_ pool: WorkerPool) -> Never {
    while true {
      let time = word.scheduled()
      guard let time else {
        word.sleep(nil, atMost: 0)
        continue
      }
      let end = Clock.now + time.nanoseconds
      while word.scheduled() == time, case let now = Clock.now, now < end { word.sleep(time, atMost: end - now) }
      guard word.begin(time) else { continue }
      pool.watch()
      word.end()
    }
  }
}

extension WatchdogWord.Time {
  fileprivate var nanoseconds: UInt64 { self == .soon ? 2_000_000 : 25_000_000 }
}

// MARK: - Spare workers

// Spare workers. If every worker of the pool is busy with a job that computes for long, or that blocks its thread, the
// other jobs of those workers would wait for these jobs to end. Two blocking calls on two processors would stop a
// server. A spare worker takes those jobs over. It differs from the other workers in three ways:
//
// - Only the watchdog gives it work. It has no idle bit, so no worker offers it work, and it does not steal.
// - A job that it has resumed once may return to it, by a wake-up from outside the pool.
// - Without work it sleeps, and is reused before a new one is created. After ten seconds without work its thread ends,
//   and the next work starts another one (ThreadWords.swift). Its scheduler stays, and so do the coroutines that are
//   parked there.
//
// Their number is limited because each thread costs some ten kilobytes of memory. A process that blocks more threads
// should use co_blocking, whose limit can be set.

extension WorkerPool {
  /// The largest number of spare workers.
  private static var most: Int { 64 }

  /// Returns a spare worker without work, one that goes on, or a new one; nil at the limit.
  ///
  /// Called by the watchdog only.
  func spareWorker() -> Scheduler? {
    if let free = spares.first(where: { $0.inbox.isIdle }) {
      lacksSpares = false
      return free
    }
    // As many compute as there are workers, and ready jobs wait: further threads would only take turns with these.
    let isLively = { (index: Int) in self.watched[self.workers.count + index].isLively }
    if spares.indices.count(where: isLively) >= workers.count, let index = spares.indices.first(where: isLively) {
      return spares[index]
    }
    // One that has got no thread is tried again at each inspection; another one would get none either, or all at once.
    if spares.contains(where: { $0.asWorker { $0.isLeft.load(ordering: .relaxed) } }) { return nil }
    guard spares.count < Self.most else {
      if !lacksSpares {
        SchedulerRegistry.ended.addShared(to: .spareShortages)
        StallReports.sparesAreTaken?(spares.count)
      }
      lacksSpares = true
      return nil
    }
    let index = workers.count + spares.count
    let made = WorkerHost.makeScheduler("\(label).spare.\(spares.count)", self, index, rest: spareRest)
    spares.append(made)
    SchedulerRegistry.ended.addShared(to: .spareWorkers)
    watched.append(WatchedWorker())
    return made
  }
}

// MARK: - The time for which a thread is kept

// The time for which a coroutine has kept a worker's thread. Wall time would be wrong: on a machine with more threads
// than processors, a runnable thread may wait for a processor for longer than a stall lasts. So the watchdog counts two
// kinds of time, and not the third:
//
//   processor    the processor time of the thread, by its clock
//   asleep       the time for which it has slept in the kernel: in a system call, or for a page of memory
//   not counted  the thread was runnable without a processor, or the process was stopped
//
// The time between two samples counts as asleep if the thread is asleep at its end, and one of two conditions holds. It
// has used no processor time, so it was never awake. Or it was asleep at the beginning too, as in a loop of short
// sleeps; then the time is exact except for waits for a processor.
//
// The kernel does not report a thread that waits for a processor as asleep, so such time never counts. The time between
// two samples counts as at most `most`, because a process that is stopped, or a suspended machine, stops the watchdog
// too.
//
// If the kernel does not say whether a thread sleeps, because /proc is missing, a thread whose clock has not advanced
// counts as asleep for a tenth of the time. If the clock cannot be read, the thread counts as computing for a tenth of
// the time. A thread that only waits for a processor gets one now and then, and its worker then reads the clock. So a
// blocking call is noticed late in this case, and a coroutine is hardly ever blamed wrongly.
//
// Costs, for a worker that has not read its clock since the last inspection: one system call to read the thread's
// clock. Sixteen times in a threshold, if the thread has used its processor only partly, three more calls.

struct ThreadUse {
  /// The processor time since the beginning, in ns.
  private(set) var processor: UInt64 = 0
  /// The time that the thread has slept since the beginning, in ns.
  private(set) var asleep: UInt64 = 0
  /// The time of the last sample.
  private(set) var lastSample: UInt64 = 0
  /// The thread's clock then; negative if it could not be read.
  private var lastClock: Int64 = -1
  /// A system call, or a `clinux_thread_state`, at the last sample.
  private(set) var call = CLINUX_THREAD_RUNS.rawValue

  /// The most that the time between two samples counts, in ns: twice the longest time between two inspections.
  private static var most: UInt64 { 50_000_000 }
  /// The number of samples in the time after which a coroutine has stalled a worker.
  static var samples: UInt64 { 16 }

  /// The time that the coroutine has kept the thread, in ns.
  var total: UInt64 { processor + asleep }

  init() {}

  /// Begins at `now`.
  ///
  /// `thread` is 0 if the thread has not begun to run.
  init(of thread: Int32, _ now: UInt64) {
    lastSample = now
    if thread != 0 { lastClock = clinux_thread_time(thread) }
  }

  /// Whether it is time for the next sample; `threshold` is the time after which a coroutine has stalled a worker.
  func isDue(_ now: UInt64, _ threshold: UInt64) -> Bool {
    now > lastSample && now - lastSample >= threshold / Self.samples
  }

  /// Samples the thread; `tasks` is the directory of the process's threads.
  mutating func sample(_ thread: Int32, _ now: UInt64, in tasks: String) {
    let time = now - lastSample
    let counted = min(time, Self.most)
    let clock = thread == 0 ? -1 : clinux_thread_time(thread)
    let used = Self.used(from: lastClock, to: clock, counted)
    let wasAsleep = isAsleep
    (lastSample, lastClock) = (now, clock)
    guard thread != 0 else { return }
    processor += used
    // A thread that runs all the time is not worth the call.
    call = used > time / 8 * 7 ? CLINUX_THREAD_RUNS.rawValue : clinux_thread_call(tasks, thread)
    if call == CLINUX_THREAD_UNKNOWN.rawValue {
      if used == 0 { asleep += counted / 10 }
    } else if isAsleep, used == 0 || wasAsleep, counted > used {
      asleep += counted - used
    }
  }

  /// The processor time between two readings of the thread's clock; a tenth of the time if the clock cannot be read.
  private static func used(from first: Int64, to last: Int64, _ time: UInt64) -> UInt64 {
    guard last >= 0 else { return time / 10 }
    return first < 0 ? 0 : UInt64(max(0, last - first))
  }

  private var isAsleep: Bool { call >= 0 || call == CLINUX_THREAD_SLEEPS.rawValue }
}
