public import CCoroutine
public import CCoroutineRuntime
import Glibc
public import Synchronization

// The state of a thread that runs coroutines: in a drain of a scheduler, or in an immediate start. The thread's words
// contain the address of the innermost carrier, and the carrier that of the running job. So a switch from job to job
// changes one field of the carrier, and no thread-local.
//
// Code that calls a function that may suspend must read `Carrier.current` again afterwards: the job may continue on
// another thread.
//
// Waits that are satisfied at once. A job whose waits are all satisfied at once (settled promises, buffered values,
// free locks) never switches. The driver would never reach handlers, messages, timers and the queue's other blocks. So
// every wait begins with `beginWaiting`, which counts. After `Carrier.waits` waits the job reads the clock. If the
// driver has not polled for `Carrier.pollInterval`, the job yields before it takes anything: it goes to the back of the
// ready queue, and the driver polls. Only then is cancellation checked. So a wait throws before it has taken anything,
// or continues; inside a shield it continues.
//
// Such a job may attach handlers faster than the driver runs them, because the driver runs few handlers between two
// jobs, so that slow handlers do not delay ready jobs. So the job yields until the handlers that were present at its
// first yield have run. This bounds their number by those that the job attaches between two yields. The yielding ends,
// because handlers that are attached meanwhile do not count, and the driver runs at least one in each round.
//
// A job enters a ready queue after its switch: the next context adds it (`leaving`), because on a worker another thread
// may take it at once. `yield` adds it before, which takes two calls less. Why that is sound:
//   - The ready queue is that of a queue's scheduler (`workerPool` is nil). Only this carrier uses it (Scheduler.swift,
//     2), and between the append and the switch it runs nothing but the switch. So nobody pops the job before its
//     stack is switched out.
//   - The carrier is a drain's. An immediate start, whose holder releases the job after the switch (JobRecord.swift),
//     has no budget, so it takes the other way. So do worlds, and recorded runs.
//   - The job's wait is RUNNING. A rescuer or a sweep that still has the word of an earlier wait may mark the job as
//     foreign for a moment, and gives up (JobRecord.swift, steps 2 and 3). The driver sees the mark or its end when it
//     pops the job, which is after the switch, as for every other ready job.
// The next job is taken first, so a job never switches to itself.

