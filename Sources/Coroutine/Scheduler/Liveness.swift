internal import CCoroutine
internal import CCoroutineRuntime
import Synchronization

/// The live jobs and pins of a scheduler, and the anchor that they keep; guarded by `Scheduler.liveLock`.
///
///                the first job or pin: takes the anchor
///     OVER ------------------------------------------------> LIVE
///       ^                                                      |  the last job or pin goes, outside the scheduler's
///       | <----------------------------------------------------+  carrier: the anchor is released at once
///       |                                                      |  on its carrier
///       +---- the drain, before it goes idle: releases it --- ENDING; a handler that is attached here: LIVE
///
/// `AnyJob.goLive` retains a job; `register`, `pin` and `takeAnchorElsewhere` take the anchor.
///
/// Invariants
///  1. `jobs` is the length of the list that begins at `first`, linked by the records' live links, the latest first. A
///     job is in it from its launch to its end, and holds a reference to its object meanwhile.
///  2. If the host releases its anchor, as that of a queue does, `anchor` is set in LIVE and in ENDING. A worker has
///     its anchor for ever. The scheduler of a world, or of a loop of another library, has none: its jobs and its first
///     pin hold it instead.
///  3. `nextListed` and `nextSwept` are nil or in the list. So a dump, and the sweep for dead pages, may leave the lock
///     between any two jobs of its walk.
///  4. `endedBy` is set once. A job that is linked before is in the list that `end` makes; one that is linked later is
///     refused.
struct Liveness {
  /// Whether the host's anchor is released when nothing is live.
  let releasesAnchor: Bool
  var anchor: Anchor?
  private(set) var first: JobRef?
  /// The job at which a dump continues its walk through the live jobs.
  var nextListed: JobRef?
  /// The job at which a sweep continues (DeadPages.swift).
  var nextSwept: JobRef?
  private(set) var jobs = 0
  var pins = 0
  /// The last number that was assigned to a job, and the last one of the reserved block.
  var lastID: UInt64 = 0
  var lastReserved: UInt64 = 0
  /// The error of each job that is launched from now on; nil unless the host has ended.
  var endedBy: (any Error)?
  /// What else an end has to do; empty for a worker while ends are not kept.
  private(set) var duties: EndDuties

  init(anchor: Anchor?, releasesAnchor: Bool) {
    self.anchor = anchor
    self.releasesAnchor = releasesAnchor
    duties = releasesAnchor ? .releasesAnchor : []
  }

  /// Makes each end from now on keep its job for reports (EndedJobs.swift).
  mutating func noteEnds() { duties.insert(.isKept) }

  var isOver: Bool { jobs == 0 && pins == 0 }

  /// Whether the first job or pin has to bring the anchor.
  var needsAnchor: Bool { releasesAnchor && anchor == nil }

  mutating func link(_ job: JobRef) {
    jobs += 1
    job.pointee.previousLive = nil
    job.pointee.nextLive = first
    first?.pointee.previousLive = job
    first = job
  }

  mutating func unlink(_ job: JobRef) {
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      first = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    if nextListed == job { nextListed = job.pointee.nextLive }
    if nextSwept == job { nextSwept = job.pointee.nextLive }
    jobs -= 1
  }
}

/// What the end of a job has to do after the job has left the list.
struct EndDuties: OptionSet {
  let rawValue: UInt8
  /// To release the anchor, if nothing is live any more.
  static let releasesAnchor = EndDuties(rawValue: 1)
  /// To keep the job for reports.
  static let isKept = EndDuties(rawValue: 2)
}

// MARK: - Live jobs, pins and the anchor

// The live jobs of a scheduler, its pins, and its anchor, the object that owns it (Host.swift). An example is a
// Dispatch queue, which its user may release while coroutines wait there. `Liveness` has the states and the invariants.

extension Scheduler {
  // MARK: Jobs

  /// Registers a job at its launch, or when it comes from another scheduler.
  ///
  /// Any thread.
  func register(_ job: JobRef, holding anchor: Anchor?, isLaunch: Bool = false) {
    liveLock.lock()
    if liveness.needsAnchor { liveness.anchor = anchor }
    if job.pointee.label.id == 0 { number(job) }
    job.pointee.home = Unmanaged.passUnretained(self)
    liveness.link(job)
    if isLaunch { counters.add(to: .launched) }
    let isEnded = liveness.endedBy != nil
    liveLock.unlock()
    if isEnded { refuse(job) }
  }

  /// Unregisters a job at its end; without an ending, when it goes to another scheduler.
  func unregister(_ job: JobRef, _ ending: JobEnding? = nil) {
    liveLock.lock()
    liveness.unlink(job)
    if let ending { count(ending) }
    let duties = liveness.duties
    let released = duties.isEmpty ? nil : takeAnchorElsewhere()
    liveLock.unlock()
    if duties.isEmpty { return }
    // Before the anchor is left, which may hold this scheduler.
    if duties.contains(.isKept), let ending { EndedJobs.note(job, ending, of: self) }
    leave(released)
  }

