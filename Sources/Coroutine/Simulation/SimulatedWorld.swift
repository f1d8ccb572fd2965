import CCoroutine
import CCoroutineRuntime
import Dispatch
import Synchronization

// One thread that drives every coroutine of a test: in virtual time, in an order that a policy chooses.
//
// A world has an executor for each queue that its coroutines name, and one for the worker pool. An executor has an
// ordinary scheduler whose host is the world. No drain runs: the world's loop takes one step of one coroutine at a
// time.
//
//   gather      lists the jobs, Swift jobs and handlers that became ready since the last step as candidates
//   takeNext    the policy names a candidate, if there are several
//   perform     the candidate runs until it waits, yields or ends, or until a point at which another one is chosen
//   passTime    without candidates, the clock moves to the next timer
//
// Invariants
//  1. A step is atomic: only the thread in `run` resumes coroutines of the world, one at a time.
//  2. Every difference between two runs of one program is a choice of the policy. Candidates are listed in an order
//     that depends on earlier choices only: executors in the order of their creation, jobs in the order of their
//     wake-ups.
//  3. A job is in at most one of: `candidates`, an executor's `waiting`, its scheduler's ready queue, the inbox. The
//     one exception is a coroutine that leaves its stack at a point (below).
//  4. A serial executor has at most one candidate that has not begun or has parked, because its queue runs first in,
//     first out. The other jobs of the queue may overtake a coroutine that is about to wait, as in production
//     (Carrier.giveWayIfOverdue). They cannot overtake one that is at a co_point.
//  5. Candidate 0 runs if there is no policy. It is the running coroutine at a point, otherwise the candidate that has
//     been ready longest. So a run whose choices are all 0 has the order "first in, first out".
//
// Waits that no coroutine of the world can end. A coroutine declares them by a binding (`declared`), which those that
// it launches inherit. Only for these the loop blocks its thread: before time passes for one that only the real world
// ends, and after that, for ten seconds, for one that it may end. Any other one is found, whatever the real time at
// which it ends:
//   before it begins    the cell of a callback knows that a real thread has settled it (`isFromOutside`)
//   while others run    the wake-up comes from a real thread (`noteWake`)
//   not yet             nothing can run, and a coroutine waits for a callback, a Task, or a job of outside
//                       (`waitsForOutside`)
// All three are a World.RealWaitError. A wait for another object, a channel for example, is a deadlock if nothing can
// run: the world cannot see that a real thread has the object too.
//
// Tasks that co_await starts. Their Swift jobs are candidates, as handlers are. A Task may wait for something outside,
// for example for a sleep of Swift's. The world detects that in one of two ways: nothing else can run, or a real thread
// resumes the Task. Both are a World.RealWaitError.

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
  let time = Atomic<UInt64>(SimulatedWorld.start)
  let wakeUp = DispatchSemaphore(value: 0)
  let standIns = StandIns()
  /// Whether a thread outside of the world has resumed a Task of the world.
  let hasSwiftJobFromOutside = Atomic<Bool>(false)
  /// The coroutines that other threads wake.
  let foreignWakes = ForeignWakes()
  /// Whether a coroutine has ever declared its waits: otherwise none need be searched for.
  @exclusivity(unchecked) package var hasDeclared = false

  @exclusivity(unchecked) var executors: [SimulatedExecutor] = []
  @exclusivity(unchecked) var executorsByQueue: [ObjectIdentifier: SimulatedExecutor] = [:]
  @exclusivity(unchecked) var candidates = CandidateList()
  @exclusivity(unchecked) private var lastID: UInt64 = 0
  /// The number of listed arrivals of coroutines that change their queue (Arrival.swift).
  @exclusivity(unchecked) var arrivals = 0
  /// The objects that the coroutines touch; nil if the policy does not need them.
  @exclusivity(unchecked) package var footprints: Footprints?
  /// The Tasks; nil if none is the world's own.
  @exclusivity(unchecked) package var tasks: (any SimulatedTasks)?

  /// The flow of control that runs, or ran last.
  @exclusivity(unchecked) var step = Step.idle(previous: nil)
  /// Whether the body has ended or the run has failed: what is left runs in order, without asking the policy.
  @exclusivity(unchecked) var isEnding = false
  /// The number of steps.
  @exclusivity(unchecked) package var steps = 0
  /// The number of steps at the moment when time passed last.
  @exclusivity(unchecked) var stepsBefore = 0
  /// The largest number of steps while no time passes.
  ///
  /// More mean an endless loop, as does time without a limit that passes as often (`passings`).
  @exclusivity(unchecked) package var mostSteps = 10_000_000
  @exclusivity(unchecked) private var passings = 0
  /// The largest time, in nanoseconds of the world, before the body must have ended; `.max` if there is none.
  @exclusivity(unchecked) package var timeLimit = UInt64.max

  /// The coroutines that wait in `settle`.
  @exclusivity(unchecked) var settling = WaitQueue()
  let settlingLock = SpinLock()
  /// The first error that the world has found; the code under test may have caught it.
  @exclusivity(unchecked) private(set) var finding: (any Error)?
  /// The first failure that the body's own error comes before: one that nothing has observed, or found after the body.
  @exclusivity(unchecked) private(set) var unhandled: (any Error)?
  /// Whether the test allows a failure that nothing observes.
  @exclusivity(unchecked) package var allowsUnhandled: (CoroutineRuntime.UnhandledError) -> Bool = { _ in false }
  /// Whether the bindings are those of a host that has crashed; nil if none has.
  @exclusivity(unchecked) private var isOfCrashedHost: ((LocalBinding?) -> Bool)?
  /// Whether the flow of control that runs is one of a host that has crashed.
  @exclusivity(unchecked) private var stepHasCrashed = false
  /// Whether what is left is being cancelled.
  @exclusivity(unchecked) var isClosing = false
  /// Whether `stepEnded` is called, and `endDump` is stored.
  @exclusivity(unchecked) package var isTraced = false
  /// The dump of the live coroutines when the run had ended or failed, before they were cancelled.
  package var endDump = ""

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

  func mount(_ executor: SimulatedExecutor) {
    cco_layer().pointee.carrier = UnsafeMutableRawPointer(executor.carrier)
  }

  // MARK: For policies and reports

  var hasLiveCoroutines: Bool { executors.contains { $0.scheduler.liveJobs > 0 } }
  var hasLive: Bool { hasLiveCoroutines || tasks?.hasLive ?? false }
  var dump: String {
    let tasks = tasks?.dump ?? ""
    return !tasks.isEmpty && !hasLiveCoroutines ? tasks : Dump.text(of: executors.map(\.scheduler)) + tasks
  }
  package var currentDump: String { dump }

  /// Returns an index below `count` that the policy chooses; 0 while the world ends.
  package func choose(_ count: Int) -> Int { isEnding || count < 2 ? 0 : policy.choose(count) }

  /// Returns whether what was written in one piece is read in several; false while the world ends.
  package func chooseSplit() -> Bool { !isEnding && policy.chooseSplit() }

  /// Makes the run fail with `error`, unless the run has failed before, or what is left is being cancelled.
  package func fail(_ error: any Error) {
    if isClosing { return }
    if isEnding { unhandled = unhandled ?? error } else { finding = finding ?? error }
  }

  // MARK: Failures that nothing observes

  /// Makes the run fail with the first failure that nothing has observed, in place of telling the handler; returns
  /// false if the handler is to be told.
  ///
  /// It is if the test allows the failure, if what fails was cancelled with a host that has crashed, or with all that
  /// is left at the end. The body's own error is not hidden by this one.
  func takesUnhandled(_ error: CoroutineRuntime.UnhandledError) -> Bool {
    if unhandled != nil || isClosing || stepHasCrashed || allowsUnhandled(error) { return false }
    if let isOfCrashedHost, isOfCrashedHost(LocalBinding.current) { return false }
    unhandled = policy.unhandled(error)
    return true
  }

  /// Whether the calling code is on a host that has crashed, and unwinds.
  package static var callerHasCrashed: Bool {
    current.map { $0.isOfCrashedHost?(LocalBinding.current) ?? false } ?? false
  }

  /// Says which bindings are those of a host that has crashed.
  package func crashed<Value>(_ local: CoroutineLocal<Value>, where isMeant: @escaping (Value) -> Bool) {
    isOfCrashedHost = { isMeant(local.value(from: $0)) }
    stepHasCrashed = false
  }
}

