internal import CCoroutine
import Dispatch
import Synchronization

// The shared scheduler: as many workers as the process may use processors, each a serial queue with a scheduler of its own.
// A job is on one worker at a time; between two suspensions it may be on another.
//
// How work spreads
//   * a launch from outside goes to the workers in turn,
//   * a worker that has more than one ready job wakes an idle worker, which steals half of them,
//   * a waker takes the job that it wakes to its own worker (Carrier.sendRemotely),
//   * a worker whose thefts do not pay rests from stealing for a while (StealBackoff.swift),
//   * the watchdog helps where one job keeps a whole worker from running, and ends rests (Watchdog.swift).
//
//            nothing to do              an offer, or a message of its own
//   BUSY ----------------------> IDLE ------------------------------------> BUSY
//    |                                        a message of its own
//    +----- the same, and its ----> RESTING ------------------------------> BUSY
//           thefts have not paid       | the watchdog: BUSY, looks again
//
// No two ready jobs are left while a worker is IDLE: a worker sets its idle bit and looks at the others' queues after that; a
// pusher appends and looks at the idle bits after that; both through the victim's lock, whose order decides who sees whom.
// (One alone is for its own worker, which takes it when the running one parks, or for the watchdog, where that does not park.)
// While one is RESTING the watchdog runs: a worker sets its resting bit and looks at `watching` after that; the watchdog
// stops watching and looks at the bits after that. Whoever clears a bit, an offer, the watchdog or the worker's own drain,
// then moves the inbox out of `idle`; a worker whose bit is cleared before its inbox is idle sees that after
// (`wasOffered`). The inbox lets one of all start a drain.
//
// Stealing is safe because a job enters a ready queue only when its stack is switched out, and a job in a ready queue has
// no wait that anyone else could end. The thief sets its scheduler under the victim's lock.

@usableFromInline
final class WorkerPool: @unchecked Sendable {
  // Sound because `workers` is set once, before the group is known to anyone, and the rest is atomic.
  static let shared = WorkerPool(count: Processors.workers, label: "coroutine.shared")

  @exclusivity(unchecked) private(set) var workers: [Scheduler] = []
  let idle = Atomic<UInt64>(0)
  /// The workers that rest from stealing: without a drain, and not to be offered work.
  let backingOff = Atomic<UInt64>(0)
  /// How often a worker has gone to rest.
  let backoffs = Atomic<Int>(0)
  private let turnOf = Atomic<Int>(0)
  let watching = Atomic<Bool>(false)
  let watchdog: any DispatchSourceTimer
  // The watchdog's own notes; its queue is serial.
  @exclusivity(unchecked) var lastSeen: [Seen] = []
  @exclusivity(unchecked) var lastBackoffs = 0

