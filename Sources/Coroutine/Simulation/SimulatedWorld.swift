import CCoroutine
import Dispatch
import Synchronization

// One thread that drives every coroutine of a test: in virtual time, in an order that a policy chooses.
//
// A world has an executor for each queue that its coroutines name, and one for the worker pool. An executor has an
// ordinary scheduler whose host is the world. No drain runs: the world's loop takes one step of one coroutine at a
// time.
//
//   gather      lists the jobs, Swift jobs and handlers that became ready since the last step as candidates
//   choose      the policy names a candidate, if there are several
//   perform     the candidate runs until it waits, yields or ends, or until a point at which another one is chosen
//   pass time   without candidates, the clock moves to the next timer
//
// Invariants
//  1. A step is atomic: only the thread in `run` resumes coroutines of the world, one at a time.
//  2. Every difference between two runs of one program is a choice of the policy. Candidates are listed in an order
//     that depends on earlier choices only: executors in the order of their creation, jobs in the order of their
//     wake-ups.
//  3. A job is in at most one of: `candidates`, an executor's `waiting`, its scheduler's ready queue, the inbox.
//  4. A serial executor has at most one candidate that has not begun or has parked, because its queue runs first in,
//     first out. The other jobs of the queue may overtake a coroutine that is about to wait, as in production
//     (Carrier.giveWayIfOverdue). They cannot overtake one that is at a co_point.
//  5. Candidate 0 runs if there is no policy. It is the running coroutine at a point, otherwise the candidate that has
//     been ready longest. So a run whose choices are all 0 has the order "first in, first out".
//
// Waits that no coroutine of the world can end. The world cannot see a callback of a real thread. `outside` lists the
// coroutines that have declared such a wait. Only for these the loop blocks its thread. Any other wait that nothing can
// end is a deadlock, which is reported at once.
//
// Tasks that co_await starts. Their Swift jobs are candidates, as handlers are. A Task may wait for something outside,
// for example for a sleep of Swift's. The world detects that in one of two ways: nothing else can run, or a real thread
// resumes the Task. Both are a RealWait.