  /// Keeps the jobs that end from now on; any thread.
  func noteEnds() { liveLock.withLock { liveness.noteEnds() } }

  /// Counts an end; called under the lock.
  @inline(__always)
  private func count(_ ending: JobEnding) {
    if ending != .succeeded { counters.add(to: ending == .failed ? .failed : .cancelled) }
    counters.add(to: .ended)
  }

  /// Assigns a number to a job that is not live yet.
  func identify(_ job: JobRef) {
    liveLock.withLock { number(job) }
  }

  /// Assigns the identifier, and the number under which the job owns locks; called under the lock.
  @inline(__always)
  private func number(_ job: JobRef) {
    if liveness.lastID == liveness.lastReserved, hasNumberedInWorld(job) { return }
    liveness.lastID += 1
    job.pointee.label.id = liveness.lastID
    job.pointee.owner.store(OwnerNumber.ofJob(liveness.lastID), ordering: .relaxed)
  }

  /// Reserves numbers; in a simulated world, assigns the next ones instead.
  @inline(never)
  private func hasNumberedInWorld(_ job: JobRef) -> Bool {
    guard let id = host.nextJobID() else {
      (liveness.lastID, liveness.lastReserved) = JobIdentifiers.reserve()
      return false
    }
    // Every world begins with the same identifiers, so that its runs can be compared.
    job.pointee.label.id = id
    job.pointee.owner.store(OwnerNumber.draw(), ordering: .relaxed)
    return true
  }

  /// Appends the live jobs to `jobs`, the latest first.
  ///
  /// Takes a few of them in each critical section, so that launches and ends do not wait for long. A job that is
  /// launched meanwhile may be missing. One call at a time: the caller holds the lock of `LiveJobs`.
  ///
  /// `isWanted`: called under the lock; jobs for which it is false are left out.
  func listLiveJobs(_ jobs: inout [AnyJob], where isWanted: (JobRef) -> Bool = { _ in true }) {
    liveLock.withLock { liveness.nextListed = liveness.first }
    var isOver = false
    while !isOver {
      var some = InlineArray<32, Unmanaged<AnyJob>?>(repeating: nil)
      liveLock.lock()
      var count = 0
      for _ in 0..<Self.mostInspected {
        guard count < some.count, let job = liveness.nextListed else { break }
        if isWanted(job) {
          some[count] = job.handle.retain()
          count += 1
        }
        liveness.nextListed = job.pointee.nextLive
      }
      isOver = liveness.nextListed == nil
      liveLock.unlock()
      for index in 0..<count { if let job = some[index] { jobs.append(job.takeRetainedValue()) } }
    }
  }

  /// Calls `body` with the live jobs, the latest first, under the live lock: `body` takes no lock and runs no foreign
  /// code.
  ///
  /// In parts, and one call at a time, as `listLiveJobs`.
  func visitLiveJobs(_ body: (JobRef) -> Void) {
    liveLock.withLock { liveness.nextListed = liveness.first }
    var isOver = false
    while !isOver {
      liveLock.lock()
      for _ in 0..<32 {
        guard let job = liveness.nextListed else { break }
        let next = job.pointee.nextLive
        if let next { prefetch(job, next) }
        body(job)
        liveness.nextListed = next
      }
      isOver = liveness.nextListed == nil
      liveLock.unlock()
    }
  }

  /// Prefetches the record that a walk comes to some steps after `job`, as if all were as far from each other as
  /// `next` is from `job`.
  ///
  /// The cells of jobs that were launched one after the other often are. Prefetching any other address does no harm.
  @inline(__always)
  private func prefetch(_ job: JobRef, _ next: JobRef) {
    let (here, there) = (UInt(bitPattern: job), UInt(bitPattern: next))
    let guess = here &+ 8 &* (there &- here)
    guard let address = UnsafeRawPointer(bitPattern: guess) else { return }
    cco_prefetch_lines(address, 2)
  }

  /// The most jobs that a walk inspects in one critical section.
  private static var mostInspected: Int { 128 }

  /// The latest live job, and the number of live jobs; under the lock, or on the thread of the scheduler's world.
  var firstLive: JobRef? { liveness.first }
  var liveJobs: Int { liveness.jobs }

  // MARK: Pins

  /// Keeps the queue alive for a user that is not a job, and with it this scheduler.
  ///
  /// Without an anchor the pins themselves hold this scheduler: a job's record does, but a handler has none.
  func pin(_ anchor: @autoclosure () -> Anchor?) {
    liveLock.withLock {
      if liveness.needsAnchor { liveness.anchor = anchor() }
      liveness.pins += 1
      if liveness.pins == 1, isHeldByPins { _ = Unmanaged.passRetained(self) }
    }
  }