@usableFromInline
struct Carrier: ~Copyable {
  /// The saved context of the driver (the drain, or the immediate start's caller) while a job runs.
  @usableFromInline var driver = cco_saved_context()
  /// The running job; nil while the driver runs.
  @usableFromInline var job: JobRef?
  /// The scheduler whose ready queue this thread may access; nil if there is none, and wakes go through inboxes.
  @usableFromInline let scheduler: Unmanaged<Scheduler>?
  /// The ready queue of `scheduler`; nil if there is no scheduler.
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>?
  /// The number of switches from job to job before the driver must poll the clock, the inbox and the timers.
  @usableFromInline var switchesLeft = 0
  /// The value that `switchesLeft` would have without the switches since the last call of `publishSwitches`.
  @usableFromInline var granted = 0
  /// The scheduler's ring, while the flight recorder is on.
  var ring: Unmanaged<AnyObject>?
  /// The scheduler whose jobs a wake-up adds to `readyQueue` directly: `scheduler`, or nil while wake-ups are recorded.
  @usableFromInline var wakes: Unmanaged<Scheduler>?
  /// The context that was just suspended, and the work that the next one must do for it; 0 for none, as after a wait.
  ///
  /// A job that goes to the back of its scheduler's ready queue, a free stack (tag 1), or the arrival that the
  /// suspended job sends to a scheduler (`leavingArrival`).
  @usableFromInline var leaving: UInt = 0
  static var leavingArrival: UInt { 2 }
  /// The number of waits that may begin before the waiting job reads the clock.
  @usableFromInline var waitsLeft = Carrier.waits
  /// The time at which the driver last read the clock, for the "since when" of dumps.
  @usableFromInline var now: UInt64
  /// The state of the random numbers by which a select chooses among several ready cases.
  @usableFromInline var random: UInt64
  /// The scopes that are still to be cancelled, while this thread cancels scopes (Cancellation.swift).
  var cascade: UnsafeMutablePointer<[ScopeToCancel]>?

  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>?, readyQueue: UnsafeMutablePointer<ReadyQueue>?, now: UInt64) {
    self.scheduler = scheduler
    self.readyQueue = readyQueue
    self.now = now
    wakes = scheduler
    random = now
  }

  /// The calling thread's innermost carrier.
  ///
  /// A thread-local read that no compiler keeps over a switch (hazard 4).
  @inlinable static var current: UnsafeMutablePointer<Carrier>? {
    @inline(__always) get { cco_layer().pointee.carrier?.assumingMemoryBound(to: Carrier.self) }
  }

  /// Returns the carrier and job of code that may be about to wait; throws outside a coroutine.
  ///
  /// Debug builds end the process if that code holds a ThreadMutex. Also throws inside a Task's synchronous part, if
  /// this process cannot take the Task along (hazard 14).
  @inlinable @inline(__always)
  static func requireJob() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    LockCheck.mayWait()
    return try runningJob()
  }

  /// Returns the carrier and job of the calling code, which is not about to wait; throws as `requireJob`.
  @inlinable @inline(__always)
  static func runningJob() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    guard let carrier = current, let job = carrier.pointee.job else { throw outside }
    if cco_runtime.refuses_tasks != 0, cco_is_inside_task() { throw CoroutineError.insideTask }
    return (carrier, job)
  }

  /// The error of a wait outside a coroutine; ends a forked child, where a launch would not help.
  @usableFromInline static var outside: CoroutineError {
    @inline(never) get {
      ForkedChild.mayWait()
      return .notInCoroutine
    }
  }

  /// Returns the carrier and job of code that is about to wait.
  ///
  /// Throws outside a coroutine, and if the job is cancelled. May suspend; the caller has taken nothing yet. Usually
  /// this costs one decrement more than `requireJob`.
  /// `source`: the address of what it waits for (`Shared.id`), if that is one object. Only a simulated world reads it,
  /// so it is not computed before.
  @inlinable @inline(__always)
  static func beginWaiting(
    for source: @autoclosure () -> UInt = 0
  ) throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    let (carrier, job) = try requireJob()
    let now = countWait(carrier, job, for: source())
    try job.checkCancelled()
    return (now, job)
  }

  /// Counts a wait that begins, and returns the carrier to continue with.
  @inlinable @inline(__always)
  static func countWait(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    for source: @autoclosure () -> UInt = 0
  ) -> UnsafeMutablePointer<Carrier> {
    carrier.pointee.waitsLeft &-= 1
    return carrier.pointee.waitsLeft < 0 ? giveWayIfOverdue(carrier, job, source()) : carrier
  }

  /// Counts the bytes that a system call of the running coroutine has copied, as waits.
  ///
  /// A call that copies a megabyte takes as long as some hundred short ones. So the next wait reads the clock after a
  /// megabyte at the latest, and a coroutine whose peer never makes it wait does not delay the other coroutines.
  static func countBytes(_ count: Int64) {
    let counted = Int(min(count / bytesOfWait, Int64(waits)))
    if let carrier = current { carrier.pointee.waitsLeft &-= counted }
  }

  /// The number of bytes that counts as a wait.
  static var bytesOfWait: Int64 { 4_096 }

  /// The number of waits between two reads of the clock; one read costs as much as ten settled awaits.
  @usableFromInline static var waits: Int { 256 }

  /// The time for which the driver may be kept from polling, in ns, before a job that need not wait yields.
  static var pollInterval: UInt64 { TimeSlice.slice / 4 }

  /// Yields to everything that is ready and lets the driver poll, unless it has just done so; returns the carrier after
  /// that.
  ///
  /// Does not check cancellation.
  @usableFromInline @inline(never)
  static func giveWayIfOverdue(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ source: UInt
  ) -> UnsafeMutablePointer<Carrier> {
    carrier.pointee.waitsLeft = waits
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    guard scheduler._withUnsafeGuaranteedRef({ $0.host.mustGiveWay(carrier, job, source) }) else { return carrier }
    return scheduler._withUnsafeGuaranteedRef { scheduler in
      // A worker runs all handlers in each round. A host that controls the order chooses by itself what runs.
      let hasHandlers = scheduler.isRunningHere && !scheduler.host.controlsOrder
      let handlers = hasHandlers ? scheduler.work.end : 0
      var carrier = carrier
      repeat {
        // Below zero: the driver must read the clock, even if it resumes jobs without a budget (resumeRecorded).
        carrier.pointee.grant(-1)
        giveWay(carrier, job)
        carrier = current.unsafelyUnwrapped
      } while hasHandlers && scheduler.isRunningHere && !scheduler.work.hasTaken(handlers)
      return carrier
    }
  }

  /// Sets the number of switches that are left, which counts as no switch.
  @inline(__always)
  mutating func grant(_ count: Int) {
    granted &+= count &- switchesLeft
    switchesLeft = count
  }

  /// Whether a yield would return at once: nothing is ready, there are no messages, and the driver need not poll yet.
  var isAlone: Bool {
    guard switchesLeft > 0, let scheduler, let readyQueue, readyQueue.pointee.workerPool == nil,
      readyQueue.pointee.queue.isEmpty
    else {
      return false
    }
    return scheduler._withUnsafeGuaranteedRef { !$0.inbox.hasMessages && $0.work.isEmpty }
  }

  /// Parks the running job, whose wait has begun and is published; returns the reason for which the wait ended.
  @inlinable @inline(__always)
  static func park(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> UInt8 {
    job.pointee.waitingSince.store(carrier.pointee.now, ordering: .relaxed)
    switchOut(carrier, job)
    return job.endWait()
  }

  /// Leaves the running job's stack with the job ready, at the back of its scheduler's ready queue.
  ///
  /// Three stores tell dumps that the job is ready, and since when. Between two reads of the clock, `now` stays the
  /// same, and the switches left decrease. So the time differs at each call, by some ns. From that the watchdog knows
  /// that the job does not stall its worker (Stalls.swift).
  @inline(__always)
  static func giveWay(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) {
    markReady(carrier, job)
    carrier.pointee.leaving = UInt(bitPattern: job)
    switchOut(carrier, job)
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
  }

  @inline(__always)
  private static func markReady(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) {
    let now = carrier.pointee.now &- UInt64(truncatingIfNeeded: carrier.pointee.switchesLeft)
    job.pointee.waitKind.store(WaitKind.ready.rawValue, ordering: .relaxed)
    job.pointee.waitingSince.store(now, ordering: .relaxed)
  }

  /// Gives way as `giveWay` does, but adds the job to the ready queue before it leaves its stack.
  ///
  /// Returns false, and does nothing, if another thread could see that, if there is no job to switch to directly, or if
  /// the driver must poll.
  @inline(__always)
  static func yield(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> Bool {
    guard carrier.pointee.switchesLeft > 0, let readyQueue = carrier.pointee.ownReadyQueue(of: job),
      readyQueue.pointee.workerPool == nil,
      let next = readyQueue.takeWoken(prefetching: true, where: { readyQueue.mayRun($0) })
    else {
      return false
    }
    LockCheck.noLock(.stackSwitch)
    markReady(carrier, job)
    readyQueue.pointee.queue.append(job)
    carrier.pointee.switchesLeft &-= 1
    carrier.pointee.job = next
    let mine = job.pointee.context.unsafelyUnwrapped
    cco_switch(&mine.pointee.parked, &next.pointee.context.unsafelyUnwrapped.pointee.parked)
    arrive()
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
    return true
  }

  /// Parks the running job and switches to the next: directly to a ready job, else to the driver.
  @inlinable @inline(__always)
  static func switchOut(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) {
    LockCheck.noLock(.stackSwitch)
    LockCheck.mayWait()
    let mine = job.pointee.context.unsafelyUnwrapped
    if carrier.pointee.switchesLeft > 0, let next = carrier.pointee.readyQueue.unsafelyUnwrapped.takeRunnable() {
      carrier.pointee.switchesLeft &-= 1
      carrier.pointee.job = next
      cco_switch(&mine.pointee.parked, &next.pointee.context.unsafelyUnwrapped.pointee.parked)
    } else {
      carrier.pointee.job = nil
      cco_switch(&mine.pointee.parked, &carrier.pointee.driver)
    }
    arrive()
  }

  /// The first function after a switch: does the work that the suspended context could not do while it was still on its
  /// stack.
  @inlinable @inline(__always)
  static func arrive() {
    let carrier = current.unsafelyUnwrapped
    if carrier.pointee.leaving != 0 { finishLeaving(carrier) }
  }

  @usableFromInline @inline(never)
  static func finishLeaving(_ carrier: UnsafeMutablePointer<Carrier>) {
    let word = carrier.pointee.leaving
    carrier.pointee.leaving = 0
    if word & 1 != 0 {
      let stack = UnsafeMutablePointer<cco_context>(bitPattern: word & ~1).unsafelyUnwrapped
      let stackCache = carrier.pointee.readyQueue?.stackCache
      if stackCache == nil || !stackCache.unsafelyUnwrapped.pointee.push(stack) { StackRunner.free(stack) }
      return
    }
    if word & leavingArrival != 0 {
      let arrival = UnsafeRawPointer(bitPattern: word & ~leavingArrival).unsafelyUnwrapped
      // The queue has the reference from here on.
      return Unmanaged<Arrival>.fromOpaque(arrival)._withUnsafeGuaranteedRef { $0.send() }
    }
    let job = JobRef(bitPattern: word).unsafelyUnwrapped
    // No other thread can have moved it: it was not in any queue.
    if let readyQueue = carrier.pointee.ownReadyQueue(of: job) {
      readyQueue.appendYielded(job)
    } else {
      sendRemotely(job)
    }
  }

  /// The ready queue of this carrier, if the job belongs to its scheduler.
  @inlinable @inline(__always)
  func ownReadyQueue(of job: JobRef) -> UnsafeMutablePointer<ReadyQueue>? {
    guard let scheduler, job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == scheduler.toOpaque() else {
      return nil
    }
    return readyQueue
  }

  /// Makes a job ready whose wait the caller has claimed, or that has not started: called once, on any thread.
  @inlinable @inline(__always)
  static func makeReady(_ job: JobRef) {
    if let carrier = current, let scheduler = carrier.pointee.wakes,
      job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == scheduler.toOpaque()
    {
      // A carrier with a scheduler has its ready queue.
      carrier.pointee.readyQueue.unsafelyUnwrapped.append(job)
    } else {
      makeReadySlowly(job)
    }
  }

  /// Makes a job ready that the caller has just launched.
  @inline(__always)
  static func makeLaunchedReady(_ job: JobRef) {
    guard let carrier = current, let readyQueue = carrier.pointee.ownReadyQueue(of: job) else {
      return sendLaunched(job)
    }
    job.pointee.waitingSince.store(carrier.pointee.now, ordering: .relaxed)
    readyQueue.appendLaunched(job)
  }

  /// Sends a job that was launched from elsewhere, with the time: a look at the clock is little beside the way there.
  @inline(never)
  private static func sendLaunched(_ job: JobRef) {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    let (now, mayBeLeft) = scheduler._withUnsafeGuaranteedRef { ($0.clock, $0.mayBeLeft) }
    job.pointee.waitingSince.store(now, ordering: .relaxed)
    guard mayBeLeft else { return sendRemotely(job) }
    // The job may be gone afterwards, and a pool of a test with it.
    let held = scheduler.takeUnretainedValue()
    sendRemotely(job)
    held.submitWhatIsLeft()
  }

  /// Makes a job ready that belongs to another scheduler, or whose wake-up is recorded.
  ///
  /// The caller has claimed its wait, or it has not started.
  @usableFromInline @inline(never)
  static func makeReadySlowly(_ job: JobRef) {
    Events.note(.wake, job)
    if let carrier = current, let readyQueue = carrier.pointee.ownReadyQueue(of: job) { return readyQueue.append(job) }
    sendRemotely(job)
  }

  /// Makes a job ready from another scheduler's carrier, or from none.
  ///
  /// Between workers of one pool, the waker's worker takes the job if the job is already switched out. So the job runs
  /// sooner, on warm data, and no drain must be started.
  @usableFromInline @inline(never)
  static func sendRemotely(_ job: JobRef) {
    if let carrier = current, let readyQueue = carrier.pointee.readyQueue, takeAlong(job, carrier) {
      return readyQueue.append(job)
    }
    if cco_has_worlds() { Host.of(job).noteWake(job) }
    job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.push(.job(job)) }
  }

  /// Takes a claimed job from another worker of the same pool, if it is switched out, and does not keep its thread; the
  /// caller must enqueue it.
  static func takeAlong(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) -> Bool {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    guard let workerPool = carrier.pointee.readyQueue?.pointee.workerPool,
      let mine = carrier.pointee.scheduler,
      scheduler._withUnsafeGuaranteedRef({ $0.readyQueue.pointee.workerPool?.toOpaque() }) == workerPool.toOpaque(),
      // A job that has not started stays where it was launched.
      job.hold.mayMove, job.pointee.context != nil
    else {
      return false
    }
    job.pointee.scheduler.store(mine, ordering: .releasing)
    return true
  }
}

