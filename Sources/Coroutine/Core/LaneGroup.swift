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
  static let shared = LaneGroup(count: Processors.usable, label: "coroutine.shared")

  @exclusivity(unchecked) private(set) var lanes: [Scheduler] = []
  private let idle = Atomic<UInt64>(0)
  private let turnOf = Atomic<Int>(0)
  private let watching = Atomic<Bool>(false)
  private let watchdog: any DispatchSourceTimer
  // The watchdog's own notes; its queue is serial.
  @exclusivity(unchecked) private var lastSeen: [JobRef?] = []

  init(count: Int, label: String) {
    let count = min(64, max(1, count))
    watchdog = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "\(label).watchdog"))
    lanes = (0..<count).map { index in
      let queue = DispatchQueue(label: "\(label).\(index)")
      let lane = Scheduler(queue: queue, group: self, immortal: true)
      SchedulerRegistry.adopt(lane, for: queue)
      return lane
    }
    lastSeen = Array(repeating: nil, count: count)
    // Every lane begins without a drain, which is what idle means.
    idle.store(count == 64 ? .max : (1 << UInt64(count)) - 1, ordering: .releasing)
    watchdog.setEventHandler { [unowned self] in watch() }
    watchdog.schedule(deadline: .distantFuture)
    watchdog.activate()
  }

  /// Where the next launch from outside goes.
  func nextLane() -> Scheduler {
    lanes[(turnOf.wrappingAdd(1, ordering: .relaxed).oldValue & .max) % lanes.count]
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
        expected: mask, desired: mask & ~(1 << UInt64(index)), ordering: .acquiringAndReleasing)
      if won {
        if lanes[index].inbox.wakeUp() { lanes[index].submit() }
        return
      }
      mask = seen
    }
  }

  /// Called by a lane with nothing to do. True: it has got something, or should look again.
  func steal(for thief: Scheduler) -> Bool {
    guard let index = lanes.firstIndex(where: { $0 === thief }) else { return false }
    if takeHalf(for: thief, index, atLeast: 2) { return notIdle(index) }
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
      let count = lane.pointee.queue.count
      if count >= minimum { lane.pointee.queue.move((count + 1) / 2, to: &loot) }
      var job = loot.first
      while let current = job {
        current.pointee.scheduler.store(Unmanaged.passUnretained(thief), ordering: .releasing)
        job = current.pointee.next
      }
      lane.pointee.lock.unlock()
      guard !loot.isEmpty else { continue }
      while let job = loot.popFirst() { thief.lane.append(job) }
      return true
    }
    return false
  }

  // MARK: The watchdog

  /// Marks a lane as busy that was woken by a message instead of an offer.
  func markBusy(_ scheduler: Scheduler) {
    guard hasIdle, let index = lanes.firstIndex(where: { $0 === scheduler }) else { return }
    _ = notIdle(index)
  }

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
    for (index, lane) in lanes.enumerated() where mask & (1 << UInt64(index)) == 0 {
      lane.lane.pointee.lock.lock()
      let first = lane.lane.pointee.queue.first
      lane.lane.pointee.lock.unlock()
      if let first, first == lastSeen[index] { rescue(from: lane) }
      lastSeen[index] = first
    }
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  /// Sends a stuck lane's ready jobs to a lane that is idle.
  private func rescue(from victim: Scheduler) {
    let mask = idle.load(ordering: .acquiring)
    guard mask != 0 else { return }
    let rescuer = lanes[mask.trailingZeroBitCount]
    var loot = RunQueue()
    victim.lane.pointee.lock.lock()
    victim.lane.pointee.queue.move((victim.lane.pointee.queue.count + 1) / 2, to: &loot)
    var job = loot.first
    while let current = job {
      current.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing)
      job = current.pointee.next
    }
    victim.lane.pointee.lock.unlock()
    while let job = loot.popFirst() { rescuer.push(.job(job)) }
  }
}