// MARK: - The loop

// The loop of a world: it gathers, takes the next candidate, and lets it take a step.

extension SimulatedWorld {
  /// Runs `body` in a coroutine, and all coroutines that it launches, on the calling thread, until none is left.
  ///
  /// Called once.
  package func run<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    try driven { try runCoroutine(body) }
  }

  /// Calls `body`, which drives the world on the calling thread.
  func driven<R>(_ body: () throws -> R) throws -> R {
    cco_guard_thread()
    let outer = (carrier: cco_layer().pointee.carrier, locals: cco_layer().pointee.locals)
    cco_worlds_changed(1)
    defer {
      cco_worlds_changed(-1)
      cco_layer().pointee.carrier = outer.carrier
      cco_layer().pointee.locals = outer.locals
    }
    return try body()
  }

  private func runCoroutine<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    // Programs of coroutines may rely on it that a timer fires when nothing else can run: worlds promise that.
    tasks?.lateLeft = 0
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
    cco_layer().pointee.locals = nil
    var failure: (any Error)?
    do {
      try drive(until: { job.completion.known.isSettled })
      settleLeftovers()
      if case .success = job.completion.seenOutcome(as: Success.self), hasLiveCoroutines {
        failure = policy.leftRunning(dump)
      }
    } catch {
      failure = error
    }
    if isTraced { endDump = dump }
    close()
    if failure == nil, job.completion.known.isSettled,
      case .failure(let error) = job.completion.seenOutcome(as: Success.self)
    {
      throw finding ?? error
    }
    // A failure that nothing has observed is often the reason why others wait for ever.
    if let failure = finding ?? unhandled ?? failure { throw failure }
    return try job.completion.get(as: Success.self)
  }

  /// Takes steps until the body has ended.
  func drive(until isOver: () -> Bool) throws {
    while !isOver() {
      gather()
      if let tasks, tasks.mustFire, passTime() { continue }
      if passesTimeLate() { continue }
      if let candidate = takeNext() {
        perform(candidate)
        if steps - stepsBefore > mostSteps { throw policy.overLimit(nil, dump) }
      } else if let tasks, tasks.nextTimer <= now, passTime() {
        // It was held back, and belongs to this instant.
        continue
      } else if !wakeSettled() && !waitOutside() {
        if let due = nextTimer, due - Self.start > timeLimit || timeLimit == .max && passings > mostSteps {
          throw policy.overLimit(timeLimit, dump)
        }
        if !passTime(), tasks?.forgetEnded() != true, !waitOutside(lastly: true) {
          throw waitsForOutside ?? policy.deadlock(dump)
        }
        stepsBefore = steps
        passings += 1
      }
    }
  }

  /// Removes and returns the next candidate.
  ///
  /// It is the one that was chosen at the last point; without a point, the policy chooses it now.
  func takeNext() -> Candidate? {
    if case .interrupted(let candidate, let next) = step {
      step = .idle(previous: candidate)
      return next
    }
    if let candidate = takeHopping() { return candidate }
    if candidates.isEmpty { return nil }
    if candidates.count == 1 || isEnding { return candidates.remove(at: 0) }
    let previous = step.candidate?.id ?? 0
    let index = candidates.withWindow { policy.chooseNext($0, continues: false, previous: previous) }
    return candidates.remove(at: index)
  }

  /// Takes one step.
  func perform(_ chosen: Candidate) {
    let executor = chosen.executor
    mount(executor)
    steps += 1
    var candidate = chosen
    if let arrival = candidate.arrival {
      arrivals -= 1
      executor.carrier.pointee.job = nil
      guard let job = executor.scheduler.arrive(arrival) else { return executor.ended(chosen, &candidates) }
      candidate = Candidate(.job(job), id: job.pointee.label.id, executor, isHead: chosen.isHead)
    }
    step = .running(Run(candidate))
    executor.carrier.pointee.now = now
    // Dumps read this.
    executor.scheduler.lastClockRead.store(now, ordering: .relaxed)
    footprints?.begin(candidate)
    defer { endStep() }
    guard let job = candidate.job else {
      executor.carrier.pointee.job = nil
      stepHasCrashed = false
      candidate.run()
      executor.ended(candidate, &candidates)
      if isTraced { policy.stepEnded(SimulatedStep(candidate, now: elapsed)) }
      return
    }
    if job.hold.deferWake() { return executor.ended(candidate, &candidates) }
    // Every wait begins with a decrement of this number, and calls the host (`reachesPoint`) if it is below zero.
    executor.carrier.pointee.waitsLeft = 0
    executor.carrier.pointee.grant(0)
    if let isOfCrashedHost { stepHasCrashed = isOfCrashedHost(job.pointee.locals?.takeUnretainedValue()) }
    let traced = isTraced ? job.handle.takeUnretainedValue() : nil
    executor.scheduler.resumeInWorld(job, executor.carrier)
    // It may have let others of its queue overtake it.
    executor.ended(step.candidate ?? candidate, &candidates)
    if let traced {
      let live = LiveJobs.list(of: executors.map(\.scheduler))
      let isInterrupted = step.hasInterrupted(job)
      policy.stepEnded(SimulatedStep(traced, among: live, isInterrupted: isInterrupted, now: elapsed))
    }
  }
}

