import CCoroutine
import Synchronization

// One drain of a scheduler: the base loop that jobs are resumed from and that they come back to when no other job is ready
// or when it is time to look around.
//
// Budgets. A drain gives the queue back after `TimeSlice.slice` (250 µs) or `TimeSlice.most` switches and goes to the back of it, so
// that the queue's other blocks and sources run. Between two looks at the clock at most `interval` jobs are resumed;
// the interval shrinks when jobs run for long between their suspensions and grows when they are short.

struct TimeSlice {
  /// How long a drain may keep its queue, in ns: what a foreign block waits for.
  ///
  /// Measured with 10,000 ready coroutines: 250 µs, 1 ms and 4 ms give the same throughput, and foreign blocks a 99th
  /// percentile of 0.22, 1.0 and 3 ms.
  static var slice: UInt64 { 250_000 }
  /// How many resumes a drain may do.
  static var most: Int { 16_384 }

  /// Starts small: the first jobs of a drain may be long ones.
  var interval = 4
  var resumes = 0
  var lastLook: UInt64 = 0
  var end: UInt64 = 0

  mutating func begin(_ now: UInt64) {
    lastLook = now
    end = now + Self.slice
    resumes = 0
  }

  /// Whether the drain may go on; adjusts the interval to what the last ones took.
  mutating func look(_ now: UInt64) -> Bool {
    let took = now - lastLook
    resumes += interval
    lastLook = now
    if took > Self.slice / 8 {
      interval = max(1, interval / 8)
    } else if took < Self.slice / 32 {
      interval = min(64, interval * 2)
    }
    return now < end && resumes < Self.most
  }
}