  func unpin() {
    liveLock.lock()
    liveness.pins -= 1
    let released = takeAnchorElsewhere()
    let isLast = liveness.pins == 0 && isHeldByPins
    liveLock.unlock()
    leave(released)
    if isLast { Unmanaged.passUnretained(self).release() }
  }

  private var isHeldByPins: Bool { !isImmortal && !liveness.releasesAnchor }

  // MARK: The anchor

  /// Takes the anchor to release it when nothing is live any more, unless on this scheduler's own carrier.
  ///
  /// There, a job's end may still attach a handler, which needs the queue; the drain releases it before it goes idle.
  /// Called under the lock.
  private func takeAnchorElsewhere() -> Anchor? {
    liveness.isOver && liveness.releasesAnchor && !isRunningHere ? liveness.anchor.take() : nil
  }

  /// Releases the anchor outside the scheduler's own carrier, and wakes the drain.
  ///
  /// Otherwise no drain would cancel the host's timer, which holds the queue, which owns the scheduler. The queue's
  /// last reference may also be this scheduler's last, so the scheduler is retained until the wake-up is sent.
  private func leave(_ released: Anchor?) {
    guard let released else { return }
    withExtendedLifetime(released) { sendTimerWakeup() }
  }

  /// Returns whether nothing is live any more, and if so the anchor, to be released last.
  ///
  /// Called by the drain before it goes idle. Always false if the host keeps its anchor.
  func takeAnchorIfOver() -> (isOver: Bool, anchor: Anchor?) {
    guard host.releasesAnchor else { return (false, nil) }
    return liveLock.withLock { liveness.isOver ? (true, liveness.anchor.take()) : (false, nil) }
  }

  /// The anchor, which every live scheduler has.
  var currentAnchor: Anchor? { liveLock.withLock { liveness.anchor } }
  var hasLive: Bool { liveLock.withLock { !liveness.isOver } }
}

/// Assigns identifiers in blocks, so that launches on several processors share no word.
enum JobIdentifiers {
  private static let next = Atomic<UInt64>(0)
  static func reserve() -> (next: UInt64, last: UInt64) {
    let first = next.wrappingAdd(1024, ordering: .relaxed).oldValue
    return (first, first + 1024)
  }
}

// MARK: - The pin of handlers

// Pins for promise handlers. While handlers wait for the scheduler of a queue, or will wait, the scheduler must hold
// its queue, which owns it. (The handlers of a worker are in HandlerQueue.swift.) Most handlers are bound on the
// scheduler's own carrier; these are only counted, in a plain word, and share one pin. The count goes down after the
// handler has run, on the scheduler's own carrier. For a handler that is dropped elsewhere it goes down when the drain
// is idle next, and the drain is woken for that.

extension Scheduler {
  /// Counts a handler that a job or a handler binds on the scheduler's own carrier.
  func bindHandler() {
    boundHandlers += 1
    guard !handlersHoldPin else { return }
    handlersHoldPin = true
    // The running job or handler holds the queue.
    pin(nil)
  }

  /// Records that a bound handler has run or never will.
  ///
  /// Any thread.
  func unbindHandler() {
    if isRunningHere {
      boundHandlers -= 1
      return
    }
    // The drain may release the queue as soon as it has seen the count, and the queue may release this scheduler: a
    // separate reference keeps the scheduler until the wake-up is under way.
    let held = Unmanaged.passRetained(self)
    _ = droppedHandlers.wrappingAdd(1, ordering: .acquiringAndReleasing)
    sendTimerWakeup()
    held.release()
  }

  /// Releases the pin if no bound handler is left; called by the drain when it has nothing to do.
  func unpinHandlers() {
    guard handlersHoldPin else { return }
    boundHandlers -= droppedHandlers.exchange(0, ordering: .acquiringAndReleasing)
    guard boundHandlers == 0 else { return }
    handlersHoldPin = false
    unpin()
  }

  /// Sends a handler, without the inbox if on the scheduler's own carrier.
  ///
  /// It never overtakes the handlers that are in the inbox already.
  func sendInOrder(_ message: Inbox.Message) {
    if let handlers { return sendToWorker(message, handlers) }
    if isRunningHere, !inbox.hasMessages { work.append(message) } else { push(message) }
  }
}

// MARK: - The end of a host

// The end of a scheduler whose host ends before the process does: a loop of another library that is shut down.
//
//   RUNNING -- end(error), under `liveLock`: `endedBy` is set, and the live jobs are listed --> ENDED for ever
//
// Every job is registered under the same lock (Scheduler.register). So exactly one of two cases holds: the job is on
// the list, and is cancelled; or it is registered later, sees `endedBy`, and is refused before it is published, so that
// its body never runs.
//
// The host continues its drains until no job is live: cancelled jobs unwind there, and release what they hold.