// MARK: - One step

// A step of a world: one candidate runs until it waits, yields or ends, or until a point.
//
//                       perform                        the policy chooses another one at a point
//   idle(previous) ----------------> running(Run) ------------------------------------> interrupted(candidate, next)
//     ^  ^                                |                                                        |
//     |  +------------- endStep ----------+                                                        |
//     +----------------------------- takeNext returns `next` --------------------------------------+
//
// Invariants
//  1. A policy that needs footprints gets one report (`stepFinished`) for each step, and for each part of a step that
//     ends at a point.
//  2. An interrupted coroutine is a candidate from then on. It is also about to leave its stack, and enters its ready
//     queue by that. The next gather, which comes before the next takeNext, finds it there and does not list it again.
//  3. `next` is in no list. takeNext returns it before any other candidate, also when the world ends.

extension SimulatedWorld {
  enum Step {
    /// `previous` was the last to run; nil if time has passed since then.
    case idle(previous: Candidate?)
    case running(Run)
    /// The policy has interrupted a coroutine at a point, to let `next` run.
    case interrupted(Candidate, next: Candidate)

    /// The candidate that runs, or was the last to run.
    var candidate: Candidate? {
      switch self {
      case .idle(let previous): previous
      case .running(let run): run.candidate
      case .interrupted(let candidate, _): candidate
      }
    }

