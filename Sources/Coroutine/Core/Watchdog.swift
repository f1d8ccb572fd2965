internal import CCoroutine
import Dispatch
import Synchronization

// What looks after the lanes from outside: a timer that goes off every two milliseconds, or a little later, while some lane
// has nothing to do and another has, or some lane rests. A lane whose one job computes for long keeps the others from
// running: what waits there at two looks in a row, ready jobs, messages and timers, goes to a lane that has nothing to do.
// Cancellation of jobs that are parked there is seen to by the watchdog itself (Interrupt.swift). Handlers that are bound to that
// lane are run, in their order, by the other one (HandlerQueue.swift).
// And lanes that rest from stealing are sent to look again: one as a scout, and if none has come back to rest by the next
// time, all of them.

extension LaneGroup {
  /// Whether there is a lane that could help, and one that may need it, or one that rests.
  private var hasToWatch: Bool {
    let mask = withoutDrain()
    return mask != 0 && mask.nonzeroBitCount < lanes.count || isSomeoneResting
  }

  func startWatching() {
    guard hasToWatch, !watching.exchange(true, ordering: .sequentiallyConsistent) else { return }
    FirstTimer.shared.ensure()
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  func watch() {
    rescueFromAll()
    let rests = rests.load(ordering: .relaxed)
    endRests(ofAll: rests == lastRests)
    lastRests = rests
    guard hasToWatch else {
      watching.store(false, ordering: .sequentiallyConsistent)
      // A lane that went idle, or to rest, while this was being decided saw `watching` set: look once more on its behalf.
      startWatching()
      return
    }
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  /// Before rests are ended: those who rest are the ones who can help.
  private func rescueFromAll() {
    let mask = withoutDrain()
    guard mask != 0 else { return }
    let now = Clock.now
    for (index, lane) in lanes.enumerated() where mask & (1 << UInt64(index)) == 0 {
      lane.lane.pointee.lock.lock()
      let first = lane.lane.pointee.queue.first ?? lane.lane.pointee.launched.first
      lane.lane.pointee.lock.unlock()
      let seen = Seen(
        ready: first,
        hasMessages: lane.inbox.hasMessages,
        takings: lane.inbox.takings.load(ordering: .relaxed),
        timer: lane.nextTimer.load(ordering: .relaxed),
        handler: lane.nextHandler
      )
      if seen.isStuck(since: lastSeen[index], now) { rescue(from: lane, now) }
      lastSeen[index] = seen
    }
  }

  /// What a lane had to do when the watchdog looked.
  struct Seen {
    var ready: JobRef?
    var hasMessages = false
    /// How often its drain had taken messages.
    var takings: UInt = 0
    var timer = UInt64.max
    /// The first handler, if nobody runs one.
    var handler: UInt = 0

    /// Whether the same thing has been waiting since the last look, which a lane that switches would have got to.
    ///
    /// New messages may come all the time: what counts is whether the drain takes any.
    func isStuck(since last: Seen, _ now: UInt64) -> Bool {
      (ready != nil && ready == last.ready) || (hasMessages && last.hasMessages && takings == last.takings)
        || (timer <= now && timer == last.timer) || (handler != 0 && handler == last.handler)
    }
  }

  /// Sends what a stuck lane cannot get to, to a lane that is idle, or else to one that rests: its ready jobs, its due timers,
  /// the jobs in its inbox whose stacks are switched out, the parked jobs whose waits an interrupt in its inbox ends, and the
  /// running of its handlers.
  ///
  /// The timers first: those of deadlines send interrupts.
  private func rescue(from victim: Scheduler, _ now: UInt64) {
    let idle = idle.load(ordering: .acquiring)
    let mask = idle != 0 ? idle : resting.load(ordering: .acquiring)
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
    var rescued = victim.inbox.rescue(jobs: { $0.isSwitchedOut }, interrupts: { $0.seemsWaiting })
    if rescued.mustStart { victim.submit() }
    while let job = rescued.jobs.popFirst() {
      job.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing)
      rescuer.push(.job(job))
    }
    while let job = rescued.popInterrupt() { victim.handleInterrupt(of: job, rescuer: rescuer) }
    if victim.hasReadyHandlers { victim.askForHelp(of: rescuer) }
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
