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
// If no worker is idle, and that worker has stalled (Stall.swift), it asks a spare worker (SpareWorkers.swift). A stall
// is reported once, to the handler of CoroutineRuntime.onStall. Only what the thread has used of its processor, or
// slept, counts for a stall (ThreadUse.swift): one that gets no processor has done nothing wrong, and would not be
// helped by one thread more.
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
    var asked: UInt64 = 0
    let mask = withoutDrain()
    let now = Clock.now
    let stalls = CoroutineRuntime.Stall.threshold
    var anyStalled = false
    isNearStall = false
    // The spare workers of this inspection; one more may be added. By index, because `workers + spares` would allocate
    // at each sample.
    let spares = spares
    for index in 0..<workers.count + spares.count {
      let worker = index < workers.count ? workers[index] : spares[index - workers.count]
      if index < workers.count ? mask & (1 << UInt64(index)) != 0 : worker.inbox.isIdle {
        lastSeen[index] = Seen()
        continue
      }
      let last = lastSeen[index]
      // A worker that has read its clock since has looked at its descriptors, or will soon.
      if worker.lastClockRead.load(ordering: .relaxed) == last.lastClockRead {
        worker.ownPoller?._withUnsafeGuaranteedRef { $0.takeForOwner() }
      }
      var seen = Seen(worker, now)
      let thread = (worker.host as? WorkerHost)?.threadID.load(ordering: .relaxed) ?? 0
      // Counted from the first inspection with this `lastClockRead`, which is old if the worker has just got work.
      if last.lastClockRead != 0, seen.lastClockRead == last.lastClockRead {
        (seen.use, seen.suspect, seen.reports) = (last.use, last.suspect, last.reports)
        seen.isCounted = last.isCounted
        if seen.use.isDue(now, stalls) {
          seen.use.sample(thread, now, in: tasks)
          if worker.reportStall(seen.use, of: thread, &seen.suspect, searching: { workers + self.spares }) {
            seen.reports += 1
            // The first one is counted below, also without a handler.
            if seen.reports > 1 { SchedulerRegistry.ended.addShared(to: .stalls) }
          }
        }
      } else {
        seen.use = ThreadUse(of: thread, now)
      }
      let hasStalled = seen.use.total > stalls
      let isSuspected = seen.suspect.map { $0.reported == nil } ?? false
      isNearStall = isNearStall || isSuspected && seen.use.total > stalls / 2
      anyStalled = anyStalled || hasStalled
      if hasStalled, !seen.isCounted {
        seen.isCounted = true
        SchedulerRegistry.ended.addShared(to: .stalls)
      }
      let isRescued = worker.asWorker { $0.isRescued.load(ordering: .relaxed) }
      seen.patience = isRescued ? last.patience &+ 1 : 0
      lastSeen[index] = seen
      guard seen.isStuck(since: last), seen.patience % 8 == 0 else { continue }
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

  /// A worker at one inspection.
  struct Seen {
    /// Whether a ready job, a message, a due timer or a handler waits there that another worker may take.
    var hasWork = false
    /// The time at which the drain last read the clock.
    var lastClockRead: UInt64 = 0
    /// The number of inspections since a worker was asked to take over, while it has not begun.
    var patience = 0
    /// What the thread has done since the first inspection that found the worker busy with this `lastClockRead`.
    var use = ThreadUse()
    /// The coroutine that seems to be stalling the worker.
    var suspect: StallSuspect?
    /// Whether the first stall has been counted.
    var isCounted = false
    /// The number of stalls that were reported.
    var reports = 0

    init() {}

    init(_ worker: Scheduler, _ now: UInt64) {
      hasWork = worker.hasWorkToTakeOver(at: now)
      lastClockRead = worker.lastClockRead.load(ordering: .relaxed)
    }

    /// Whether work has been waiting since the last inspection, and the drain has not read its clock since.
    ///
    /// A drain reads it every few jobs, and by that time has reached everything that waited before.
    func isStuck(since last: Seen) -> Bool { hasWork && last.hasWork && lastClockRead == last.lastClockRead }
  }
}