    @inline(__always)
    func hasInterrupted(_ job: JobRef) -> Bool {
      if case .interrupted(let candidate, _) = self { candidate.job == job } else { false }
    }
  }

  /// A candidate that runs, and what it has done since it was resumed.
  struct Run {
    var candidate: Candidate
    /// The number of points that it has passed.
    var points = 0
    /// The number of cancellation errors that it has thrown.
    var cancellations = 0

    init(_ candidate: Candidate) { self.candidate = candidate }
  }

  /// The run of `job`; nil for a coroutine that starts immediately, on a nested carrier, in its launcher's step.
  func currentRun(of job: JobRef) -> Run? {
    guard case .running(let run) = step, run.candidate.job == job,
      Carrier.current == run.candidate.executor.carrier
    else { return nil }
    return run
  }

  /// Lets the policy choose at a point whether the running coroutine continues; returns whether it must leave its
  /// stack.
  ///
  /// Called on the coroutine's stack, before a wait begins or at a co_point.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool {
    guard var run = currentRun(of: job) else { return !holdsQueue }
    let executor = run.candidate.executor
    executor.carrier.pointee.waitsLeft = 0
    run.points += 1
    step = .running(run)
    // A coroutine whose waits are all satisfied at once must not starve the other ones.
    if run.points > 256, !(holdsQueue && executor.isSerial) {
      footprints?.arrive(run.candidate.id, source)
      return true
    }
    if isEnding { return false }
    if !holdsQueue {
      executor.letOvertake(&run.candidate, &candidates)
      step = .running(run)
    }
    gather()
    report(run.candidate)
    footprints?.arrive(run.candidate.id, source)
    return interrupts(run.candidate)
  }

  /// Asks the policy whether a candidate that is at a point continues.
  @inline(__always)
  private func interrupts(_ candidate: Candidate) -> Bool {
    if !candidates.isEmpty {
      candidates.prepend(candidate)
      let index = candidates.withWindow { policy.chooseNext($0, continues: true, previous: candidate.id) }
      let chosen = candidates.remove(at: index)
      if chosen.word != candidate.word {
        // The one that is listed is still the head of its queue.
        var left = candidate
        left.isHead = false
        step = .interrupted(left, next: chosen)
        return true
      }
    }
    footprints?.begin(candidate)
    return false
  }

  /// Ends the current step, unless a point has ended it, before its coroutine has left the stack.
  func endStep() {
    guard case .running(let run) = step else { return }
    if let tasks {
      // What it releases runs outside of every coroutine.
      run.candidate.executor.carrier.pointee.job = nil
      tasks.endStep()
    }
    if footprints != nil {
      // The step may have sent a message to another executor, for example to cancel one of its coroutines.
      gather()
      report(run.candidate)
    }
    step = .idle(previous: run.candidate)
  }

  /// Reports the end of a step to a policy that needs footprints.
  @inline(__always)
  private func report(_ candidate: Candidate) {
    if footprints == nil { return }
    tasks?.stepFinished(candidate.id)
    guard let footprints else { return }
    policy.stepFinished(candidate.id, isUniversal: footprints.isUniversal, tasks: footprints.tasks) {
      footprints.touches($0)
    }
  }

  /// Records that the candidate uses an object without waiting for it.
  package func touches(_ object: UInt) {
    if footprints != nil, let candidate = step.candidate { footprints?.touch(candidate.id, object) }
  }
}

