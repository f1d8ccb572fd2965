import CCoroutine
import Dispatch
import Synchronization

// One thread that drives every coroutine of a test: in virtual time, in an order that a policy chooses.
//
// A world has a lane for each queue that its coroutines name, and one for the worker pool. A lane is an ordinary
// scheduler whose host is the world. No drain runs: the world's loop takes one step of one coroutine at a time.
//
//   gather      what became ready since the last step is listed as candidates
//   choose      the policy names a candidate, if there are several
//   perform     the candidate runs until it waits, yields, ends, or until a point at which another one is chosen
//   pass time   without candidates: the clock jumps to the next timer
//
// Invariants
//  1. A step is atomic: only the thread in `run` resumes coroutines of the world, one at a time.
//  2. Whatever differs between two runs of one program is a choice of the policy. Candidates are listed in an order
//     that depends on earlier choices only: lanes in the order of their creation, jobs in the order of their wake-ups.
//  3. A job is in at most one of: `candidates`, a lane's `waiting`, its scheduler's ready queue or inbox.
//  4. A serial lane has at most one candidate that has not begun or has parked: its queue runs first in, first out. A
//     coroutine that stands at a wait may be overtaken by its queue, as in production (Carrier.giveWayIfOverdue). One
//     that stands at a co_point holds its queue.
//  5. Candidate 0 is what would run without any policy: the running coroutine at a point, otherwise the candidate that
//     has been ready longest. So choices of 0 only are the order "first in, first out".
//
// Waits that no coroutine of the world can end. The world cannot see a callback of a real thread. `outside` lists the
// coroutines that have declared such a wait; only for these the loop blocks its thread. Everything else that can never
// happen is a deadlock, reported at once.

