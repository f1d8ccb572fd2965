import CCoroutine
import Synchronization

// One drain of a scheduler: the driver loop that resumes jobs. Jobs switch back to it if no other job is ready, or if
// it is time to poll the clock, the inbox and the timers.
//
// Budgets. A drain gives the queue back after `TimeSlice.slice` (250 µs) or `TimeSlice.most` switches and goes to the
// back of the queue, so that the queue's other blocks and sources run. Between two reads of the clock at most
// `interval` jobs are resumed; the interval shrinks if jobs run long between their suspensions, and grows if they are
// short.

extension Scheduler {
  /// Drains the scheduler.
  ///
  /// Called on the queue once per idle-to-busy transition, and again after each exhausted time slice.
  func drain() { drain {} }

  /// Drains the scheduler; what `begin` wakes is ready at once, without the inbox.
  @inline(__always)
  func drain(_ begin: () -> Void) {
    cco_guard_thread()
    let start = clock
    var carrier = Carrier(scheduler: .passUnretained(self), readyQueue: readyQueue, now: start)
    let outer = (carrier: cco_thread().pointee.carrier, locals: cco_thread().pointee.locals)
    // A loop of another library may drain inside a binding of the thread, which jobs and handlers must not see.
    cco_thread().pointee.locals = nil
    readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(carrier)
      begin()
      let isIdle = run(carrier)
      // The driver never changes threads, so these are the words that it read at the start.
      cco_thread().pointee.carrier = outer.carrier
      cco_thread().pointee.locals = outer.locals
      if !isIdle { submit() }
    }
  }

  /// Runs until there is nothing to do, or until the time slice is used up.
  ///
  /// Returns false if there is more to do. Returns true if the scheduler is idle; another thread may be draining it by
  /// now.
  private func run(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    timeSlice.begin(carrier.pointee.now)
    lastClockRead.store(carrier.pointee.now, ordering: .relaxed)
    idleSpin.begins(carrier.pointee.now)
    carrier.pointee.grant(timeSlice.interval)
    followRecorder(carrier)
    noteDrain(carrier.pointee.now)
    // Whether the carrier's clock has been read since the driver last took a job.
    var isTimed = true
    // Once in a time slice, and not in the loop below.
    if hasPoller { pollDescriptors(carrier.pointee.now) }
    while true {
      // Tested before the call, because for the call the compiler retains the scheduler: two atomics in each round.
      if inbox.hasMessages { inbox.takeAll(as: worker, handle) }
      if hasWork {
        // Handlers that always add handlers must not keep the queue, and slow handlers must not delay ready jobs.
        runWork(carrier)
        if carrier.pointee.switchesLeft <= 0 {
          readClock(carrier)
          guard timeSlice.check(carrier.pointee.now) else { return endTimeSlice() }
          carrier.pointee.grant(timeSlice.interval)
        }
      }
      if nextTimer.load(ordering: .relaxed) <= carrier.pointee.now {
        let fired = fireTimers(carrier.pointee.now)
        host.timersFired(fired)
      }
      guard let next = readyQueue.popFirst() else {
        if findMore(carrier) || spin(carrier) { continue }
        publishSwitches(carrier)
        prepareToIdle()
        if endDrain() { return true }
        continue
      }
      readyQueue.prefetchNext()
      guard let job = jobToResume(next) else { continue }
      if isTimed {
        isTimed = false
        noteReady(job, carrier.pointee.now)
      }
      resumeNext(job, carrier)
      if carrier.pointee.switchesLeft <= 0 {
        readClock(carrier)
        isTimed = true
        guard timeSlice.check(carrier.pointee.now) else { return endTimeSlice() }
        carrier.pointee.grant(timeSlice.interval)
      }
    }
  }

  /// Returns a job that was taken out of the ready queue, and that the caller must resume; nil if its holder queues it
  /// again.
  ///
  /// Called by the drain.
  @inline(__always)
  func jobToResume(_ job: JobRef) -> JobRef? { job.hold.isForeign && job.hold.deferWake() ? nil : job }

  /// Resumes a job, which counts as one switch.
  @inline(__always)
  func resumeNext(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    carrier.pointee.switchesLeft -= 1
    if carrier.pointee.ring == nil { resume(job, carrier) } else { resumeRecorded(job, carrier) }
  }

  /// Offers the held jobs of a worker (Scheduler+Batch.swift); returns false, because there is more to do.
  private func endTimeSlice() -> Bool {
    Events.note(.sliceEnd)
    readyQueue.endHold()
    return false
  }

  /// Resumes a job, and returns when control comes back to the driver.
  ///
  /// Returns what the job has left to do (`Carrier.leaving`); 0 if it waits.
  @discardableResult
  func resume(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) -> UInt {
    if job.pointee.context == nil {
      job.prefetchBody()
      if let stack = readyQueue.stackCache.pointee.pop(job.pointee.stackClass) {
        job.pointee.context = stack
      } else {
        switch job.ownCancellation == nil ? StackRunner.make(for: job) : .failure(.abandoned) {
        case .success(let stack): job.pointee.context = stack
        case .failure(let error):
          AnyJob.fail(job, job.ownCancellation ?? error)
          return 1
        }
      }
    }
    LockCheck.noLock(.stackSwitch)
    carrier.pointee.job = job
    let held = LockCheck.putAside()
    cco_switch(&carrier.pointee.driver, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
    LockCheck.takeBack(held)
    let leaving = carrier.pointee.leaving
    if leaving != 0 { Carrier.finishLeaving(carrier) }
    return leaving
  }

  /// Finds work when no job is ready: a due timer, or another worker's jobs.
  private func findMore(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    if inbox.hasMessages || hasWork { return true }
    let next = nextTimer.load(ordering: .relaxed)
    if next != .max {
      readClock(carrier)
      if next <= carrier.pointee.now { return true }
    }
    return readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.steal(for: self) } ?? false
  }

  /// Whether there is other work than ready jobs: handlers, or jobs of Swift Concurrency.
  @inline(__always)
  private var hasWork: Bool {
    if !work.isEmpty { return true }
    guard let pool = readyQueue.pointee.workerPool else { return false }
    return hasReadyHandlers || pool._withUnsafeGuaranteedRef { $0.swiftJobs.isWaiting }
  }

  /// Runs handlers, arrivals and jobs of Swift Concurrency: at least one, and then no more than may be resumed.
  private func runWork(_ carrier: UnsafeMutablePointer<Carrier>) {
    // Work that is added meanwhile waits for the next round.
    for _ in 0..<work.count {
      switch work.popFirst() {
      case .work(let item): item.run()
      case .swiftJob(let job): perform(job)
      default: break
      }
      // A coroutine that has arrived may have switched to others.
      carrier.pointee.grant(carrier.pointee.switchesLeft - 1)
      if carrier.pointee.switchesLeft <= 0 { break }
    }
    guard let pool = readyQueue.pointee.workerPool else { return }
    let swiftJobs = pool._withUnsafeGuaranteedRef { $0.runSwiftJob() } ? 1 : 0
    carrier.pointee.grant(carrier.pointee.switchesLeft - runHandlers().count - swiftJobs)
  }

  // MARK: Idling

  func prepareToIdle() {
    StackTrimmer.trimIfMany()
    DeadPages.watchIfMany()
    unpinHandlers()
    let (isOver, released) = takeAnchorIfOver()
    // A worker's timer may belong to a job that is live on another worker, which has stolen it.
    if !isOver, hasLive || nextTimer.load(ordering: .relaxed) != .max {
      wakeForTimers()
    } else {
      host.anchorReleased()
      readyQueue.stackCache.pointee.freeAll()
    }
    withExtendedLifetime(released) {}
  }

  /// Makes the host start a drain when the next timer is due.
  private func wakeForTimers() {
    let next = nextTimer.load(ordering: .relaxed)
    host.wake(at: next == .max ? nil : next, next == .max ? nil : currentAnchor)
  }

  // MARK: Timers

  /// Starts a timer.
  ///
  /// `now` is the time that the caller has just read from this scheduler's clock. A caller outside this scheduler's
  /// carrier wakes the drain, which sets the host's wake-up. A timer whose deadline never comes is not queued.
  func add(_ node: UnsafeMutablePointer<TimerNode>, now: UInt64) {
    if node.pointee.deadline == Duration.never { return }
    timerLock.lock()
    wheel.add(node, now: now)
    let isEarliest = node.pointee.deadline < nextTimer.load(ordering: .relaxed)
    if isEarliest { nextTimer.store(node.pointee.deadline, ordering: .relaxed) }
    timerLock.unlock()
    if isEarliest, !isRunningHere { sendTimerWakeup() }
  }

  /// Removes a timer; afterwards no thread accesses its node, job or frame.
  ///
  /// Any thread, constant time.
  func remove(_ node: UnsafeMutablePointer<TimerNode>) { _ = take(node) }

  /// Removes a timer, and returns whether it had not fired.
  func take(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    timerLock.lock()
    defer { timerLock.unlock() }
    return wheel.remove(node)
  }

  /// Fires the due timers, and returns their number.
  ///
  /// Called by the drain, or by a rescuer in its place.
  @discardableResult
  func fireTimers(_ now: UInt64) -> Int {
    var woken = JobQueue()
    var interrupted: [AnyJob] = []
    var called: [TimerCall] = []
    timerLock.lock()
    wheel.advance(to: now) { effect, deadline in
      noteTimer(deadline, now)
      switch effect {
      case .wake(let job, let epoch):
        // Claimed under the lock: the job cannot end before it is woken below.
        if job.claim(epoch, WakeReason.timer) { woken.append(job) }
      case .expire(let job, let frame):
        frame.pointee.isSignalled.store(true, ordering: .releasing)
        _ = job.pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing)
        interrupted.append(job.handle.takeUnretainedValue())
      case .call(let call):
        called.append(call.takeRetainedValue())
      }
    }
    nextTimer.store(wheel.nextEvent() ?? .max, ordering: .relaxed)
    timerLock.unlock()
    let count = woken.count + interrupted.count + called.count
    woken.prefetchStacks()
    while let job = woken.popFirst() {
      if let context = job.pointee.context { cco_prefetch_frames(context, 12) }
      Carrier.makeReady(job)
    }
    for job in interrupted { job.interrupt() }
    for call in called { call.fire() }
    return count
  }
}