// MARK: - Gathering what can run

// How a world finds what can take the next step: in the inboxes, ready queues and work queues of its executors.

extension SimulatedWorld {
  /// Lists everything that became ready as candidates.
  func gather() {
    tasks?.gather()
    gatherReady()
    while arrivals > 0, let candidate = candidates.removeCancelledArrival(), let arrival = candidate.arrival {
      // The coroutine may be a candidate itself by now, with the same number.
      arrivals -= 1
      _ = candidate.executor.scheduler.arrive(arrival)
      candidate.executor.ended(candidate, &candidates)
    }
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
      let mounted = cco_layer().pointee.carrier
      mount(executor)
      scheduler.inbox.takeAll(as: nil, scheduler.handle)
      cco_layer().pointee.carrier = mounted
      // After the messages: taking them acquires the stores that were made before they were sent.
      if hasSwiftJobFromOutside.load(ordering: .relaxed) { checkSwiftJobFromOutside() }
      for job in foreignWakes.take() { checkWake(job) }
    }
    while let job = scheduler.readyQueue.pointee.queue.popFirst() {
      if !step.hasInterrupted(job) { executor.add(.job(job), to: &candidates) }
    }
    while let message = scheduler.work.popFirst() {
      if Candidate.arrival(message) != nil { arrivals += 1 }
      executor.add(message, to: &candidates)
    }
    return hasMessages
  }

  /// Lists a body of co_blocking as a candidate.
  func addBlocking(_ body: @escaping @Sendable () -> Void) {
    let item = Inbox.Message.work(ClosureWork.retained(body, nil))
    candidates.append(Candidate(item, id: Candidate.noJob | takeID(), executor(of: nil), isHead: false))
  }
}

