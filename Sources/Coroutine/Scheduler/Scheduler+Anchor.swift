internal import CCoroutine
import Synchronization

// The live jobs of a scheduler, its pins, and its anchor, the object that owns it (Host.swift): a Dispatch queue for
// instance, which its user may release while coroutines wait there.
//
// Invariant. While any job or handler of it is live, a scheduler holds its anchor. If the host releases its anchor,
// `anchor` is set only then.

extension Scheduler {
  /// Registers a job at its launch.
  ///
  /// Any thread.
  func register(_ job: JobRef, holding anchor: @autoclosure () -> Anchor?) {
    liveLock.lock()
    if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
    liveJobs += 1
    if job.pointee.label.id == 0 { number(job) }
    job.pointee.home = Unmanaged.passUnretained(self)
    job.pointee.previousLive = nil
    job.pointee.nextLive = firstLive
    firstLive?.pointee.previousLive = job
    firstLive = job
    let isEnded = endedBy != nil
    liveLock.unlock()
    if isEnded { refuse(job) }
  }

  /// Appends the live jobs to `jobs`, the latest first.
  ///
  /// Takes a few of them in each critical section, so that launches and ends are not kept waiting. A job that comes
  /// meanwhile may be missing. One call at a time: the caller holds the lock of `Dump`.
  func listLiveJobs(_ jobs: inout [AnyJob]) {
    liveLock.withLock { nextListed = firstLive }
    var isOver = false
    while !isOver {
      var some = InlineArray<32, Unmanaged<AnyJob>?>(repeating: nil)
      liveLock.lock()
      for index in some.indices {
        guard let job = nextListed else { break }
        some[index] = job.handle.retain()
        nextListed = job.pointee.nextLive
      }
      isOver = nextListed == nil
      liveLock.unlock()
      for index in some.indices { if let job = some[index] { jobs.append(job.takeRetainedValue()) } }
    }
  }

  /// Assigns a number to a job that is not live yet.
  func identify(_ job: JobRef) {
    liveLock.withLock { number(job) }
  }

  /// Assigns the identifier, and the number under which the job owns locks; called under the lock.
  @inline(__always)
  private func number(_ job: JobRef) {
    if nextID == lastID, hasNumberedInWorld(job) { return }
    nextID += 1
    job.pointee.label.id = nextID
    job.pointee.owner.store(OwnerNumber.ofJob(nextID), ordering: .relaxed)
  }

  /// Reserves numbers; in a simulated world, assigns the next ones instead.
  @inline(never)
  private func hasNumberedInWorld(_ job: JobRef) -> Bool {
    guard let id = host.nextJobID() else {
      (nextID, lastID) = JobIdentifiers.reserve()
      return false
    }
    // Every world begins with the same identifiers, so that its runs can be compared.
    job.pointee.label.id = id
    job.pointee.owner.store(OwnerNumber.draw(), ordering: .relaxed)
    return true
  }

  /// Unregisters a job at its end.
  func unregister(_ job: JobRef) {
    liveLock.lock()
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      firstLive = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    if nextListed == job { nextListed = job.pointee.nextLive }
    liveJobs -= 1
    let released = takeAnchorElsewhere()
    liveLock.unlock()
    leave(released)
  }

  /// Keeps the queue alive for a user that is not a job, and with it this scheduler.
  ///
  /// Without an anchor the pins themselves hold this scheduler: a job's record does, but a handler has none.
  func pin(_ anchor: @autoclosure () -> Anchor?) {
    liveLock.withLock {
      if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
      livePins += 1
      if livePins == 1, isHeldByPins { _ = Unmanaged.passRetained(self) }
    }
  }

  func unpin() {
    liveLock.lock()
    livePins -= 1
    let released = takeAnchorElsewhere()
    let isLast = livePins == 0 && isHeldByPins
    liveLock.unlock()
    leave(released)
    if isLast { Unmanaged.passUnretained(self).release() }
  }

  private var isHeldByPins: Bool { !isImmortal && !host.releasesAnchor }

  /// Takes the anchor to release it when nothing is live any more, unless on this scheduler's own carrier.
  ///
  /// There, a job's end may still attach a handler, which needs the queue; the drain releases it before it goes idle.
  /// Called under the lock.
  private func takeAnchorElsewhere() -> Anchor? {
    liveJobs == 0 && livePins == 0 && host.releasesAnchor && !isOwnTurn ? anchor.take() : nil
  }

  /// Releases the anchor outside the scheduler's own carrier, and wakes the drain.
  ///
  /// Without that no drain would cancel the host's timer, which holds the queue, which owns the scheduler. The queue's
  /// last reference may also be this scheduler's last, so it is retained until the wake-up is under way.
  private func leave(_ released: Anchor?) {
    guard let released else { return }
    withExtendedLifetime(released) { sendTimerWakeup() }
  }

  /// Returns whether nothing is live any more, and if so the anchor, to be released last.
  ///
  /// Called by the drain before it goes idle. Always false if the host keeps its anchor.
  func takeAnchorIfOver() -> (isOver: Bool, anchor: Anchor?) {
    guard host.releasesAnchor else { return (false, nil) }
    return liveLock.withLock { liveJobs == 0 && livePins == 0 ? (true, anchor.take()) : (false, nil) }
  }

  /// The anchor, which every live scheduler has.
  var currentAnchor: Anchor? { liveLock.withLock { anchor } }
  var hasLive: Bool { liveLock.withLock { liveJobs + livePins > 0 } }
}

/// Assigns identifiers in blocks, so that launches on several processors share no word.
enum JobIdentifiers {
  private static let next = Atomic<UInt64>(0)
  static func reserve() -> (next: UInt64, last: UInt64) {
    let first = next.wrappingAdd(1024, ordering: .relaxed).oldValue
    return (first, first + 1024)
  }
}
