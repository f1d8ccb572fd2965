internal import CCoroutine
internal import CCoroutineRuntime
import Synchronization

/// Runs the jobs of one host, one at a time.
///
/// Invariants
///  1. At most one drain of a scheduler is scheduled or running, on any kind of queue: only the inbox's transition out
///     of `idle` starts one (Inbox.swift). A job is resumed by its scheduler's drain only, so the code between two
///     suspensions is atomic with respect to everything else on a serial queue, and a concurrent queue is one serial
///     worker.
///  2. `readyQueue`, `work` and `stackCache` are accessed by the drain and by the jobs that run in it, and by no other
///     thread (stealing workers: under the worker's lock).
///  3. While any job or handler of it is live, a scheduler holds its anchor (Liveness.swift).
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because of the invariants above: each mutable property names its guard.

  let inbox = Inbox()
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>
  /// The driver's work beside ready jobs: handlers, jobs of Swift Concurrency (SwiftExecutor.swift), and on a worker
  /// requests to take over from another one.
  ///
  /// Accessed by the drain, and by the jobs that run in it.
  @exclusivity(unchecked) var work = WorkQueue()
  /// The number of synchronous parts of isolated code below the top of the stack (SwiftExecutor.swift); accessed as
  /// `work` is.
  @exclusivity(unchecked) var insideDepth = 0
  /// The executor of the actors that live on this scheduler.
  ///
  /// Set in `init`, constant from then on.
  @exclusivity(unchecked) private var identity: SerialIdentity?
  var serialIdentity: SerialIdentity { identity.unsafelyUnwrapped }

  let host: Host
  /// The additional state of a worker of the pool; nil for every other scheduler.
  let worker: Unmanaged<WorkerState>?
  let isImmortal: Bool

  // Guarded by `liveLock`. Inline, so that a launch loads nothing more for it.
  let liveLock = SpinLock()
  @exclusivity(unchecked) var liveness: Liveness

  // Guarded by `timerLock`.
  let timerLock = ThreadLock()
  @exclusivity(unchecked) var wheel = TimerWheel()
  /// The time of the wheel's next event, readable without the lock; `max` means none.
  let nextTimer = Atomic<UInt64>(.max)

  /// The time at which the drain last read the clock: gives an upper bound for how long the running job has run, for
  /// dumps.
  ///
  /// Written by the drain, which has just read the clock; read by any thread.
  let lastClockRead = Atomic<UInt64>(0)

  /// What the scheduler has counted; Counters.swift names the writer of each word.
  let counters: CounterWords

  // Accessed by the drain only.
  /// The events of this scheduler in the last recording in which it took part.
  @exclusivity(unchecked) var ring: AnyObject?
  @exclusivity(unchecked) var timeSlice = TimeSlice()
  @exclusivity(unchecked) var idleSpin = IdleSpin()
  let timerWakeup = TimerWakeup()
  /// The number of messages that have woken this scheduler, and the time of the one that the next drain measures, or 0.
  ///
  /// Accessed by the thread that moves the inbox out of `idle`, and by the drain that it submits
  /// (Counters.swift).
  @exclusivity(unchecked) var wakeUps: UInt = 0
  @exclusivity(unchecked) var wokenAt: UInt64 = 0
  /// The number of jobs that keep the thread of this scheduler (Carrier.swift).
  @exclusivity(unchecked) var keepers = 0
  /// The number of handlers that were bound on this scheduler's own carrier and have not run (Liveness.swift).
  @exclusivity(unchecked) var boundHandlers = 0
  /// Whether these handlers hold their common pin.
  @exclusivity(unchecked) var handlersHoldPin = false
  /// The number of these handlers that were dropped outside this scheduler's carrier; any thread.
  let droppedHandlers = Atomic<Int>(0)
  /// The name that a coroutine on this carrier has given last; accessed on it only (JobName.shared).
  @exclusivity(unchecked) var latestName: JobName?

  /// Creates a scheduler.
  ///
  /// `anchor` is set for a scheduler that lives as long as the process, or as its host. A scheduler that releases its
  /// anchor gets it with the first job or handler.
  init(host: Host, anchor: Anchor?, pool: WorkerPool?, index: Int = 0) {
    // From here on a launch finds the task-locals that it passes on.
    cco_start()
    self.host = host
    counters = CounterWords()
    liveness = Liveness(anchor: anchor, releasesAnchor: host.releasesAnchor)
    isImmortal = anchor != nil
    worker = pool.map { _ in Unmanaged.passRetained(WorkerState(index)) }
    readyQueue = .allocate(capacity: 1)
    readyQueue.initialize(to: ReadyQueue(workerPool: pool.map(Unmanaged.passUnretained)))
    identity = SerialIdentity(self)
    SchedulerRegistry.add(self)
    if EndedJobs.isOn.load(ordering: .relaxed) { noteEnds() }
  }

  deinit {
    SchedulerRegistry.remove(self)
    counters.free()
    // The reference count orders the last release after the last drain's use of the stacks. ThreadSanitizer does not
    // know that; it knows the store by which that drain went idle.
    _ = inbox.head.load(ordering: .acquiring)
    readyQueue.deinitialize(count: 1)
    readyQueue.deallocate()
  }

  /// The clock: nanoseconds that never decrease.
  var clock: UInt64 { host.now }
  var label: String { host.label }

  // MARK: Messages

  /// Sends a message from any thread, and starts a drain if none is under way.
  func push(_ message: Inbox.Message) {
    guard inbox.push(message) else { return }
    noteWakeUp()
    submit()
  }

  /// Sends a message; on this scheduler's own carrier it is handled at once.
  func send(_ message: Inbox.Message) {
    if isRunningHere { handle(message) } else { push(message) }
  }

  /// Whether the calling code runs in this scheduler's drain.
  var isRunningHere: Bool {
    Carrier.current?.pointee.scheduler?.toOpaque() == Unmanaged.passUnretained(self).toOpaque()
  }

  func handle(_ message: Inbox.Message) {
    switch message {
    case .job(let job): readyQueue.append(job)
    case .swiftJob: work.append(message)
    case .work(let item):
      if item == timerWakeup.item {
        timerWakeupArrived()
      } else if let interrupt = Interrupt.owned(by: item) {
        handle(interrupt)
      } else if worker != nil, let arrival = Arrival.owned(by: item) {
        // A coroutine that is ready can be stolen, and work cannot.
        if let job = arrive(arrival) { readyQueue.append(job) }
      } else if worker == nil || work.isEmpty {
        work.append(message)
      } else {
        // On a worker this waits in the inbox, because no rescuer reaches `work`; what is first there is run next.
        push(message)
      }
    }
  }

  // MARK: Drains

  /// Submits a drain at the back of the queue.
  ///
  /// Called after moving the inbox out of `idle`, or by the drain.
  func submit() {
    while true {
      if host.submit(self, isImmortal ? liveness.anchor : currentAnchor) { return }
      // Nothing of this scheduler was live. So the messages are interrupts of jobs that have ended or left, which need
      // no drain, and jobs of Tasks that outlived the coroutine that started them. But another thread may have pinned
      // the queue since, and sent a job that must run there. A pin comes before its messages, so it is seen here.
      var late: [Inbox.Message] = []
      inbox.takeAll(as: nil) { late.append($0) }
      late.forEach(handle)
      if !hasLive { runSwiftJobsElsewhere() }
      guard readyQueue.pointee.queue.isEmpty, work.isEmpty else { continue }
      prepareToIdle()
      // No drain has measured it.
      wokenAt = 0
      if inbox.goIdle() { return }
    }
  }

  // MARK: Current thread

  /// Whether blocking the calling thread would block the jobs.
  var isCurrent: Bool { host.isCurrent(self) }
}

