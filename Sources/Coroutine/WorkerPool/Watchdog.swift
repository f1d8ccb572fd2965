import Synchronization

// The watchdog of the workers: a thread that inspects them while some worker is busy, or backs off. Every two
// milliseconds, or a little later, if a worker could help or may soon have stalled; every 25 ms if all are busy. It
// continues until no worker has begun a drain for one interval: a worker that is busy for a moment in each millisecond
// would otherwise stop and start it all the time, at three system calls each.
//
// A worker whose current job computes for long, or blocks, cannot run its other work. If ready jobs, messages, due
// timers or handlers that another worker may take wait there in two inspections in a row, and the drain has not read
// its clock in between, the watchdog asks an idle worker to take them over (TakeOver.swift): for each stuck worker
// another one, while there are enough. The events of the worker's descriptors it takes itself, and sends the jobs as
// messages.
//
// If no worker is idle, and that worker has stalled (StallWatch), it asks a spare worker (SpareWorkers.swift). A stall
// is reported once, to the handler of CoroutineRuntime.onStall. Only what the thread has used of its processor, or
// slept, counts for a stall (ThreadUse.swift): a thread that is runnable but not scheduled has not stalled, and
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
    rescueSwiftJobs(anyStalled)
    let backoffs = backoffs.load(ordering: .relaxed)
    endBackoffs(ofAll: backoffs == lastBackoffs)
    lastBackoffs = backoffs
    guard hasToWatch || hasWorked else {
      watching.store(false, ordering: .sequentiallyConsistent)
      // A worker that got work, or backed off, before this store saw `watching` set. So this checks once more for it.
      startWatching()
      return
    }
    guard withoutDrain() == 0, !anyStalled, !isNearStall else { return watchdog.schedule(.soon, for: self) }
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
    isNearStall = false
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
      guard watched[index].isStuck else { continue }
      (helper(&asked) ?? (hasStalled ? spareWorker() : nil))?.askToTakeOver(from: worker)
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

  mutating func look(at worker: Scheduler, isUnchanged: Bool, _ now: UInt64) {
    let hadWork = hasWork
    hasWork = worker.hasWorkToTakeOver(at: now)
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

  // Sound because both are written once, before the first scheduler is there (`applyEnvironment`).

  /// Reports what keeps a thread, if it has stalled; returns whether it has done so.
  nonisolated(unsafe) static var report:
    ((Scheduler, BusyWorker, inout StallWatch.Suspect?, _ homes: () -> [Scheduler]) -> Bool)?
  /// Notes the calling thread for the drain of a queue, and returns its number.
  nonisolated(unsafe) static var queueDrainBegins: ((QueueHost) -> Int32)?
}
