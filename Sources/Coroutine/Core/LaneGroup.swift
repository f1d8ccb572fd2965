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
//   * a lane whose one job computes for long keeps the others from running: the watchdog, which runs only while some lane
//     is idle and another busy, looks every 2 ms for ready jobs that nobody gets to.
//
// No ready job is left while a lane sleeps: a lane sets its idle bit and looks at the others' queues after that; a pusher
// appends and looks at the idle bits after that; both through the victim's lock, whose order decides who sees whom.
//
// Stealing is safe because a job enters a ready queue only when its stack is switched out, and a job in a ready queue has
// no wait that anyone else could end. The thief sets its scheduler under the victim's lock.

@usableFromInline
final class LaneGroup: @unchecked Sendable {
  // Sound because `lanes` is set once, before the group is known to anyone, and the rest is atomic.
  static let shared = LaneGroup(count: Processors.lanes, label: "coroutine.shared")

  @exclusivity(unchecked) private(set) var lanes: [Scheduler] = []
  private let idle = Atomic<UInt64>(0)
  private let turnOf = Atomic<Int>(0)
  private let watching = Atomic<Bool>(false)
  private let watchdog: any DispatchSourceTimer
  // The watchdog's own notes; its queue is serial.
  @exclusivity(unchecked) private var lastSeen: [Seen] = []

  init(count: Int, label: String) {
    let count = min(64, max(1, count))
    watchdog = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "\(label).watchdog"))
    lanes = (0..<count).map { index in
      let queue = DispatchQueue(label: "\(label).\(index)")
      let lane = Scheduler(queue: queue, group: self, immortal: true)
      SchedulerRegistry.adopt(lane, for: queue)
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
    let mask = idle.load(ordering: .relaxed)
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
    guard let index = lanes.firstIndex(where: { $0 === thief }) else { return false }
    // After an offer one job is enough: by the time the thief comes, its lane may have parked and taken the other.
    let isOffered = thief.wasJustOffered.exchange(false, ordering: .sequentiallyConsistent)
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
      thief.lane.keep(&loot)
      return true
    }
    return false
  }

  /// Whether an offer has taken this lane's idle bit, which was set when it found nothing.
  ///
  /// For a lane that has just gone idle.
  func wasOffered(_ scheduler: Scheduler) -> Bool {
    guard let index = lanes.firstIndex(where: { $0 === scheduler }) else { return false }
    return idle.load(ordering: .sequentiallyConsistent) & (1 << UInt64(index)) == 0
  }

  /// Marks a lane as busy that was woken by a message instead of an offer.
  func markBusy(_ scheduler: Scheduler) {
    guard hasIdle, let index = lanes.firstIndex(where: { $0 === scheduler }) else { return }
    _ = notIdle(index)
    // It may be about to run one job for long while others sleep.
    startWatching()
  }

  // MARK: The watchdog

  private func startWatching() {
    let mask = idle.load(ordering: .acquiring)
    guard mask.nonzeroBitCount < lanes.count, !watching.exchange(true, ordering: .acquiringAndReleasing) else { return }
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  private func watch() {
    let mask = idle.load(ordering: .acquiring)
    guard mask != 0, mask.nonzeroBitCount < lanes.count else {
      watching.store(false, ordering: .releasing)
      // A lane that went idle while this was being decided saw `watching` set: look once more on its behalf.
      let now = idle.load(ordering: .acquiring)
      if now != 0, now.nonzeroBitCount < lanes.count { startWatching() }
      return
    }
    let now = Clock.now
    for (index, lane) in lanes.enumerated() where mask & (1 << UInt64(index)) == 0 {
      lane.lane.pointee.lock.lock()
      let first = lane.lane.pointee.queue.first ?? lane.lane.pointee.launched.first
      lane.lane.pointee.lock.unlock()
      let seen = Seen(
        ready: first,
        messages: lane.inbox.head.load(ordering: .acquiring),
        timer: lane.nextTimer.load(ordering: .relaxed)
      )
      if seen.isStuck(since: lastSeen[index], now) { rescue(from: lane, now) }
      lastSeen[index] = seen
    }
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  /// What a lane had to do when the watchdog looked.
  private struct Seen {
    var ready: JobRef?
    var messages: UInt = 0
    var timer = UInt64.max

    /// Whether the same thing has been waiting since the last look, which a lane that switches would have got to.
    func isStuck(since last: Seen, _ now: UInt64) -> Bool {
      (ready != nil && ready == last.ready) || (messages > Inbox.idle && messages == last.messages)
        || (timer <= now && timer == last.timer)
    }
  }

  /// Sends what a stuck lane cannot get to, to a lane that is idle: its ready jobs, its due timers, and the jobs in its
  /// inbox whose stacks are switched out.
  ///
  /// Interrupts stay: only the lane that a job is parked on may look at its frames.
  private func rescue(from victim: Scheduler, _ now: UInt64) {
    let mask = idle.load(ordering: .acquiring)
    guard mask != 0 else { return }
    let rescuer = lanes[mask.trailingZeroBitCount]
    if victim.nextTimer.load(ordering: .relaxed) <= now { victim.fireTimers(now) }
    var loot = RunQueue()
    victim.lane.pointee.lock.lock()
    victim.lane.takeHalf(atLeast: 1, into: &loot)
    var job = loot.first
    while let current = job {
      current.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing)
      job = current.pointee.next
    }
    victim.lane.pointee.lock.unlock()
    while let job = loot.popFirst() { rescuer.push(.job(job)) }
    var (jobs, mustStart) = victim.inbox.takeJobs { $0.isSwitchedOut }
    if mustStart { victim.submit() }
    while let job = jobs.popFirst() {
      job.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing)
      rescuer.push(.job(job))
    }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether a job that has been claimed and is in nobody's turn may be resumed anywhere: it has not started, or has left its
  /// stack for good, and its scheduler does not look at its frames.
  ///
  /// A read-modify-write, against `handleInterrupt`.
  var isSwitchedOut: Bool {
    let flags = pointee.flags.bitwiseOr(0, ordering: .acquiringAndReleasing).newValue
    guard flags & (JobFlags.foreign | JobFlags.looking) == 0 else { return false }
    return pointee.context.map { cco_is_parked(&$0.pointee.parked) } ?? true
  }
}