extension Scheduler {
  /// Runs on the queue, once for each way from idle to busy and once more for each slice.
  func drain() {
    cco_guard_thread()
    let start = clock
    var carrier = Carrier(scheduler: .passUnretained(self), readyQueue: readyQueue, now: start)
    let outer = cco_thread().pointee.carrier
    readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(carrier)
      let isIdle = run(carrier)
      // The base never changes threads, so these are the words it began with.
      cco_thread().pointee.carrier = outer
      if !isIdle { submit() }
    }
  }

  /// False: there is more to do, and the slice is used up.
  ///
  /// True: idle, and by now perhaps drained by another thread.
  private func run(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    timeSlice.begin(carrier.pointee.now)
    lastLook.store(carrier.pointee.now, ordering: .relaxed)
    idleSpin.begins(carrier.pointee.now)
    // A host that controls order chooses every job, so every switch goes through the driver.
    let controlsOrder = host.controlsOrder
    carrier.pointee.switchesLeft = controlsOrder ? 0 : timeSlice.interval
    while true {
      // Asked here as well, because for the call the compiler holds the scheduler: two atomics at each look.
      if inbox.hasMessages { inbox.takeAll(isShared: readyQueue.pointee.workerPool != nil, handle) }
      if !work.isEmpty || hasReadyHandlers {
        // Handlers that bring forth handlers for ever must not keep the queue, nor slow ones beside ready jobs.
        carrier.pointee.switchesLeft -= runWork()
        if carrier.pointee.switchesLeft <= 0, !controlsOrder {
          look(carrier)
          guard timeSlice.look(carrier.pointee.now) else { return false }
          carrier.pointee.switchesLeft = timeSlice.interval
        }
      }
      if nextTimer.load(ordering: .relaxed) <= carrier.pointee.now {
        let fired = fireTimers(carrier.pointee.now)
        host.timersFired(fired)
      }
      guard let job = chooseNext() else {
        if findMore(carrier) || spin(carrier) { continue }
        prepareToIdle()
        if inbox.goIdle() {
          // An offer that came before we were idle has taken our idle bit and could not wake us.
          guard let workerPool = readyQueue.pointee.workerPool, workerPool._withUnsafeGuaranteedRef({ $0.wasOffered(self) }), inbox.wakeUp()
          else {
            return true
          }
        }
        readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
        continue
      }
      if deferIfForeign(job, JobFlags.deferredWake) { continue }
      carrier.pointee.switchesLeft -= 1
      resume(job, carrier)
      if carrier.pointee.switchesLeft <= 0 {
        look(carrier)
        guard timeSlice.look(carrier.pointee.now) else { return false }
        carrier.pointee.switchesLeft = controlsOrder ? 0 : timeSlice.interval
      }
    }
  }

  /// Reads the clock.
  private func look(_ carrier: UnsafeMutablePointer<Carrier>) {
    carrier.pointee.now = clock
    lastLook.store(carrier.pointee.now, ordering: .relaxed)
  }

  /// The next job: the first, or the one that the host chooses.
  private func chooseNext() -> JobRef? {
    guard host.controlsOrder else { return readyQueue.popFirst() }
    return readyQueue.pointee.queue.remove(at: host.choose(readyQueue.pointee.queue.count))
  }

  /// Lets a job run until control comes back to the base.
  func resume(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    if job.pointee.context == nil {
      if let stack = readyQueue.stackCache.pointee.pop(job.pointee.stackClass) {
        job.pointee.context = stack
      } else {
        switch job.ownCancellation == nil ? StackRunner.make(job.pointee.stackBytes) : .failure(.abandoned) {
        case .success(let stack): job.pointee.context = stack
        case .failure(let error): return AnyJob.fail(job, job.ownCancellation ?? error)
        }
      }
    }
    carrier.pointee.job = job
    cco_switch(&carrier.pointee.driver, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
    if carrier.pointee.leaving != 0 { Carrier.finishLeaving(carrier) }
  }

  /// With nothing ready: a timer that is due, or another worker's work.
  private func findMore(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    if inbox.hasMessages || !work.isEmpty || hasReadyHandlers { return true }
    let next = nextTimer.load(ordering: .relaxed)
    if next != .max {
      look(carrier)
      if next <= carrier.pointee.now { return true }
    }
    return readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.steal(for: self) } ?? false
  }

  /// Runs the work items that are queued now; returns how many those were.
  private func runWork() -> Int {
    let count = work.count
    let isWorker = handlers != nil
    // Those that come meanwhile wait for the next look around.
    for _ in 0..<count {
      if case .work(let item) = work.popFirst() { item.run() }
    }
    return isWorker ? count + runHandlers().count : count
  }

  // MARK: Idling

  func prepareToIdle() {
    StackTrimmer.trimIfMany()
    unpinHandlers()
    let (isOver, released) = takeAnchorIfOver()
    // A worker's timer may belong to a job that is live elsewhere: one that another worker has stolen.
    if !isOver, hasLive || nextTimer.load(ordering: .relaxed) != .max {
      wakeForTimers()
    } else {
      host.anchorReleased()
      readyQueue.stackCache.pointee.freeAll()
    }
    withExtendedLifetime(released) {}
  }

  /// Sees to it that a drain starts when the next timer is due.
  private func wakeForTimers() {
    let next = nextTimer.load(ordering: .relaxed)
    host.wake(at: next == .max ? nil : next, next == .max ? nil : currentAnchor)
  }

  // MARK: Timers

  /// Starts a timer.
  ///
  /// From elsewhere than this scheduler's turn it makes the drain look, which arms the alarm.
  ///
  /// `now`: what the caller has just read from this scheduler's clock.
  func add(_ node: UnsafeMutablePointer<TimerNode>, now: UInt64) {
    timerLock.lock()
    wheel.add(node, now: now)
    let isEarliest = node.pointee.deadline < nextTimer.load(ordering: .relaxed)
    if isEarliest { nextTimer.store(node.pointee.deadline, ordering: .relaxed) }
    timerLock.unlock()
    if isEarliest, !isOwnTurn { sendTimerWakeup() }
  }

  /// Calls a timer off; afterwards nobody touches its node, job or frame.
  ///
  /// Any thread, constant time.
  func remove(_ node: UnsafeMutablePointer<TimerNode>) { _ = take(node) }

  /// As remove; whether the timer had not fired.
  func take(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    timerLock.lock()
    defer { timerLock.unlock() }
    return wheel.remove(node)
  }

  /// Wakes whom the clock has reached; answers how many that were.
  ///
  /// The drain, or a watchdog in its place.
  @discardableResult
  func fireTimers(_ now: UInt64) -> Int {
    var woken = JobQueue()
    var interrupted: [AnyJob] = []
    var called: [TimerCall] = []
    timerLock.lock()
    wheel.advance(to: now) { effect in
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