// MARK: - The drain

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
    let outer = (carrier: cco_layer().pointee.carrier, locals: cco_layer().pointee.locals)
    // A loop of another library may drain inside a binding of the thread, which jobs and handlers must not see.
    cco_layer().pointee.locals = nil
    readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_layer().pointee.carrier = UnsafeMutableRawPointer(carrier)
      begin()
      let isIdle = run(carrier)
      // The driver never changes threads, so these are the words that it read at the start.
      cco_layer().pointee.carrier = outer.carrier
      cco_layer().pointee.locals = outer.locals
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
          let goesOn = timeSlice.check(carrier.pointee.now)
          // Work that uses each time slice up must not keep timers and ready jobs waiting for ever: one has its turn.
          if !goesOn, !readyQueue.hasReady, nextTimer.load(ordering: .relaxed) > carrier.pointee.now {
            return endTimeSlice()
          }
          carrier.pointee.grant(goesOn ? timeSlice.interval : 1)
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

  /// Offers the held jobs of a worker; returns false, because there is more to do.
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
    guard let worker else { return false }
    return worker._withUnsafeGuaranteedRef { $0.handlers.isReady || $0.swiftJobs.isWaiting }
  }

  /// Runs handlers, arrivals and jobs of Swift Concurrency: at least one, and then no more than may be resumed.
  private func runWork(_ carrier: UnsafeMutablePointer<Carrier>) {
    // Work that is added meanwhile waits for the next round.
    for _ in 0..<work.count {
      switch work.popFirst() {
      case .work(let item):
        item.run()
        ForkedChild.mayGoOn()
      case .swiftJob(let job): perform(job)
      default: break
      }
      // A coroutine that has arrived may have switched to others.
      carrier.pointee.grant(carrier.pointee.switchesLeft - 1)
      if carrier.pointee.switchesLeft <= 0 { break }
    }
    guard let pool = readyQueue.pointee.workerPool else { return }
    let most = max(1, carrier.pointee.switchesLeft)
    let swiftJobs = pool._withUnsafeGuaranteedRef { $0.runSwiftJobs(of: self, atMost: most) }
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
  /// Called by the drain, or by a rescuer in its place: with `ifFree`, which does nothing while another thread has the
  /// timers. That one fires them, or will see them; a hundred thousand that are due at once take a tenth of a second,
  /// and rescuers that wait for the lock would be taken for stalls.
  @discardableResult
  func fireTimers(_ now: UInt64, ifFree: Bool = false) -> Int {
    var woken = JobQueue()
    var interrupted: [AnyJob] = []
    var called: [TimerCall] = []
    if ifFree, !timerLock.lockIfFree() { return 0 }
    if !ifFree { timerLock.lock() }
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

// MARK: - The time slice

/// How long a drain keeps its queue, and how often it reads the clock meanwhile.
///
/// Used by the drain only.
struct TimeSlice {
  /// The time that a drain may keep its queue, in ns, and so the longest wait of the queue's other blocks.
  ///
  /// Measured with 10,000 ready coroutines: 250 µs, 1 ms and 4 ms give the same throughput, and the queue's other
  /// blocks a 99th percentile of 0.22, 1.0 and 3 ms.
  static var slice: UInt64 { 250_000 }
  /// The number of resumes that a drain may do.
  static var most: Int { 16_384 }

  /// Small at first: the first jobs of a drain may run long.
  var interval = 4
  /// The number of resumes before the next read of the clock: `interval`, or fewer after a batch of events.
  var allotted = 4
  /// About the mean duration of the resumes between the last two reads of the clock in one drain, in ns.
  var mean: UInt64 = 0
  var resumes = 0
  var lastClockRead: UInt64 = 0
  var end: UInt64 = 0

  mutating func begin(_ now: UInt64) {
    lastClockRead = now
    end = now + Self.slice
    resumes = 0
    allotted = interval
  }

  /// Returns whether the drain may continue; adjusts the interval to the duration of the last jobs.
  mutating func check(_ now: UInt64) -> Bool {
    mean = (now - lastClockRead) / UInt64(allotted)
    resumes += allotted
    lastClockRead = now
    // What `interval` such resumes would take; after a batch there were fewer.
    let expected = mean &* UInt64(interval)
    if expected > Self.slice / 8 {
      interval = max(1, interval / 8)
    } else if expected < Self.slice / 32 {
      interval = min(64, interval * 2)
    }
    allotted = interval
    return now < end && resumes < Self.most
  }
}

// MARK: - Batches of events

// Batches of events. One poll of a worker's descriptors may wake many coroutines, and most of them run for some
// microseconds: read, answer, wait. To wake another worker for such a batch costs more than it saves: two system calls
// for the wake-up and the sleep, two to measure the steal (WorkerHost.swift), and cold caches.
//
// Rule. A worker holds a batch, together with its other ready jobs. No other worker is woken for it, and none steals
// from it unless it was offered work. The worker ends the hold
//   - at once, if the batch is expected to last longer than a time slice, by the mean duration of the last resumes;
//   - at the end of the time slice;
//   - when it adds any other job to its ready queue, as a launch does.
// When it ends the hold, it offers the remaining jobs.
//
// How long a ready job can wait while another worker is idle. The drain reads the clock before the last job of a batch,
// and after `firstClockRead` of its jobs at most. After that, it reads the clock when as many have run as are expected
// to take an eighth of a time slice. So a job of a batch waits for about a time slice, and if the jobs get longer all
// at once, for those that run before the next read. If one job does not end, it waits for a take-over (2 to 4 ms),
// which does not respect the hold.
//
// No job is forgotten. The worker writes `isHeld` under the lock of its queue, and other workers read it under that
// lock. The end of a hold is like a push (WorkerPool.swift): it clears `isHeld` under the lock, and reads the idle bits
// after that. A worker that goes idle sets its bit, and inspects the queue after that. So it steals, or its bit is
// seen. A hold that outlives its jobs hides no job: the next job that is added ends it, or is held itself.

extension Scheduler {
  /// The number of jobs of a batch after which the clock is read at the latest.
  private static var firstClockRead: Int { 4 }

  /// Expects `count` ready jobs after a batch was added: plans when to read the clock, or ends the hold.
  ///
  /// Called in the drain.
  func expectBatch(of count: Int, _ carrier: UnsafeMutablePointer<Carrier>) {
    guard count > 1 else { return }
    if UInt64(count) &* timeSlice.mean > TimeSlice.slice { readyQueue.endHold() }
    timeSlice.allotted = min(timeSlice.allotted, Self.firstClockRead, count - 1)
    carrier.pointee.grant(min(carrier.pointee.switchesLeft, timeSlice.allotted))
  }
}

extension Carrier {
  /// Makes the jobs ready that the events of one poll have woken, and whose waits the caller has claimed.
  ///
  /// Jobs that other workers have stolen come back.
  static func makeReady(batch: inout JobQueue) {
    var mine = JobQueue()
    let carrier = current
    Events.note(.poll, nil, UInt64(batch.count))
    while let job = batch.popFirst() {
      Events.note(.wake, job)
      if let carrier, carrier.pointee.ownReadyQueue(of: job) != nil || takeAlong(job, carrier) {
        mine.append(job)
      } else {
        job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.push(.job(job)) }
      }
    }
    guard let carrier, !mine.isEmpty, let readyQueue = carrier.pointee.readyQueue else { return }
    let count = readyQueue.appendHeld(&mine)
    carrier.pointee.scheduler?._withUnsafeGuaranteedRef { $0.expectBatch(of: count, carrier) }
  }
}

// MARK: - Spinning before going idle

// Adaptive spinning. Before a scheduler's drain goes idle, it polls the inbox for up to 10 µs if messages have recently
// arrived faster than a thread wake-up takes.
//
// Reason. Waking a sleeping thread costs the sender a system call and the woken thread a switch by the kernel, several
// microseconds together. Two queues whose coroutines answer each other would pay that in each direction, for every
// message, and each would get its answer a fraction of a microsecond after it went to sleep.
//
//   DIRECT    goes idle at once       -- `needed` quick returns in a row ----------> SPINNING
//   SPINNING  polls, then goes idle   -- one failed poll, `needed` doubles --------> DIRECT
//                                     -- `streak` successful polls: `needed` returns to its first value
//
// - A return is quick if the drain is started again less than `quick` after it went idle.
// - A poll lasts about as long as waking the other side takes, because during the first poll the other side is still
//   asleep. Later polls end within a microsecond.
// - The doubling bounds the cost if polling never succeeds, as on a machine without a spare processor: one poll in 128
//   returns.
// - If the process may use only one processor, no thread could send anything during a poll, so it never polls.
//
// For other threads, spinning is the busy state of Inbox.swift, some microseconds longer. Successful polls occupy the
// queue as ready jobs do. So no poll begins after the end of the time slice, and other blocks
// of the queue wait for a time slice and `duration` at most.
//
// Measured with an idle second processor: a coroutine's hop to another queue takes 360 ns, and 1,490 ns without
// spinning (two threads pass a bare block in 620). A ping-pong round trip over two queues takes 440 ns, and 4,640 ns
// without.

struct IdleSpin {
  /// The time after going idle within which a restart counts as a quick return, in ns.
  static var quick: UInt64 { 25_000 }
  static var streak: UInt8 { 8 }
  static var fewest: UInt16 { 2 }
  static var most: UInt16 { 128 }

  /// The duration of a poll, in ns.
  var duration: UInt64 = 10_000
  /// The number of quick returns in a row that are needed before it polls.
  var needed = IdleSpin.fewest
  private var returns: UInt16 = 0
  private var paid: UInt8 = 0
  /// The time at which the last drain went idle; 0 if it ended with its time slice, and so gives no information.
  private var wentIdle: UInt64 = 0

  /// Whether to poll before going idle.
  var isWorthwhile: Bool { returnsWanted == 0 && Processors.usable > 1 }

  /// The number of quick returns that are still missing.
  var returnsWanted: Int { Int(needed) - Int(min(returns, needed)) }

  /// Records that a drain begins.
  mutating func begins(_ now: UInt64) {
    guard wentIdle != 0 else { return }
    returns = now &- wentIdle < Self.quick ? min(returns + 1, Self.most) : 0
    wentIdle = 0
  }

  /// Records that a message came during the poll.
  mutating func succeeded() {
    paid = min(paid + 1, Self.streak)
    if paid == Self.streak { needed = Self.fewest }
  }

  /// Records that no message came during the poll.
  mutating func failed() {
    (returns, paid) = (0, 0)
    needed = min(max(1, needed) * 2, Self.most)
  }

  /// Records that the drain is about to go idle.
  mutating func goesIdle(_ now: UInt64) { wentIdle = now }
}

extension Scheduler {
  /// Polls the inbox if that is worthwhile, and returns whether a message has come or a timer is due.
  ///
  /// Called by a drain that has nothing to do. Workers do not spin: they try to steal work, and sleep if no worker has
  /// any. Loops of other libraries do not either (Host.swift).
  func spin(_ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    guard host.mayPoll, readyQueue.pointee.workerPool == nil else {
      // For the histogram of runs alone, so not each time.
      if wakeUps % Samples.wakeUps == 0 { readClock(carrier) }
      return false
    }
    readClock(carrier)
    if idleSpin.isWorthwhile, carrier.pointee.now < timeSlice.end {
      let end = min(carrier.pointee.now &+ idleSpin.duration, nextTimer.load(ordering: .relaxed))
      while carrier.pointee.now < end {
        // Several inbox reads for each clock read, which costs as much as several of them.
        for _ in 0..<8 {
          if inbox.hasMessages {
            idleSpin.succeeded()
            return true
          }
          cco_relax()
        }
        carrier.pointee.now = clock
      }
      // A timer that ends the poll makes it successful. Going idle now would mean waiting for the host's timer, which
      // may be paused.
      if nextTimer.load(ordering: .relaxed) <= carrier.pointee.now { return true }
      idleSpin.failed()
    }
    idleSpin.goesIdle(carrier.pointee.now)
    return false
  }
}