  init(count: Int, label: String) {
    let count = min(64, max(1, count))
    watchdog = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "\(label).watchdog"))
    workers = (0..<count).map { index in
      let queue = DispatchQueue(label: "\(label).\(index)")
      return QueueHost.makePermanent(queue, self, index)
    }
    lastSeen = Array(repeating: Seen(), count: count)
    // Every worker begins without a drain, which is what idle means.
    idle.store(count == 64 ? .max : (1 << UInt64(count)) - 1, ordering: .releasing)
    watchdog.setEventHandler { [unowned self] in watch() }
    watchdog.schedule(deadline: .distantFuture)
    watchdog.activate()
  }

  /// Where the next launch from outside goes: to a worker that has nothing, else to the workers in turn.
  func nextWorker() -> Scheduler {
    let turn = (turnOf.wrappingAdd(1, ordering: .relaxed).oldValue & .max) % workers.count
    let mask = withoutDrain(false)
    return mask == 0 || mask & (1 << UInt64(turn)) != 0 ? workers[turn] : workers[mask.trailingZeroBitCount]
  }

  /// A worker has more than it can run at once: wakes one that has nothing.
  @inlinable @inline(__always)
  func offerWork() {
    if hasIdle { wakeOne() }
  }

  @usableFromInline var hasIdle: Bool { idle.load(ordering: .relaxed) != 0 }

  @usableFromInline @inline(never)
  func wakeOne() {
    var mask = idle.load(ordering: .acquiring)
    while mask != 0 {
      let index = mask.trailingZeroBitCount
      let (won, seen) = idle.compareExchange(
        expected: mask,
        desired: mask & ~(1 << UInt64(index)),
        ordering: .sequentiallyConsistent
      )
      if won {
        workers[index].wasJustOffered.store(true, ordering: .sequentiallyConsistent)
        if workers[index].inbox.wakeUp() { workers[index].submit() }
        return
      }
      mask = seen
    }
  }

  /// Called by a worker with nothing to do.
  ///
  /// True: it has got something, or should look again.
  func steal(for thief: Scheduler) -> Bool {
    let index = Int(thief.index)
    // After an offer one job is enough: by the time the thief comes, its worker may have parked and taken the other.
    let isOffered = thief.wasJustOffered.exchange(false, ordering: .sequentiallyConsistent)
    guard thief.stealBackoff.pays(at: .now) else {
      backOff(index)
      return false
    }
    if takeHalf(for: thief, index, atLeast: isOffered ? 1 : 2) { return notIdle(index) }
    _ = idle.bitwiseOr(1 << UInt64(index), ordering: .sequentiallyConsistent)
    // Again, now that pushers can see the bit.
    if takeHalf(for: thief, index, atLeast: 2) { return notIdle(index) }
    startWatching()
    return false
  }

  private func notIdle(_ index: Int) -> Bool {
    _ = idle.bitwiseAnd(~(1 << UInt64(index)), ordering: .sequentiallyConsistent)
    return true
  }

  private func takeHalf(for thief: Scheduler, _ index: Int, atLeast minimum: Int) -> Bool {
    for step in 1..<max(2, workers.count) {
      let victim = workers[(index + step) % workers.count]
      guard victim !== thief else { continue }
      var stolen = JobQueue()
      let worker = victim.readyQueue
      worker.pointee.lock.lock()
      worker.takeHalf(atLeast: minimum, into: &stolen)
      var job = stolen.first
      while let current = job {
        current.pointee.scheduler.store(Unmanaged.passUnretained(thief), ordering: .releasing)
        job = current.pointee.next
      }
      worker.pointee.lock.unlock()
      guard !stolen.isEmpty else { continue }
      thief.stealBackoff.took(stolen.count, at: .now)
      thief.readyQueue.keep(&stolen)
      return true
    }
    return false
  }

  /// Whether an offer, or the end of its rest, has taken this worker's bit, which was set when it found nothing.
  ///
  /// For a worker that has just gone idle.
  func wasOffered(_ scheduler: Scheduler) -> Bool {
    withoutDrain() & (1 << UInt64(scheduler.index)) == 0
  }

  /// Marks a worker as busy that was woken by a message instead of an offer.
  func markBusy(_ scheduler: Scheduler) {
    guard withoutDrain(false) != 0 else { return }
    let index = Int(scheduler.index)
    _ = notIdle(index)
    _ = endBackoff(index)
    // It may be about to run one job for long while others sleep.
    startWatching()
  }

  // MARK: Resting

  /// The workers that have no drain, or are about to have none.
  func withoutDrain(_ isOrdered: Bool = true) -> UInt64 {
    isOrdered
      ? idle.load(ordering: .sequentiallyConsistent) | backingOff.load(ordering: .sequentiallyConsistent)
      : idle.load(ordering: .relaxed) | backingOff.load(ordering: .relaxed)
  }

  private func backOff(_ index: Int) {
    backoffs.wrappingAdd(1, ordering: .relaxed)
    _ = backingOff.bitwiseOr(1 << UInt64(index), ordering: .sequentiallyConsistent)
    startWatching()
  }

  var isAnyBackingOff: Bool { backingOff.load(ordering: .sequentiallyConsistent) != 0 }

  /// Whether the worker was resting: of all who end a rest, one does.
  private func endBackoff(_ index: Int) -> Bool {
    let bit: UInt64 = 1 << UInt64(index)
    return backingOff.bitwiseAnd(~bit, ordering: .sequentiallyConsistent).oldValue & bit != 0
  }

  /// Sends workers that rest to look for work again: all, or one of them as a scout.
  func endBackoffs(ofAll: Bool) {
    var mask = backingOff.load(ordering: .sequentiallyConsistent)
    while mask != 0 {
      let index = mask.trailingZeroBitCount
      mask &= mask - 1
      guard endBackoff(index) else { continue }
      // One that has not gone idle yet sees that its bit is gone (wasOffered).
      if workers[index].inbox.wakeUp() { workers[index].submit() }
      if !ofAll { return }
    }
  }
}