extension Scheduler {
  /// Cancels all jobs that are live, and fails all that are launched later, with `error`.
  ///
  /// Any thread; the first error counts. Does not wait.
  func end(_ error: any Error) {
    for job in takeLive(endingWith: error) { job.cancel(error) }
  }

  /// Notes the end, and returns the live jobs.
  ///
  /// The array is allocated outside of the lock, which covers words only.
  private func takeLive(endingWith error: any Error) -> [AnyJob] {
    var jobs: [AnyJob] = []
    while true {
      jobs.reserveCapacity(liveLock.withLock { liveness.jobs })
      let isComplete = liveLock.withLock {
        guard liveness.jobs <= jobs.capacity else { return false }
        if liveness.endedBy == nil { liveness.endedBy = error }
        var next = liveness.first
        while let job = next {
          // The list holds it: a job is unregistered, under this lock, before the runtime releases it.
          jobs.append(job.handle.takeUnretainedValue())
          next = job.pointee.nextLive
        }
        return true
      }
      if isComplete { return jobs }
    }
  }

  /// Makes a job that has just been registered end without running its body.
  func refuse(_ job: JobRef) {
    guard let error = liveLock.withLock({ liveness.endedBy }) else { return }
    job.handle._withUnsafeGuaranteedRef { $0.refuse(error) }
  }

  /// Whether a job that was launched here has not ended, wherever it runs now.
  var hasLiveJobs: Bool { liveLock.withLock { liveness.jobs > 0 } }
}

extension AnyJob {
  /// Makes a job end without running its body.
  ///
  /// Called between its registration and its publication, so that no interrupt is needed. The drain that comes to the
  /// job settles it.
  final func refuse(_ error: any Error) {
    let isFirst = record.setCancelReason(error)
    // Settled here if another thread has set the reason: it may come second, and then leaves that to this one.
    if record.claimCancel(), !isFirst { settleDropped() }
  }
}

// MARK: - All schedulers

/// All schedulers of the process.
enum SchedulerRegistry {
  private static let lock = ThreadLock()
  // Sound because every access is under `lock`. Unretained: a scheduler removes itself in its deinit.
  nonisolated(unsafe) private static var all: [ObjectIdentifier: Entry] = [:]

  /// A scheduler, and its counters, which are in memory as long as the entry exists.
  private struct Entry {
    let scheduler: Unmanaged<Scheduler>
    let counters: CounterWords
  }

  /// The counters of the schedulers that have ended, and of what belongs to no scheduler.
  static let ended = CounterWords()

  private static let environment: Void = cco_apply_environment()

  static func add(_ scheduler: Scheduler) {
    _ = environment
    let entry = Entry(scheduler: .passUnretained(scheduler), counters: scheduler.counters)
    lock.withLock { all[ObjectIdentifier(scheduler)] = entry }
  }

  static func remove(_ scheduler: Scheduler) {
    lock.withLock {
      guard all.removeValue(forKey: ObjectIdentifier(scheduler)) != nil else { return }
      scheduler.counters.add(to: ended)
    }
  }

  /// Returns the sum of each word of all schedulers (Counters.swift).
  static func totals() -> [UInt64] {
    var sums = [UInt64](repeating: 0, count: CounterWords.count)
    lock.withLock {
      // The ends before the launches.
      for range in [2..<CounterWords.count, 1..<2, 0..<1] {
        // In any order: a sum.
        for entry in all.values { entry.counters.add(range, to: &sums) }
        ended.add(range, to: &sums)
      }
    }
    return sums
  }

  /// Counts the switch of an immediate start to its job; `outer` is the calling thread's carrier.
  static func noteStart(on outer: UnsafeMutablePointer<Carrier>?) {
    // The calling thread is in the drain of the outer carrier's scheduler, so it writes the word.
    if let scheduler = outer?.pointee.scheduler {
      scheduler._withUnsafeGuaranteedRef { $0.counters.add(to: .switches) }
    } else {
      ended.addShared(to: .switches)
    }
  }

  /// Calls `body` with every scheduler.
  ///
  /// Outside of the registry's lock, with a reference of its own: a call of a method may retain and release its object.
  /// If the other owners release it in between, that release is the last one, and the deinit takes the lock.
  static func visitAll(_ body: (Scheduler) -> Void) {
    let schedulers: [Scheduler] = lock.withLock {
      // In any order: no scheduler of a world is among those that act on each other.
      all.values.compactMap {
        cco_try_retain($0.scheduler.toOpaque()) ? $0.scheduler.takeRetainedValue() : nil
      }
    }
    schedulers.forEach(body)
  }
}