extension UnsafeMutablePointer<Carrier> {
  /// The scheduler of the calling code: its coroutine's, or the drain's if it is a handler.
  ///
  /// In an immediate start it is not `pointee.scheduler`, which the launching code runs on.
  var callerScheduler: Unmanaged<Scheduler>? {
    pointee.job?.pointee.scheduler.load(ordering: .relaxed) ?? pointee.scheduler
  }
}

// MARK: - Random numbers

// The random numbers of a carrier: a select chooses by them among several ready cases, a back-off draws its pauses.

extension Carrier {
  /// Draws a random number from 0 to below 1; in a simulated world from the numbers of the world's seed.
  static func drawFraction() -> Double {
    guard let carrier = current, let scheduler = carrier.pointee.scheduler else { return .random(in: 0..<1) }
    return scheduler._withUnsafeGuaranteedRef { $0.host.random(carrier) }
  }

  /// Draws a random number: a Weyl sequence that starts with the carrier, mixed on the way out (SplitMix).
  ///
  /// Each carrier has its own, so that selects on different threads share no memory word.
  @inline(__always)
  mutating func drawNumber() -> UInt64 {
    random &+= 0x9E37_79B9_7F4A_7C15
    var mixed = (random ^ (random >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}

// MARK: - Stacks

// The stacks of jobs. A stack runs one job after another. When a job finishes and the next ready one has not started,
// that one runs on the same stack with no switch at all. Otherwise the stack is parked in the C core's trampoline,
// FINISHED, and waits in a cache for its next job.

enum StackRunner {
  typealias Stack = UnsafeMutablePointer<cco_context>

  /// Returns a context for a job, or the reason why there is none.
  static func make(for job: JobRef) -> Result<Stack, CoroutineError> {
    let bytes = job.pointee.stackBytes
    var context: Stack?
    switch cco_create(bytes, { context, _ in StackRunner.run(context) }, nil, &context) {
    case CCO_OK: return .success(context!)
    case CCO_STACK_TOO_LARGE: return .failure(.stackTooLarge(bytes))
    case let status: return .failure(.outOfStacks(String(cString: cco_status_message(status))))
    }
  }

  /// Returns the stack of an idle context to the pool.
  static func free(_ stack: Stack) {
    let status = cco_destroy(stack)
    if status != CCO_OK { misuse("an idle stack was not idle") }
  }

  /// Runs the carrier's job to its end, and returns the flow to continue.
  ///
  /// Everything that it retains is released before the stack is parked. Not inlined into the closure that is passed as
  /// a C function: there the compiler would emit calls for functions that must be inlined.
  @inline(never)
  private static func run(_ stack: Stack) -> UnsafeMutablePointer<cco_saved_context>? {
    Carrier.arrive()
    perform(Carrier.current.unsafelyUnwrapped.pointee.job.unsafelyUnwrapped, on: stack)
    return leave(stack)
  }

  /// Returns the flow to continue behind the end of a job.
  @inline(__always)
  private static func leave(_ stack: Stack) -> UnsafeMutablePointer<cco_saved_context>? {
    guard let carrier = Carrier.current else {
      misuse("a forked child has returned from the body of its parent's coroutine; call exec or _exit in the child")
    }
    if carrier.pointee.switchesLeft > 0, let readyQueue = carrier.pointee.readyQueue {
      carrier.pointee.switchesLeft -= 1
      if let next = readyQueue.takeUnstarted(UInt8(truncatingIfNeeded: stack.pointee.size_class)) {
        carrier.pointee.job = next
        next.pointee.context = stack
        return savedContext(of: stack)
      }
      carrier.pointee.leaving = UInt(bitPattern: stack) | 1
      if let next = readyQueue.takeRunnable() {
        carrier.pointee.job = next
        return savedContext(of: next.pointee.context.unsafelyUnwrapped)
      }
      // To go to the driver is no switch to a job.
      carrier.pointee.granted -= 1
    }
    carrier.pointee.leaving = UInt(bitPattern: stack) | 1
    carrier.pointee.job = nil
    return withUnsafeMutablePointer(to: &carrier.pointee.driver) { $0 }
  }

  // Sound because `parked` is a stored field of a context, whose address stays the same as long as its stack is mapped.
  @inline(__always)
  private static func savedContext(
    of context: UnsafeMutablePointer<cco_context>
  ) -> UnsafeMutablePointer<cco_saved_context> {
    withUnsafeMutablePointer(to: &context.pointee.parked) { $0 }
  }

  @inline(__always)
  private static func perform(_ job: JobRef, on stack: Stack) {
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
    stack.pointee.label = job.label
    job.handle._withUnsafeGuaranteedRef { $0.completion.pointee.work(nil, $0) }
    job.pointee.context = nil
    AnyJob.retire(job)
    // Cleared last: destroying the result may overflow the stack as well.
    stack.pointee.label = nil
  }
}

// MARK: - Keeping a thread

// Coroutines that keep their thread (co_pinned). From `keepThread` to `releaseThread`, all code of the job runs on one
// thread. The job may wait, and other jobs run on that thread meanwhile.
//
// The argument has two steps.
//
// 1. The scheduler has one thread. A job runs in the drain of its scheduler (Scheduler.swift, 1). If the host has a
//    thread of its own, every drain is on that thread:
//    - a worker's. A spare worker's thread ends after a time without work, and the next work starts another one. So it
//      does not end while `keepers` is not zero (WorkerHost.mayEnd). Only the thread and the coroutines on it use that
//      number.
//    - the thread of a CoroutineHost, and the one that drives a simulated world.
//    One case is not in a drain: an immediate start on a thread that is not the scheduler's (JobRecord.swift).
//    Such a job first leaves that thread, as by a yield (`requireOwnThread`).
//
// 2. The scheduler of the job does not change. This table lists all code that stores `JobRecord.scheduler`:
//
//      code                                             why it does not move the job
//      the job: co_switch, co_isolated (Arrival)        `requireMovable` throws
//      a waker on another worker (takeAlong)            `staysThere`
//      a batch of events on another worker (takeAlong)  the same
//      a worker that steals (takeHalf)                  takes only jobs that do not keep their thread
//      a take-over, ready jobs (takeHalf)               the same
//      a take-over, jobs in the inbox (mayMove)         `staysThere`
//
// Why all of them see the flag. The job sets it while it runs, and clears it while it runs. The other code reads the
// flag of a job that is parked and claimed, or ready. By the claim of the wait, or under the lock of the ready queue,
// it has acquired what the job did before it left its stack. So it sees the current value, and the job does not run
// until the other thread has decided. A queue without the mark `kept` contains no such job: the owner sets the mark,
// under the lock, before the first one can be ready there, and clears it after the last one has cleared its flag.
//
// Nesting, errors, generators. Each co_pinned has a frame in the chain of cancellation frames (Cancellation.swift),
// which has no effect on cancellation. The outermost one sets the flag and clears it. A generator's body that yields
// inside of it gets CoroutineError.yieldInsideScope, as in every other frame: the next step may come from another job.
//
// Other jobs pay nothing. The flag is one more bit of masks that are tested anyway, and the mark is one more bit of a
// byte that a steal reads. The watchdog takes over jobs behind a coroutine that computes on a kept thread as usual, but
// not jobs that keep their thread. A worker that finds only such jobs to steal counts that as a steal that does not pay
// (WorkerHost.swift). Otherwise it would be woken for each of them.

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Brings the running job to the one thread of its scheduler; throws if the scheduler has none.
  ///
  /// Suspends only if the job was started immediately on another thread, and has not suspended since.
  func requireOwnThread() throws {
    while true {
      let scheduler = pointee.scheduler.load(ordering: .relaxed)
      let isThere = try scheduler._withUnsafeGuaranteedRef { scheduler in
        guard scheduler.host.hasOwnThread else { throw CoroutineError.cannotPin }
        return scheduler.isRunningHere
      }
      guard !isThere, let carrier = Carrier.current else { return }
      Carrier.giveWay(carrier, self)
    }
  }

  /// Makes the running job keep its thread; returns false if it does already.
  func keepThread() -> Bool {
    let old = pointee.flags.bitwiseOr(JobFlags.keepsThread, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.keepsThread == 0 else { return false }
    pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.changeKeepers(by: 1) }
    return true
  }

  /// Lets the running job change its thread again.
  func releaseThread() {
    _ = pointee.flags.bitwiseAnd(~JobFlags.keepsThread, ordering: .acquiringAndReleasing)
    // In a forked child no thread is left that could have stolen the job, or that holds the lock.
    if ForkedChild.isHere { return }
    pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.changeKeepers(by: -1) }
  }

  /// Throws if the running job must stay on its scheduler.
  func requireMovable() throws {
    if keepsThread { throw CoroutineError.cannotPin }
  }
}

extension Scheduler {
  /// Changes the number of live jobs that keep the thread.
  ///
  /// Called by such a job, on the thread.
  fileprivate func changeKeepers(by difference: Int) {
    keepers += difference
    if readyQueue.pointee.workerPool != nil { readyQueue.markKept(keepers > 0) }
  }
}
