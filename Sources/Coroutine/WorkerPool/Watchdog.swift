internal import CCoroutine
import Dispatch
import Synchronization

// The watchdog of the workers: a timer that fires every two milliseconds, or a little later, while some worker is idle
// and another is not, or while some worker backs off.
//
// A worker whose current job computes for long cannot run its other work. Ready jobs, messages and timers that wait
// there in two inspections in a row are moved to an idle worker. The watchdog itself handles the cancellation of parked
// jobs of that worker (Interrupt.swift). An idle worker runs the handlers that are bound to that worker, in their order
// (HandlerQueue.swift).
//
// It also ends back-offs: first of one worker, as a probe, and if no worker has backed off again by the next
// inspection, of all.

extension WorkerPool {
  /// Whether one worker could help and another may need help, or whether one backs off.
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
    rescueSwiftJobs()
    let backoffs = backoffs.load(ordering: .relaxed)
    endBackoffs(ofAll: backoffs == lastBackoffs)
    lastBackoffs = backoffs
    guard hasToWatch else {
      watching.store(false, ordering: .sequentiallyConsistent)
      // A worker that went idle, or backed off, in the meantime saw `watching` set: check once more on its behalf.
      startWatching()
      return
    }
    watchdog.schedule(deadline: .now() + .milliseconds(2), leeway: .microseconds(500))
  }

  /// Rescues the work of every stuck worker.
  ///
  /// Called before back-offs are ended, because the workers that back off can help.
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

  /// The pending work of a worker at one inspection.
  struct Seen {
    var ready: JobRef?
    var hasMessages = false
    /// The number of times that its drain had taken messages.
    var takings: UInt = 0
    var timer = UInt64.max
    /// The first handler, if no thread runs one.
    var handler: UInt = 0

    /// Whether the same work has been waiting since the last inspection; a worker that switches would have reached it.
    ///
    /// New messages may come all the time, so for messages the number of times that the drain has taken some counts.
    func isStuck(since last: Seen, _ now: UInt64) -> Bool {
      (ready != nil && ready == last.ready) || (hasMessages && last.hasMessages && takings == last.takings)
        || (timer <= now && timer == last.timer) || (handler != 0 && handler == last.handler)
    }
  }

  /// Moves the work that a stuck worker cannot reach to a worker that is idle or, if there is none, to one that backs
  /// off.
  ///
  /// The work consists of its ready jobs, its due timers, the switched-out jobs in its inbox, the parked jobs whose
  /// waits an interrupt in its inbox ends, and the running of its handlers. Timers come first: those of deadlines send
  /// interrupts.
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
  /// Whether a claimed job that no carrier runs may be resumed anywhere.
  ///
  /// True if it has not started or is switched out, and its scheduler does not read its frames. A read-modify-write,
  /// against `handleInterrupt`.
  var isSwitchedOut: Bool {
    let flags = pointee.flags.bitwiseOr(0, ordering: .acquiringAndReleasing).newValue
    guard flags & (JobFlags.foreign | JobFlags.inspecting) == 0 else { return false }
    return pointee.context.map { cco_is_parked(&$0.pointee.parked) } ?? true
  }
}
