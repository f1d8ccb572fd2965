internal import CCoroutine
import Synchronization

// The live jobs of a scheduler, its pins, and its anchor, the object that owns it (Host.swift). An example is a
// Dispatch queue, which its user may release while coroutines wait there. Liveness.swift has the states and the
// invariants.

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
    let released = takeAnchorElsewhere()
    liveLock.unlock()
    leave(released)
  }

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