// MARK: - The clock

// The clock of a world. It moves to the next timer when nothing can run.

extension SimulatedWorld {
  /// What the clock of the timers shows when a world begins.
  package static var start: UInt64 { 1_000_000_000 }

  /// Nanoseconds since the beginning of the world.
  package var elapsed: UInt64 { now - Self.start }
  /// Nanoseconds on the clock of the timers, which shows `start` when the world begins.
  package var now: UInt64 { time.load(ordering: .relaxed) }

  var nextTimer: UInt64? {
    var next = tasks?.nextTimer ?? .max
    for executor in executors { next = min(next, executor.scheduler.nextTimer.load(ordering: .relaxed)) }
    return next == .max ? nil : next
  }

  /// Moves the clock to the next timers and fires them; returns false if there are no timers.
  func passTime() -> Bool {
    guard let next = nextTimer else { return false }
    let now = max(now, next)
    time.store(now, ordering: .relaxed)
    step = .idle(previous: nil)
    for executor in executors where executor.scheduler.nextTimer.load(ordering: .relaxed) <= now {
      mount(executor)
      executor.carrier.pointee.job = nil
      executor.carrier.pointee.now = now
      executor.scheduler.fireTimers(now)
    }
    tasks?.fireTimers(now)
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
  func wakeSettled() -> Bool {
    settlingLock.lock()
    let waiter = settling.claimFirst()
    settlingLock.unlock()
    guard let waiter else { return false }
    waiter.wake()
    return true
  }
}

// MARK: - Cancellations by a strategy

// Cancellation in a world: of the coroutines that a binding marks, and of those that catch it for ever.

extension SimulatedWorld {
  /// Cancels every coroutine that has a binding of `local` for which `isMeant` is true.
  package func cancel<Value>(_ local: CoroutineLocal<Value>, where isMeant: (Value) -> Bool) {
    for executor in executors {
      executor.cancelAll { isMeant(local.value(from: $0.pointee.locals?.takeUnretainedValue())) }
    }
  }

  /// Counts the cancellation errors of the current step; called when the running coroutine is about to throw one.
  ///
  /// A coroutine that catches the error each time and waits again would never end its step. After 10,000 errors the run
  /// fails, and the coroutine is parked for ever.
  func throwsCancellation(_ job: JobRef) {
    guard var run = currentRun(of: job) else { return }
    run.cancellations += 1
    step = .running(run)
    guard run.cancellations > 10_000 else { return }
    let carrier = run.candidate.executor.carrier
    fail(policy.leftRunning(dump))
    while true {
      carrier.pointee.grant(0)
      Carrier.switchOut(carrier, job)
    }
  }
}

// MARK: - The end

// The end of a world, after its body: first what can still end without time passing, then a cancellation of the rest.

extension SimulatedWorld {
  /// Runs the coroutines that can end without time passing, so that only those that wait count as left running.
  func settleLeftovers() {
    isEnding = true
    for _ in 0..<100_000 {
      gather()
      guard hasLive, let candidate = takeNext() else { return }
      perform(candidate)
    }
  }

  /// Cancels all remaining coroutines, and runs them to their ends, in order and in virtual time.
  ///
  /// A coroutine that cannot be cancelled stays parked for ever: a stack with live frames is not freed.
  func close() {
    isEnding = true
    isClosing = true
    isTraced = false
    for _ in 0..<16 {
      for executor in executors { executor.cancelAll() }
      tasks?.cancelAll()
      var stepsLeft = 1_000_000
      while stepsLeft > 0 {
        gather()
        if let candidate = takeNext() {
          perform(candidate)
          stepsLeft -= 1
        } else if !wakeSettled(), !hasLive || !passTime() {
          break
        }
      }
      if !hasLive || stepsLeft == 0 { break }
    }
    for executor in executors {
      mount(executor)
      executor.close()
    }
    // The executors own their carriers.
    cco_layer().pointee.carrier = nil
    executors = []
    executorsByQueue = [:]
  }
}