package final class SimulatedWorld: @unchecked Sendable {
  // Sound because the driving thread alone uses everything mutable, except `time`, which is atomic, and `wakeUp`, a
  // semaphore.

  let policy: any WorldPolicy
  /// What owns the world, for `current`.
  ///
  /// Unowned, because it owns the world.
  package unowned(unsafe) let owner: AnyObject
  private let seed: UInt64
  /// Atomic because a dump on another thread may read it.
  private let time = Atomic<UInt64>(SimulatedWorld.start)
  private static var start: UInt64 { 1_000_000_000 }
  private let wakeUp = DispatchSemaphore(value: 0)

  private(set) var lanes: [WorldLane] = []
  private var lanesByQueue: [ObjectIdentifier: WorldLane] = [:]
  private var candidates = CandidateList()
  private var lastID: UInt64 = 0
  private(set) package var steps = 0
  /// What the coroutines touch, if the policy wants to know.
  package var footprints: Footprints?

  /// The candidate that runs, while one does.
  private var running: Candidate?
  /// The running coroutine, listed already because another one was chosen at a point.
  private var listed: JobRef?
  /// The candidate that was chosen at a point.
  private var next: Candidate?
  /// Whether the present step has begun, and the policy has not been told of its end.
  private var isStepOpen = false
  /// The number of points that the running coroutine has passed in this step.
  private var pointsPassed = 0
  private var settling = WaitQueue()
  private let settlingLock = SpinLock()
  private var outside: [JobRef: Int] = [:]
  /// The first finding that the code under test may have caught.
  private var finding: (any Error)?
  /// Whether the policy is not asked any more.
  private var isInOrder = false
  /// The number of cancellation errors that the running coroutine has thrown in this step.
  private var cancellations = 0
  /// Whether `stepEnded` is called, and `endDump` kept.
  package var isTraced = false
  /// What lived when the run had ended or failed, before it unwound.
  package private(set) var endDump = ""

  package init(owner: AnyObject, policy: any WorldPolicy, seed: UInt64) {
    self.owner = owner
    self.policy = policy
    self.seed = seed
  }

  /// The network of the world, of which the runtime knows nothing.
  package var network: AnyObject?

  /// The network of the calling code's world; nil outside, and for a coroutine that has declared real waits.
  package static var currentNetwork: AnyObject? {
    guard cco_has_worlds(), let world = current else { return nil }
    if let job = Carrier.current?.pointee.job, world.isOutside(job) { return nil }
    return world.network
  }

  /// Nanoseconds since the beginning of the world.
  package var elapsed: UInt64 { now - Self.start }
  var now: UInt64 { time.load(ordering: .relaxed) }

  /// The world of the calling code, nil outside.
  package static var current: SimulatedWorld? {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return nil }
    return scheduler._withUnsafeGuaranteedRef { ($0.host as? SimulatedHost)?.world }
  }

  // MARK: Lanes

  /// The lane of `queue`; without a queue, of the worker pool.
  func lane(of queue: DispatchQueue?) -> WorldLane {
    guard let queue else { return lanes.isEmpty ? addLane(nil) : lanes[0] }
    if let found = lanesByQueue[ObjectIdentifier(queue)] { return found }
    let made = addLane(queue)
    lanesByQueue[ObjectIdentifier(queue)] = made
    return made
  }

  private func addLane(_ queue: DispatchQueue?) -> WorldLane {
    let lane = WorldLane(self, queue, index: lanes.count, seed: seed)
    lanes.append(lane)
    return lane
  }

  func takeID() -> UInt64 {
    lastID += 1
    return lastID
  }

  private func mount(_ lane: WorldLane) { cco_thread().pointee.carrier = UnsafeMutableRawPointer(lane.carrier) }

  // MARK: Running

  /// Runs `body` in a coroutine, and all that it launches, on the calling thread, until nothing is left.
  ///
  /// Called once.
  package func run<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    cco_guard_thread()
    let outer = cco_thread().pointee.carrier
    cco_worlds_changed(1)
    defer {
      cco_worlds_changed(-1)
      cco_thread().pointee.carrier = outer
    }
    let pool = lane(of: nil)
    mount(pool)
    let job = Job(
      scheduler: pool.scheduler.forRecord(),
      name: "body",
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line),
      body: body
    )
    job.launch(.queued, on: nil)
    var failure: (any Error)?
    do {
      try drive(until: { job.isFinished })
      settleLeftovers()
      if case .success = job.completion.seenOutcome(as: Success.self), hasLive {
        failure = policy.leftRunning(dump)
      }
    } catch {
      failure = error
    }
    if isTraced { endDump = dump }
    close()
    if job.isFinished, case .failure(let error) = job.completion.seenOutcome(as: Success.self), failure == nil {
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
      } else if !wakeSettled() && !waitOutside() && !passTime() {
        throw policy.deadlock(dump)
      }
    }
  }

  /// Lets the rest end that needs no time, so that only what really waits counts as left.
  private func settleLeftovers() {
    isInOrder = true
    for _ in 0..<100_000 {
      gather()
      guard hasLive, let candidate = candidates.isEmpty ? nil : candidates.remove(at: 0) else { return }
      perform(candidate)
    }
  }

  /// Ends everything that is left: cancels it, and lets it unwind in order, in virtual time.
  ///
  /// What cannot be cancelled stays parked for ever: a stack with live frames is not freed.
  private func close() {
    isInOrder = true
    isTraced = false
    for _ in 0..<16 {
      for lane in lanes { lane.cancelAll() }
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
    for lane in lanes { lane.close() }
    lanes = []
    lanesByQueue = [:]
  }

  private var hasLive: Bool { lanes.contains { $0.scheduler.liveJobs > 0 } }
  private var dump: String { Dump.text(of: lanes.map(\.scheduler)) }
  package var currentDump: String { dump }

  // MARK: Candidates

  /// Lists what became ready.
  private func gather() {
    var isComplete: Bool
    repeat {
      isComplete = true
      // By index: handling a message may create a lane.
      var index = 0
      while index < lanes.count {
        if gather(lanes[index]) { isComplete = false }
        index += 1
      }
    } while !isComplete
  }

  /// Lists what became ready in a lane; returns whether it has handled messages, which may have woken others.
  @inline(__always)
  private func gather(_ lane: WorldLane) -> Bool {
    let scheduler = lane.scheduler
    let hasMessages = scheduler.inbox.hasMessages
    if hasMessages {
      let mounted = cco_thread().pointee.carrier
      mount(lane)
      scheduler.inbox.takeAll(isShared: false, scheduler.handle)
      cco_thread().pointee.carrier = mounted
    }
    while let job = scheduler.readyQueue.pointee.queue.popFirst() {
      if job == listed { listed = nil } else { lane.add(.job(job), to: &candidates) }
    }
    while let item = scheduler.work.popFirst() { lane.add(item, to: &candidates) }
    return hasMessages
  }

  /// Removes the next candidate: the one that was chosen at the last point, else the one that the policy chooses now.
  private func takeNext() -> Candidate? {
    if let chosen = next.take() { return chosen }
    if candidates.count < 2 { return candidates.isEmpty ? nil : candidates.remove(at: 0) }
    let previous = running?.id ?? 0
    let index = candidates.withWindow { policy.chooseNext($0, continues: false, previous: previous) }
    return candidates.remove(at: index)
  }

  /// Takes one step.
  private func perform(_ candidate: Candidate) {
    let lane = candidate.lane
    mount(lane)
    steps += 1
    running = candidate
    pointsPassed = 0
    cancellations = 0
    lane.carrier.pointee.now = now
    // For dumps.
    lane.scheduler.lastLook.store(now, ordering: .relaxed)
    beginStep(candidate)
    defer { finishStep() }
    guard let job = candidate.job else {
      lane.carrier.pointee.job = nil
      candidate.item.run()
      lane.ended(running.unsafelyUnwrapped, &candidates)
      if isTraced { policy.stepEnded(SimulatedStep(candidate, now: elapsed)) }
      return
    }
    if lane.scheduler.deferIfForeign(job, JobFlags.deferredWake) { return lane.ended(candidate, &candidates) }
    // Every wait begins with a decrement of this number, and below zero asks the host (`reachesPoint`).
    lane.carrier.pointee.waitsLeft = 0
    lane.carrier.pointee.switchesLeft = 0
    let traced = isTraced ? job.handle.takeUnretainedValue() : nil
    lane.scheduler.resume(job, lane.carrier)
    lane.ended(running.unsafelyUnwrapped, &candidates)
    if let traced { policy.stepEnded(SimulatedStep(traced, now: elapsed)) }
  }

  @inline(__always)
  private func beginStep(_ candidate: Candidate) {
    if footprints == nil { return }
    footprints?.begin(candidate)
    isStepOpen = true
  }

  /// Ends a step, once: one that ended at a point is over when the coroutine leaves its stack.
  @inline(__always)
  private func finishStep() {
    if !isStepOpen { return }
    // The step may have cancelled a coroutine of another lane, whose message says so.
    gather()
    guard let footprints, let running else { return }
    isStepOpen = false
    policy.stepFinished(running.id, isUniversal: footprints.isUniversal) { footprints.touches($0) }
  }

  /// Decides at a point whether the running coroutine goes on; returns whether it must leave its stack.
  ///
  /// Called on its stack, before a wait begins or at a co_point.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool {
    guard let candidate = running, candidate.job == job, let carrier = Carrier.current,
      carrier == candidate.lane.carrier
    else {
      // An immediate start's own part, on a nested carrier: it belongs to its launcher's step.
      return !holdsQueue
    }
    carrier.pointee.waitsLeft = 0
    // A coroutine whose waits are all satisfied at once must not keep the others waiting for ever.
    pointsPassed += 1
    if pointsPassed > 256, !holdsQueue || !candidate.lane.isSerial {
      pointsPassed = 0
      return true
    }
    if isInOrder { return false }
    if !holdsQueue { candidate.lane.letOvertake(&running!, &candidates) }
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
    candidates.append(Candidate(item, id: Candidate.noJob | takeID(), lane(of: nil), isHead: false))
  }

  // MARK: Time

  /// Moves the clock to the next timers and fires them; returns whether there are any.
  private func passTime() -> Bool {
    var next = UInt64.max
    for lane in lanes { next = min(next, lane.scheduler.nextTimer.load(ordering: .relaxed)) }
    guard next != .max else { return false }
    let now = max(now, next)
    time.store(now, ordering: .relaxed)
    running = nil
    for lane in lanes where lane.scheduler.nextTimer.load(ordering: .relaxed) <= now {
      mount(lane)
      lane.carrier.pointee.job = nil
      lane.carrier.pointee.now = now
      lane.scheduler.fireTimers(now)
    }
    return true
  }

  /// Suspends the running coroutine until no other one can run without time passing.
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

  /// Wakes the coroutine that has waited longest for nothing to run.
  private func wakeSettled() -> Bool {
    settlingLock.lock()
    let waiter = settling.claimFirst()
    settlingLock.unlock()
    guard let waiter else { return false }
    waiter.wake()
    return true
  }

  // MARK: The real world

  /// Marks the running coroutine's waits as waits for the real world while `body` runs.
  package func outside<R>(_ body: () throws -> R) rethrows -> R {
    guard let job = Carrier.current?.pointee.job else { return try body() }
    outside[job, default: 0] += 1
    defer {
      outside[job, default: 1] -= 1
      if outside[job] == 0 { outside[job] = nil }
    }
    return try body()
  }

  func isOutside(_ job: JobRef) -> Bool { outside[job] != nil }

  /// Returns the error of a wait for the real world, which also fails the run if the code under test catches it.
  func refuse(_ what: String, _ job: JobRef?) -> any Error {
    let name = job.map { $0.handle._withUnsafeGuaranteedRef { $0.summary } } ?? "code outside of any coroutine"
    let error = policy.realWait("\(name) waits for \(what)")
    fail(error)
    return error
  }

  /// Returns an index below `count` that the policy chooses; 0 without a policy.
  package func choose(_ count: Int) -> Int { isInOrder || count < 2 ? 0 : policy.choose(count) }

  /// Makes the run fail with `error`, unless something failed before.
  package func fail(_ error: any Error) { if finding == nil, !isInOrder { finding = error } }

  /// Called when the running coroutine is about to throw its cancellation error.
  ///
  /// A coroutine that catches that error and goes on would never leave its step. It is parked for ever.
  func throwsCancellation(_ job: JobRef) {
    guard let running, running.job == job, let carrier = Carrier.current, carrier == running.lane.carrier else {
      return
    }
    cancellations += 1
    guard cancellations > 10_000 else { return }
    fail(policy.leftRunning(dump))
    while true {
      carrier.pointee.switchesLeft = 0
      Carrier.switchOut(carrier, job)
    }
  }

  /// Blocks the thread until a real thread has sent a message, if a coroutine waits for one; returns whether it has.
  private func waitOutside() -> Bool {
    let isAwaited = outside.keys.contains { job in
      job.seemsWaiting && WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed))?.isReal ?? false
    }
    guard isAwaited else { return false }
    defer { for lane in lanes { _ = lane.scheduler.inbox.wakeUp() } }
    // A message that comes between the two finds an idle inbox, and signals.
    for lane in lanes where !lane.scheduler.inbox.goIdle() { return true }
    wakeUp.wait()
    return true
  }

  /// Called by a thread whose message has found an idle inbox.
  func messageArrived() { wakeUp.signal() }
}

extension WaitKind {
  /// Whether only the real world ends such a wait, if it is declared.
  fileprivate var isReal: Bool {
    switch self {
    case .callback, .blocking, .readable, .writable: true
    default: false
    }
  }
}
