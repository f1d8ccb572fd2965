internal import CCoroutine
import Dispatch
import Synchronization

// The shared scheduler: as many lanes as the process may use processors, each a serial queue with a scheduler of its own.
// A job is on one lane at a time; between two suspensions it may be on another.
//
// How work spreads
//   * a launch from outside goes to the lanes in turn,
//   * a lane that has more than one ready job wakes an idle lane, which steals half of them,
//   * a waker takes the job that it wakes to its own lane (Turn.sendRemotely),
//   * a lane whose thefts do not pay rests from stealing for a while (Theft.swift),
//   * the watchdog helps where one job keeps a whole lane from running, and ends rests (Watchdog.swift).
//
//            nothing to do              an offer, or a message of its own
//   BUSY ----------------------> IDLE ------------------------------------> BUSY
//    |                                        a message of its own
//    +----- the same, and its ----> RESTING ------------------------------> BUSY
//           thefts have not paid       | the watchdog: BUSY, looks again
//
// No two ready jobs are left while a lane is IDLE: a lane sets its idle bit and looks at the others' queues after that; a
// pusher appends and looks at the idle bits after that; both through the victim's lock, whose order decides who sees whom.
// (One alone is for its own lane, which takes it when the running one parks, or for the watchdog, where that does not park.)
// While one is RESTING the watchdog runs: a lane sets its resting bit and looks at `watching` after that; the watchdog
// stops watching and looks at the bits after that. Whoever clears a bit, an offer, the watchdog or the lane's own drain,
// then moves the inbox out of `idle`; a lane whose bit is cleared before its inbox is idle sees that after
// (`wasOffered`). The inbox lets one of all start a drain.
//
// Stealing is safe because a job enters a ready queue only when its stack is switched out, and a job in a ready queue has
// no wait that anyone else could end. The thief sets its scheduler under the victim's lock.

@usableFromInline
final class LaneGroup: @unchecked Sendable {
  // Sound because `lanes` is set once, before the group is known to anyone, and the rest is atomic.
  static let shared = LaneGroup(count: Processors.lanes, label: "coroutine.shared")

  @exclusivity(unchecked) private(set) var lanes: [Scheduler] = []
  let idle = Atomic<UInt64>(0)
  /// The lanes that rest from stealing: without a drain, and not to be offered work.
  let resting = Atomic<UInt64>(0)
  /// How often a lane has gone to rest.
  let rests = Atomic<Int>(0)
  private let turnOf = Atomic<Int>(0)
  let watching = Atomic<Bool>(false)
  let watchdog: any DispatchSourceTimer
  // The watchdog's own notes; its queue is serial.
  @exclusivity(unchecked) var lastSeen: [Seen] = []
  @exclusivity(unchecked) var lastRests = 0

  init(count: Int, label: String) {
    let count = min(64, max(1, count))
    watchdog = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "\(label).watchdog"))
    lanes = (0..<count).map { index in
      let queue = DispatchQueue(label: "\(label).\(index)")
      let lane = Scheduler(queue: queue, group: self, immortal: true, index: index)
      SchedulerRegistry.publish(lane, for: queue)
      return lane
    }
    lastSeen = Array(repeating: Seen(), count: count)
    // Every lane begins without a drain, which is what idle means.
    idle.store(count == 64 ? .max : (1 << UInt64(count)) - 1, ordering: .releasing)
    watchdog.setEventHandler { [unowned self] in watch() }
    watchdog.schedule(deadline: .distantFuture)
    watchdog.activate()
  }

  /// Where the next launch from outside goes: to a lane that has nothing, else to the lanes in turn.
  func nextLane() -> Scheduler {
    let turn = (turnOf.wrappingAdd(1, ordering: .relaxed).oldValue & .max) % lanes.count
    let mask = withoutDrain(false)
    return mask == 0 || mask & (1 << UInt64(turn)) != 0 ? lanes[turn] : lanes[mask.trailingZeroBitCount]
  }

  /// A lane has more than it can run at once: wakes one that has nothing.
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
        lanes[index].wasJustOffered.store(true, ordering: .sequentiallyConsistent)
        if lanes[index].inbox.wakeUp() { lanes[index].submit() }
        return
      }
      mask = seen
    }
  }

  /// Called by a lane with nothing to do.
  ///
  /// True: it has got something, or should look again.
  func steal(for thief: Scheduler) -> Bool {
    let index = Int(thief.index)
    // After an offer one job is enough: by the time the thief comes, its lane may have parked and taken the other.
    let isOffered = thief.wasJustOffered.exchange(false, ordering: .sequentiallyConsistent)
    guard thief.theft.pays(at: .now) else {
      rest(index)
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
    for step in 1..<max(2, lanes.count) {
      let victim = lanes[(index + step) % lanes.count]
      guard victim !== thief else { continue }
      var loot = RunQueue()
      let lane = victim.lane
      lane.pointee.lock.lock()
      lane.takeHalf(atLeast: minimum, into: &loot)
      var job = loot.first
      while let current = job {
        current.pointee.scheduler.store(Unmanaged.passUnretained(thief), ordering: .releasing)
        job = current.pointee.next
      }
      lane.pointee.lock.unlock()
      guard !loot.isEmpty else { continue }
      thief.theft.took(loot.count, at: .now)
      thief.lane.keep(&loot)
      return true
    }
    return false
  }

  /// Whether an offer, or the end of its rest, has taken this lane's bit, which was set when it found nothing.
  ///
  /// For a lane that has just gone idle.
  func wasOffered(_ scheduler: Scheduler) -> Bool {
    withoutDrain() & (1 << UInt64(scheduler.index)) == 0
  }

  /// Marks a lane as busy that was woken by a message instead of an offer.
  func markBusy(_ scheduler: Scheduler) {
    guard withoutDrain(false) != 0 else { return }
    let index = Int(scheduler.index)
    _ = notIdle(index)
    _ = endRest(index)
    // It may be about to run one job for long while others sleep.
    startWatching()
  }

  // MARK: Resting

  /// The lanes that have no drain, or are about to have none.
  func withoutDrain(_ isOrdered: Bool = true) -> UInt64 {
    isOrdered
      ? idle.load(ordering: .sequentiallyConsistent) | resting.load(ordering: .sequentiallyConsistent)
      : idle.load(ordering: .relaxed) | resting.load(ordering: .relaxed)
  }

  private func rest(_ index: Int) {
    rests.wrappingAdd(1, ordering: .relaxed)
    _ = resting.bitwiseOr(1 << UInt64(index), ordering: .sequentiallyConsistent)
    startWatching()
  }

  var isSomeoneResting: Bool { resting.load(ordering: .sequentiallyConsistent) != 0 }

  /// Whether the lane was resting: of all who end a rest, one does.
  private func endRest(_ index: Int) -> Bool {
    let bit: UInt64 = 1 << UInt64(index)
    return resting.bitwiseAnd(~bit, ordering: .sequentiallyConsistent).oldValue & bit != 0
  }

  /// Sends lanes that rest to look for work again: all, or one of them as a scout.
  func endRests(ofAll: Bool) {
    var mask = resting.load(ordering: .sequentiallyConsistent)
    while mask != 0 {
      let index = mask.trailingZeroBitCount
      mask &= mask - 1
      guard endRest(index) else { continue }
      // One that has not gone idle yet sees that its bit is gone (wasOffered).
      if lanes[index].inbox.wakeUp() { lanes[index].submit() }
      if !ofAll { return }
    }
  }
}
