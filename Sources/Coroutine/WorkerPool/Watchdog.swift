internal import CCoroutine
import Dispatch
import Synchronization

// What looks after the workers from outside: a timer that goes off every two milliseconds, or a little later, while some worker
// has nothing to do and another has, or some worker rests. A worker whose one job computes for long keeps the others from
// running: what waits there at two looks in a row, ready jobs, messages and timers, goes to a worker that has nothing to do.
// Cancellation of jobs that are parked there is seen to by the watchdog itself (Interrupt.swift). Handlers that are bound to that
// worker are run, in their order, by the other one (HandlerQueue.swift).
// And workers that rest from stealing are sent to look again: one as a scout, and if none has come back to rest by the next
// time, all of them.

extension WorkerPool {
  /// Whether there is a worker that could help, and one that may need it, or one that rests.
  private var hasToWatch: Bool {
    let mask = withoutDrain()
    return mask != 0 && mask.nonzeroBitCount < workers.count || isAnyBackingOff
  }

  func startWatching() {
    guard hasToWatch, !watching.exchange(true, ordering: .sequentiallyConsistent) else { return }
    FirstTimer.shared.ensure()
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  func watch() {
    rescueFromAll()
    let backoffs = backoffs.load(ordering: .relaxed)
    endBackoffs(ofAll: backoffs == lastBackoffs)
    lastBackoffs = backoffs
    guard hasToWatch else {
      watching.store(false, ordering: .sequentiallyConsistent)
      // A worker that went idle, or to rest, while this was being decided saw `watching` set: look once more on its behalf.
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
    for (index, worker) in workers.enumerated() where mask & (1 << UInt64(index)) == 0 {
      worker.readyQueue.pointee.lock.lock()
      let first = worker.readyQueue.pointee.queue.first ?? worker.readyQueue.pointee.launched.first
      worker.readyQueue.pointee.lock.unlock()
      let seen = Seen(
        ready: first,
        hasMessages: worker.inbox.hasMessages,
        takings: worker.inbox.takings.load(ordering: .relaxed),
        timer: worker.nextTimer.load(ordering: .relaxed),
        handler: worker.nextHandler
      )
      if seen.isStuck(since: lastSeen[index], now) { rescue(from: worker, now) }
      lastSeen[index] = seen
    }
  }

  /// What a worker had to do when the watchdog looked.
  struct Seen {
    var ready: JobRef?
    var hasMessages = false
    /// How often its drain had taken messages.
    var takings: UInt = 0
    var timer = UInt64.max
    /// The first handler, if nobody runs one.
    var handler: UInt = 0

    /// Whether the same thing has been waiting since the last look, which a worker that switches would have got to.
    ///
    /// New messages may come all the time: what counts is whether the drain takes any.
    func isStuck(since last: Seen, _ now: UInt64) -> Bool {
      (ready != nil && ready == last.ready) || (hasMessages && last.hasMessages && takings == last.takings)
        || (timer <= now && timer == last.timer) || (handler != 0 && handler == last.handler)
    }
  }

  /// Sends what a stuck worker cannot get to, to a worker that is idle, or else to one that rests: its ready jobs, its due timers,
  /// the jobs in its inbox whose stacks are switched out, the parked jobs whose waits an interrupt in its inbox ends, and the
  /// running of its handlers.
  ///
  /// The timers first: those of deadlines send interrupts.
  private func rescue(from victim: Scheduler, _ now: UInt64) {
    let idle = idle.load(ordering: .acquiring)
    let mask = idle != 0 ? idle : backingOff.load(ordering: .acquiring)
    guard mask != 0 else { return }
    let rescuer = workers[mask.trailingZeroBitCount]
    if victim.nextTimer.load(ordering: .relaxed) <= now { victim.fireTimers(now) }
    var stolen = JobQueue()
    victim.readyQueue.pointee.lock.lock()
    victim.readyQueue.takeHalf(atLeast: 1, into: &stolen)
    var job = stolen.first
    while let current = job {
      current.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing)
      job = current.pointee.next
    }
    victim.readyQueue.pointee.lock.unlock()
    while let job = stolen.popFirst() { rescuer.push(.job(job)) }
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
    guard flags & (JobFlags.foreign | JobFlags.inspecting) == 0 else { return false }
    return pointee.context.map { cco_is_parked(&$0.pointee.parked) } ?? true
  }
}