package final class SimulatedWorld: @unchecked Sendable {
  // Sound because the driving thread alone uses everything mutable, except `time` and
  // `hasSwiftJobFromOutside`, which are atomic, and `wakeUp`, a semaphore. Exclusivity is not checked, because the
  // checks were a sixth of a search's time.

  let policy: any WorldPolicy
  /// The owner of the world, which `World.current` returns.
  ///
  /// Unowned, because the owner holds the world.
  package unowned(unsafe) let owner: AnyObject
  private let seed: UInt64
  /// Atomic because a dump on another thread may read it.
  private let time = Atomic<UInt64>(SimulatedWorld.start)
  package static var start: UInt64 { 1_000_000_000 }
  let wakeUp = DispatchSemaphore(value: 0)
  /// Whether a thread outside of the world has resumed a Task of the world.
  let hasSwiftJobFromOutside = Atomic<Bool>(false)

  @exclusivity(unchecked) private(set) var executors: [SimulatedExecutor] = []
  @exclusivity(unchecked) private var executorsByQueue: [ObjectIdentifier: SimulatedExecutor] = [:]
  @exclusivity(unchecked) private var candidates = CandidateList()
  @exclusivity(unchecked) private var lastID: UInt64 = 0
  @exclusivity(unchecked) private(set) package var steps = 0
  /// The number of listed entries of coroutines that change their queue (SwitchEntry.swift).
  @exclusivity(unchecked) private var entries = 0
  /// The objects that the coroutines touch; nil if the policy does not need them.
  @exclusivity(unchecked) package var footprints: Footprints?

  /// The candidate that runs, or ran last.
  @exclusivity(unchecked) private(set) var running: Candidate?
  /// The running coroutine, if it is a candidate already, because another one was chosen at a point.
  @exclusivity(unchecked) private var listed: JobRef?
  /// The candidate that was chosen at a point.
  @exclusivity(unchecked) private var next: Candidate?
  /// Whether the current step has begun, and its end has not been reported to the policy.
  @exclusivity(unchecked) private var isStepOpen = false
  /// The number of points that the running coroutine has passed in this step.
  @exclusivity(unchecked) private var pointsPassed = 0
  @exclusivity(unchecked) private var settling = WaitQueue()
  private let settlingLock = SpinLock()
  /// The coroutines that have declared waits for the real world, and the depth of their declarations.
  @exclusivity(unchecked) var outside: [JobRef: Int] = [:]
  /// The first error that the world has found; the code under test may have caught it.
  @exclusivity(unchecked) private(set) var finding: (any Error)?
  /// Whether every choice is 0, without asking the policy.
  @exclusivity(unchecked) private var isInOrder = false
  /// The number of cancellation errors that the running coroutine has thrown in this step.
  @exclusivity(unchecked) var cancellations = 0
  /// The largest time, in nanoseconds of the world, before the body must have ended.
  @exclusivity(unchecked) package var timeLimit = UInt64.max
  /// The largest number of steps while no time passes.
  ///
  /// More steps mean an endless loop.
  @exclusivity(unchecked) package var mostSteps = 10_000_000
  /// The number of steps at the moment when time passed last.
  @exclusivity(unchecked) private var stepsBefore = 0
  /// Whether `stepEnded` is called, and `endDump` is stored.
  @exclusivity(unchecked) package var isTraced = false
  /// The dump of the live coroutines when the run had ended or failed, before they were cancelled.
  package private(set) var endDump = ""

  package init(owner: AnyObject, policy: any WorldPolicy, seed: UInt64) {
    ForkedChild.noteUse()
    self.owner = owner
    self.policy = policy
    self.seed = seed
  }

  /// The network of the world; an object of CoroutineTesting, opaque to the runtime.
  package var network: AnyObject?

  /// Returns the clock of the running code's host; nil if every host has the world's clock.
  @exclusivity(unchecked) package var clockOfCaller: (() -> LocalClock?)?

  /// The network of the calling code's world; nil outside, and for a coroutine that has declared real waits.
  package static var currentNetwork: AnyObject? {
    guard cco_has_worlds(), let world = current else { return nil }
    if let job = Carrier.current?.pointee.job, world.isOutside(job) { return nil }
    return world.network
  }

  /// Nanoseconds since the beginning of the world.
  package var elapsed: UInt64 { now - Self.start }
  /// Nanoseconds on the clock of the timers, which shows `start` when the world begins.
  package var now: UInt64 { time.load(ordering: .relaxed) }

  /// The world of the calling code, nil outside.
  package static var current: SimulatedWorld? {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return nil }
    return scheduler._withUnsafeGuaranteedRef { ($0.host as? SimulatedHost)?.world }
  }

  // MARK: Executors

  /// The executor of `queue`; without a queue, of the worker pool.
  func executor(of queue: DispatchQueue?) -> SimulatedExecutor {
    guard let queue else { return executors.isEmpty ? addExecutor(nil) : executors[0] }
    if let found = executorsByQueue[ObjectIdentifier(queue)] { return found }
    let made = addExecutor(queue)
    executorsByQueue[ObjectIdentifier(queue)] = made
    return made
  }

  private func addExecutor(_ queue: DispatchQueue?) -> SimulatedExecutor {
    let executor = SimulatedExecutor(self, queue, index: executors.count, seed: seed)
    executors.append(executor)
    return executor
  }

  func takeID() -> UInt64 {
    lastID += 1
    return lastID
  }

  private func mount(_ executor: SimulatedExecutor) {
    cco_thread().pointee.carrier = UnsafeMutableRawPointer(executor.carrier)
  }

  // MARK: Running

  /// Runs `body` in a coroutine, and all coroutines that it launches, on the calling thread, until none is left.
  ///
  /// Called once.
  package func run<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    cco_guard_thread()
    let outer = (carrier: cco_thread().pointee.carrier, locals: cco_thread().pointee.locals)
    cco_worlds_changed(1)
    defer {
      cco_worlds_changed(-1)
      cco_thread().pointee.carrier = outer.carrier
      cco_thread().pointee.locals = outer.locals
    }
    let pool = executor(of: nil)
    mount(pool)
    let job = Job(
      scheduler: pool.scheduler.forRecord(),
      name: "body",
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line),
      body: body
    )
    job.launch(.queued, holding: nil)
    // The body has inherited the caller's bindings; handlers and Swift jobs do not see them, as in a drain.
    cco_thread().pointee.locals = nil
    var failure: (any Error)?
    do {
      try drive(until: { job.completion.isSettled })
      settleLeftovers()
      if case .success = job.completion.seenOutcome(as: Success.self), hasLive {
        failure = policy.leftRunning(dump)
      }
    } catch {
      failure = error
    }
    if isTraced { endDump = dump }
    close()
    if job.completion.isSettled, case .failure(let error) = job.completion.seenOutcome(as: Success.self), failure == nil
    {
      throw finding ?? error
    }
    if let failure = finding ?? failure { throw failure }
    return try job.completion.get(as: Success.self)
  }

  /// Takes steps until the body has ended.
  private func drive(until isOver: () -> Bool) throws {
    while !isOver() {
      gather()
      if let candidate = takeNext() {
        perform(candidate)
        if steps - stepsBefore > mostSteps { throw policy.overLimit(nil, dump) }
      } else if try !wakeSettled() && !waitOutside() {
        if let due = nextTimer, due - Self.start > timeLimit { throw policy.overLimit(timeLimit, dump) }
        if !passTime() { throw waitsForTask ?? policy.deadlock(dump) }
        stepsBefore = steps
      }
    }
  }

  /// Runs the coroutines that can end without time passing, so that only those that wait count as left running.
  private func settleLeftovers() {
    isInOrder = true
    for _ in 0..<100_000 {
      gather()
      guard hasLive, let candidate = candidates.isEmpty ? nil : candidates.remove(at: 0) else { return }
      perform(candidate)
    }
  }

  /// Cancels all remaining coroutines, and runs them to their ends, in order and in virtual time.
  ///
  /// A coroutine that cannot be cancelled stays parked for ever: a stack with live frames is not freed.
  private func close() {
    isInOrder = true
    isTraced = false
    for _ in 0..<16 {
      for executor in executors { executor.cancelAll() }
      var steps = 0
      while steps < 1_000_000 {
        gather()
        if !candidates.isEmpty {
          perform(candidates.remove(at: 0))
          steps += 1
        } else if !wakeSettled(), !hasLive || !passTime() {
          break
        }
      }
      if !hasLive { break }
    }
    for executor in executors {
      mount(executor)
      executor.close()
    }
    // The executors own their carriers.
    cco_thread().pointee.carrier = nil
    executors = []
    executorsByQueue = [:]
  }

  private var hasLive: Bool { executors.contains { $0.scheduler.liveJobs > 0 } }
  var dump: String { Dump.text(of: executors.map(\.scheduler)) }
  package var currentDump: String { dump }

  // MARK: Candidates

  /// Lists everything that became ready as candidates.
  private func gather() {
    gatherReady()
    while entries > 0, let candidate = candidates.removeCancelledEntry(), let entry = candidate.job {
      // The coroutine may be a candidate itself by now, with the same number.
      drop(entry, of: candidate)
    }
  }

  /// Passes by the entry of a coroutine that does not come any more.
  private func drop(_ entry: JobRef, of candidate: Candidate) {
    entries -= 1
    _ = candidate.executor.scheduler.jobToResume(entry)
    candidate.executor.ended(candidate, &candidates)
  }

  private func gatherReady() {
    var isComplete: Bool
    repeat {
      isComplete = true
      // By index, because handling a message may create an executor.
      var index = 0
      while index < executors.count {
        if gather(executors[index]) { isComplete = false }
        index += 1
      }
    } while !isComplete
  }

  /// Lists everything that became ready in one executor.
  ///
  /// Returns whether it has handled messages, which may have made jobs of other executors ready.
  @inline(__always)
  private func gather(_ executor: SimulatedExecutor) -> Bool {
    let scheduler = executor.scheduler
    let hasMessages = scheduler.inbox.hasMessages
    if hasMessages {
      let mounted = cco_thread().pointee.carrier
      mount(executor)
      scheduler.inbox.takeAll(isShared: false, scheduler.handle)
      cco_thread().pointee.carrier = mounted
      // After the messages: taking them acquires the stores that were made before they were sent.
      if hasSwiftJobFromOutside.load(ordering: .relaxed) { checkSwiftJobFromOutside() }
    }
    while let job = scheduler.readyQueue.pointee.queue.popFirst() {
      if job.isEntry { entries += 1 }
      if job == listed { listed = nil } else { executor.add(.job(job), to: &candidates) }
    }
    if scheduler.exclusion.hasJobsToRequeue {
      // Only them: what is there already is listed below.
      var others = WorkQueue()
      swap(&others, &scheduler.work)
      scheduler.requeueDeferred()
      executor.putInFront(&scheduler.work, of: &candidates)
      swap(&others, &scheduler.work)
    }
    while let item = scheduler.work.popFirst() { executor.add(item, to: &candidates) }
    return hasMessages
  }

  /// Removes and returns the next candidate.
  ///
  /// It is the one that was chosen at the last point; without a point, the policy chooses it now.
  private func takeNext() -> Candidate? {
    if let chosen = next.take() { return chosen }
    if candidates.count < 2 { return candidates.isEmpty ? nil : candidates.remove(at: 0) }
    let previous = running?.id ?? 0
    let index = candidates.withWindow { policy.chooseNext($0, continues: false, previous: previous) }
    return candidates.remove(at: index)
  }

  /// Takes one step.
  private func perform(_ chosen: Candidate) {
    let executor = chosen.executor
    mount(executor)
    steps += 1
    var candidate = chosen
    if let next = candidate.job, next.isEntry {
      entries -= 1
      executor.carrier.pointee.job = nil
      guard let job = executor.scheduler.jobToResume(next) else { return executor.ended(chosen, &candidates) }
      candidate = Candidate(.job(job), id: job.pointee.label.id, executor, isHead: chosen.isHead)
    }
    running = candidate
    pointsPassed = 0
    cancellations = 0
    executor.carrier.pointee.now = now
    // Dumps read this.
    executor.scheduler.lastLook.store(now, ordering: .relaxed)
    beginStep(candidate)
    defer { finishStep() }
    guard let job = candidate.job else {
      executor.carrier.pointee.job = nil
      candidate.run()
      executor.ended(running.unsafelyUnwrapped, &candidates)
      if isTraced { policy.stepEnded(SimulatedStep(candidate, now: elapsed)) }
      return
    }
    if executor.scheduler.deferIfForeign(job, JobFlags.deferredWake) { return executor.ended(candidate, &candidates) }
    // Every wait begins with a decrement of this number, and calls the host (`reachesPoint`) if it is below zero.
    executor.carrier.pointee.waitsLeft = 0
    executor.carrier.pointee.switchesLeft = 0
    let traced = isTraced ? job.handle.takeUnretainedValue() : nil
    executor.scheduler.resume(job, executor.carrier)
    executor.ended(running.unsafelyUnwrapped, &candidates)
    if let traced { policy.stepEnded(SimulatedStep(traced, isInterrupted: listed == job, now: elapsed)) }
  }

  @inline(__always)
  private func beginStep(_ candidate: Candidate) {
    if footprints == nil { return }
    footprints?.begin(candidate)
    isStepOpen = true
  }

  /// Records that the running candidate uses an object without waiting for it.
  func touches(_ object: UInt) {
    if let running { footprints?.touch(running.id, object) }
  }

  /// Ends the current step, if it is open.
  ///
  /// A step that ended at a point is closed already when its coroutine leaves the stack.
  @inline(__always)
  private func finishStep() {
    if !isStepOpen { return }
    // The step may have sent a message to another executor, for example to cancel one of its coroutines.
    gather()
    guard let footprints, let running else { return }
    isStepOpen = false
    policy.stepFinished(running.id, isUniversal: footprints.isUniversal) { footprints.touches($0) }
  }

  /// Lets the policy choose at a point whether the running coroutine continues; returns whether it must leave its
  /// stack.
  ///
  /// Called on the coroutine's stack, before a wait begins or at a co_point.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool {
    guard let candidate = running, candidate.job == job, let carrier = Carrier.current,
      carrier == candidate.executor.carrier
    else {
      // A coroutine that starts immediately, on a nested carrier, belongs to its launcher's step.
      return !holdsQueue
    }
    carrier.pointee.waitsLeft = 0
    // A coroutine whose waits are all satisfied at once must not starve the other ones.
    pointsPassed += 1
    if pointsPassed > 256, !holdsQueue || !candidate.executor.isSerial {
      pointsPassed = 0
      return true
    }
    if isInOrder { return false }
    if !holdsQueue { candidate.executor.letOvertake(&running!, &candidates) }
    gather()
    finishStep()
    footprints?.arrive(candidate.id, source)
    if candidates.isEmpty {
      beginStep(candidate)
      return false
    }
    candidates.prepend(running.unsafelyUnwrapped)
    let index = candidates.withWindow { policy.chooseNext($0, continues: true, previous: candidate.id) }
    let chosen = candidates.remove(at: index)
    if chosen.word == candidate.word {
      beginStep(candidate)
      return false
    }
    next = chosen
    listed = job
    running!.isHead = false
    return true
  }

  /// Lists a body of co_blocking as a candidate.
  func addBlocking(_ body: @escaping @Sendable () -> Void) {
    let item = Inbox.Message.work(ClosureWork.retained(body, nil))
    candidates.append(Candidate(item, id: Candidate.noJob | takeID(), executor(of: nil), isHead: false))
  }

  // MARK: Time

  private var nextTimer: UInt64? {
    var next = UInt64.max
    for executor in executors { next = min(next, executor.scheduler.nextTimer.load(ordering: .relaxed)) }
    return next == .max ? nil : next
  }

  /// Moves the clock to the next timers and fires them; returns false if there are no timers.
  private func passTime() -> Bool {
    guard let next = nextTimer else { return false }
    let now = max(now, next)
    time.store(now, ordering: .relaxed)
    running = nil
    for executor in executors where executor.scheduler.nextTimer.load(ordering: .relaxed) <= now {
      mount(executor)
      executor.carrier.pointee.job = nil
      executor.carrier.pointee.now = now
      executor.scheduler.fireTimers(now)
    }
    return true
  }

  /// Suspends the running coroutine until no other one can run without time passing.
  ///
  /// Throws the cancellation error, and `notInCoroutine` outside a coroutine.
  package func settle() throws {
    let (carrier, job) = try Carrier.beginWaiting()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      settlingLock.lock()
      _ = try WaitQueue.park(carrier, job, .callback) { epoch in
        settling.append(waiter, epoch)
        settlingLock.unlock()
      } withdraw: {
        settlingLock.withLock { settling.remove(waiter) }
      }
    }
  }

  /// Wakes the coroutine that has waited longest in `settle`; returns false if there is none.
  private func wakeSettled() -> Bool {
    settlingLock.lock()
    let waiter = settling.claimFirst()
    settlingLock.unlock()
    guard let waiter else { return false }
    waiter.wake()
    return true
  }

  /// Returns an index below `count` that the policy chooses; 0 while the world ends.
  package func choose(_ count: Int) -> Int { isInOrder || count < 2 ? 0 : policy.choose(count) }

  /// Makes the run fail with `error`, unless the run has failed before.
  package func fail(_ error: any Error) { if finding == nil, !isInOrder { finding = error } }
}
