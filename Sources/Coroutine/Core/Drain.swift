import CCoroutine
import Synchronization

// One drain of a scheduler: the base loop that jobs are resumed from and that they come back to when no other job is ready
// or when it is time to look around.
//
// Budgets. A drain gives the queue back after `Pace.slice` (250 µs) or `Pace.most` switches and goes to the back of it, so
// that the queue's other blocks and sources run. Between two looks at the clock at most `interval` jobs are resumed;
// the interval shrinks when jobs run for long between their suspensions and grows when they are short.

struct Pace {
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
    var turn = Turn(scheduler: .passUnretained(self), lane: lane, now: start)
    let outer = cco_thread().pointee.turn
    lane.pointee.group?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    withUnsafeMutablePointer(to: &turn) { turn in
      cco_thread().pointee.turn = UnsafeMutableRawPointer(turn)
      let isIdle = run(turn)
      // The base never changes threads, so these are the words it began with.
      cco_thread().pointee.turn = outer
      if !isIdle { submit(as: lockKey) }
    }
  }

  /// False: there is more to do, and the slice is used up.
  ///
  /// True: idle, and by now perhaps drained by another thread.
  private func run(_ turn: UnsafeMutablePointer<Turn>) -> Bool {
    pace.begin(turn.pointee.now)
    lastLook.store(turn.pointee.now, ordering: .relaxed)
    lingering.begins(turn.pointee.now)
    // A simulation chooses every job, so every switch goes through the base.
    let isSimulated = simulation != nil
    turn.pointee.switchesLeft = isSimulated ? 0 : pace.interval
    while true {
      // Asked here as well, because for the call the compiler holds the scheduler: two atomics at each look.
      if inbox.hasMessages { inbox.takeAll(isShared: lane.pointee.group != nil, handle) }
      if !work.isEmpty || hasReadyHandlers {
        // Handlers that bring forth handlers for ever must not keep the queue, nor slow ones beside ready jobs.
        turn.pointee.switchesLeft -= runWork()
        if turn.pointee.switchesLeft <= 0, !isSimulated {
          look(turn)
          guard pace.look(turn.pointee.now) else { return false }
          turn.pointee.switchesLeft = pace.interval
        }
      }
      if nextTimer.load(ordering: .relaxed) <= turn.pointee.now {
        let fired = fireTimers(turn.pointee.now)
        alarm?.fired(fired)
      }
      guard let job = chooseNext() else {
        if findMore(turn) || linger(turn) { continue }
        prepareToIdle()
        // Once idle, another thread may be this scheduler's drain: from then on this one has no key.
        turn.pointee.lockKey = .none
        if inbox.goIdle() {
          // An offer that came before we were idle has taken our idle bit and could not wake us.
          guard let group = lane.pointee.group, group._withUnsafeGuaranteedRef({ $0.wasOffered(self) }), inbox.wakeUp()
          else {
            return true
          }
        }
        turn.pointee.lockKey = lockKey
        lane.pointee.group?._withUnsafeGuaranteedRef { $0.markBusy(self) }
        continue
      }
      if deferIfForeign(job, JobFlags.deferredWake) { continue }
      turn.pointee.switchesLeft -= 1
      resume(job, turn)
      if turn.pointee.switchesLeft <= 0 {
        look(turn)
        guard pace.look(turn.pointee.now) else { return false }
        turn.pointee.switchesLeft = isSimulated ? 0 : pace.interval
      }
    }
  }

  /// Reads the clock.
  private func look(_ turn: UnsafeMutablePointer<Turn>) {
    turn.pointee.now = clock
    lastLook.store(turn.pointee.now, ordering: .relaxed)
  }

  /// The next job: the first, or whichever a simulation picks.
  private func chooseNext() -> JobRef? {
    guard let simulation else { return lane.popFirst() }
    return lane.pointee.queue.remove(at: simulation.choose(lane.pointee.queue.count))
  }

  /// Lets a job run until control comes back to the base.
  func resume(_ job: JobRef, _ turn: UnsafeMutablePointer<Turn>) {
    if job.pointee.context == nil {
      if let fiber = lane.fibers.pointee.pop(job.pointee.stackClass) {
        job.pointee.context = fiber
      } else {
        switch job.ownCancellation == nil ? Fiber.make(job.pointee.stackBytes) : .failure(.abandoned) {
        case .success(let fiber): job.pointee.context = fiber
        case .failure(let error): return AnyJob.fail(job, job.ownCancellation ?? error)
        }
      }
    }
    turn.pointee.job = job
    cco_switch(&turn.pointee.base, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
    if turn.pointee.leaving != 0 { Turn.finishLeaving(turn) }
  }

  /// With nothing ready: a timer that is due, or another lane's work.
  private func findMore(_ turn: UnsafeMutablePointer<Turn>) -> Bool {
    if inbox.hasMessages || !work.isEmpty || hasReadyHandlers { return true }
    let next = nextTimer.load(ordering: .relaxed)
    if next != .max {
      look(turn)
      if next <= turn.pointee.now { return true }
    }
    return lane.pointee.group?._withUnsafeGuaranteedRef { $0.steal(for: self) } ?? false
  }

  /// Runs the handlers that are there now; returns how many those were.
  private func runWork() -> Int {
    let count = work.count
    let isLane = handlers != nil
    // Those that come meanwhile wait for the next look around.
    for _ in 0..<count {
      switch work.popFirst() {
      case .work(let item):
        item.takeRetainedValue().run()
        if !isLane { unpin() }
      case .handler(let promise):
        AnyPromise.runHandler(promise)
      default:
        break
      }
    }
    return isLane ? count + runHandlers().count : count
  }

  // MARK: Idling

  func prepareToIdle() {
    Stacks.trimIfMany()
    unpinHandlers()
    let (isOver, released) = takeQueueIfOver()
    // A lane's timer may belong to a job that is live elsewhere: one that another lane has stolen.
    if !isOver, hasLive || nextTimer.load(ordering: .relaxed) != .max {
      armAlarm()
    } else {
      alarm = nil
      lane.fibers.pointee.freeAll()
    }
    withExtendedLifetime(released) {}
  }

  /// Sees to it that a drain starts when the next timer is due.
  private func armAlarm() {
    let next = nextTimer.load(ordering: .relaxed)
    if let simulation { return simulation.sleepUntil(next == .max ? nil : next) }
    guard next != .max else {
      alarm?.rests()
      return
    }
    if alarm == nil, let queue = currentQueue { alarm = Alarm(queue) }
    alarm?.arm(next)
  }

  // MARK: Timers

  /// Starts a timer.
  ///
  /// From elsewhere than this scheduler's turn it makes the drain look, which arms the alarm.
  ///
  /// `now`: what the caller has just read from this scheduler's clock.
  func add(_ node: UnsafeMutablePointer<TimerNode>, now: UInt64) {
    let hold = timerLock.lock(as: .current)
    wheel.add(node, now: now)
    let isEarliest = node.pointee.deadline < nextTimer.load(ordering: .relaxed)
    if isEarliest { nextTimer.store(node.pointee.deadline, ordering: .relaxed) }
    timerLock.unlock(hold)
    if isEarliest, !isOwnTurn { sendTick() }
  }

  /// Calls a timer off; afterwards nobody touches its node, job or frame.
  ///
  /// Any thread, constant time.
  func remove(_ node: UnsafeMutablePointer<TimerNode>) { _ = take(node) }

  /// As remove; whether the timer had not fired.
  func take(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    let hold = timerLock.lock(as: .current)
    defer { timerLock.unlock(hold) }
    return wheel.remove(node)
  }

  /// Wakes whom the clock has reached; answers how many that were.
  ///
  /// The drain, or a watchdog in its place.
  @discardableResult
  func fireTimers(_ now: UInt64) -> Int {
    var woken = RunQueue()
    var interrupted: [AnyJob] = []
    var called: [TimerCall] = []
    let hold = timerLock.lock(as: .current)
    wheel.advance(to: now) { effect in
      switch effect {
      case .wake(let job, let token):
        // Claimed under the lock: the job cannot end before it is woken below.
        if job.claim(token, WakeReason.timer) { woken.append(job) }
      case .expire(let job, let frame):
        frame.pointee.isSignalled.store(true, ordering: .releasing)
        _ = job.pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing)
        interrupted.append(job.handle.takeUnretainedValue())
      case .call(let call):
        called.append(call.takeRetainedValue())
      }
    }
    nextTimer.store(wheel.nextEvent() ?? .max, ordering: .relaxed)
    timerLock.unlock(hold)
    let count = woken.count + interrupted.count + called.count
    woken.prefetchStacks()
    while let job = woken.popFirst() {
      if let context = job.pointee.context { cco_prefetch_frames(context, 12) }
      Turn.makeReady(job)
    }
    for job in interrupted { job.interrupt() }
    for call in called { call.fire() }
    return count
  }
}
