import CAsyncWorlds
import Coroutine
import Glibc
import Synchronization

// The Tasks of a world with async code.
//
// One thread drives the world; while it does, `current` are its Tasks. What Swift's runtime does on that thread reaches
// this file by three ways (AsyncExecutors.swift, CAsyncWorlds):
//
//   enqueue   a job is ready: a Task that starts or was resumed, an actor that has got its first job, a continuation
//   hop       a Task is suspended, because it wants to continue on another executor
//   sleep     a job is to run later
//
// Invariants
//  1. A Task is in at most one place: suspended, a candidate, in an actor's own queue, or running.
//  2. A candidate is a job that Swift has enqueued (run as it is), or a Task that has hopped. The latter is enqueued on
//     its executor when it is chosen; what that makes ready (`arrived`: the Task, or the actor, whose one job it is)
//     runs in the same step.
//  3. The job of a continuation only enqueues its Task, and the job of a timer only resumes its sleeper. They are no
//     steps.
//  4. Numbers are given in the order of creation or first sight, which depends on earlier choices only.
//  5. The main actor's queue is first in, first out: only its first entry is a candidate, or runs. What a step gives to
//     the queue joins at once; a Task that hops there, or is resumed between steps, joins when it is chosen.
//
// Two worlds would find the main actor and the global actors, which the process has once, in the middle of each other's
// steps. So worlds with async code exclude each other (`lock`); a world whose body turns out to have none does not.
//
// Memory. A Task that outlasts the step that creates it is retained until it has ended, so its address is its own. A
// child that `async let` has begun is not an object: it lies in its parent, and is looked at after its step for a
// report only, by a read that may fail.

final class AsyncTasks: SimulatedTasks {
  @exclusivity(unchecked) var hopping: SimulatedTask?
  @exclusivity(unchecked) var lateLeft = AsyncTasks.mostLate
  /// How often a Task of one run may be late.
  static var mostLate: Int { 4 }
  private unowned(unsafe) let world: SimulatedWorld
  private let policy: RunPolicy
  private let seed: UInt64
  /// Whether the run is one that a report describes.
  private let isTraced: Bool
  @exclusivity(unchecked) private var records: [UInt64: SimulatedTask] = [:]
  /// The Tasks that are held, until they have ended; each knows its place, and their order has no meaning.
  @exclusivity(unchecked) private var live: [SimulatedTask] = []
  /// The number of Tasks at which all of them are looked at.
  @exclusivity(unchecked) private var nextSweep = AsyncTasks.few
  /// The callers of what has created a Task, by the Task's identity.
  @exclusivity(unchecked) private var sites: [UInt64: [UInt]] = [:]
  /// The candidates that are no Tasks.
  @exclusivity(unchecked) private var others: [SimulatedTask] = []
  @exclusivity(unchecked) private var count: UInt64 = 0
  /// What the hop that is being performed makes ready; nil at other times.
  @exclusivity(unchecked) private var arrived: [(job: UnsafeMutableRawPointer, isMain: Bool)]?
  @exclusivity(unchecked) private var continuations: [(job: UnsafeMutableRawPointer, isMain: Bool)] = []
  /// Sorted, the last one is due first; of equal ones the first to be set.
  @exclusivity(unchecked) private var timers: [(due: UInt64, job: UnsafeMutableRawPointer, isMain: Bool)] = []
  /// Whether the world takes what its code gives to queues (World.includeDispatch).
  @exclusivity(unchecked) var includesDispatch = false
  let queues = AsyncQueues()
  /// The Tasks that have not ended, if the world needs footprints.
  @exclusivity(unchecked) private var watched: [WatchedTask] = []
  /// The number of hops that were seen.
  @exclusivity(unchecked) private(set) var hops = 0
  /// Whether the next Task is the body of a test, which runs in a coroutine until it suspends.
  @exclusivity(unchecked) var beginsBody = false
  /// That Task, with Swift's number, until it suspends; zero later, and without one.
  @exclusivity(unchecked) private var body: (job: UnsafeMutableRawPointer?, key: UInt64) = (nil, 0)
  /// The function by which that Task has left the world; nil if it has not.
  @exclusivity(unchecked) private var bodyLeft: String?
  /// The Tasks of coroutines that have declared their waits, by Swift's number: they may outlive the world.
  @exclusivity(unchecked) private var outsiders: Set<UInt64> = []
  /// The Tasks that the current step has created, and that are not held.
  @exclusivity(unchecked) private var newborn: [SimulatedTask] = []
  /// Whether what is enqueued comes from a timer or a continuation, and not from a step.
  @exclusivity(unchecked) private var isBetweenSteps = false
  /// The number of yields since time has passed, or a Task has begun or ended.
  @exclusivity(unchecked) private var yields = 0
  /// The number of steps at which timers that are held back fire; `.max` if none is.
  @exclusivity(unchecked) private var holdEnd = Int.max
  /// What the main actor's executor is to run, in its order; the first one is a candidate, or runs.
  @exclusivity(unchecked) private var main: [SimulatedTask] = []
  /// The actors whose own jobs are candidates.
  @exclusivity(unchecked) private var listedActors: [UnsafeMutableRawPointer] = []
  /// How often the current step has asked for the time.
  @exclusivity(unchecked) private var clockReads = 0
  @exclusivity(unchecked) private var hasLock = false
  @exclusivity(unchecked) private var outer: UnsafeMutableRawPointer?

  private init(_ world: SimulatedWorld, _ policy: RunPolicy, _ seed: UInt64) {
    self.world = world
    self.policy = policy
    self.seed = seed
    isTraced = world.isTraced
  }

  // MARK: The thread

  static var current: AsyncTasks? { caw_current().map(at) }

  // Sound because `end` removes the address from the thread before the object is released.
  static func at(_ address: UnsafeMutableRawPointer) -> AsyncTasks {
    Unmanaged<AsyncTasks>.fromOpaque(address).takeUnretainedValue()
  }

  /// Makes the Tasks that the calling thread begins those of `world`, until `end`.
  static func begin(_ world: SimulatedWorld, _ policy: RunPolicy, _ seed: UInt64, locks: Bool) throws -> AsyncTasks {
    if let other = current, other.hasLock || locks {
      throw World.AsyncWorldError(reason: nested)
    }
    if !DefaultExecutor.beginIntercepting() {
      DefaultExecutor.endIntercepting()
      throw World.AsyncWorldError(reason: AsyncExecutors.notReplaced)
    }
    let tasks = AsyncTasks(world, policy, seed)
    if locks { tasks.lock() }
    tasks.outer = caw_exchange(Unmanaged.passUnretained(tasks).toOpaque())
    return tasks
  }

  static var nested: String {
    "the calling code is in a world itself, and worlds with async code exclude each other: call explore outside of it"
  }

  func end() {
    // The jobs of sleeps that were cancelled: nothing waits for them, but they are memory.
    for timer in timers.reversed() { caw_run(timer.job, timer.isMain) }
    timers = []
    _ = caw_exchange(outer)
    DefaultExecutor.endIntercepting()
    hopping = nil
    for task in live { caw_release(task.job) }
    if hasLock {
      AsyncWatch.watch(nil)
      // From here on no job of the world comes in; those that have come too late for it go on outside.
      Self.isOwned.store(false, ordering: .relaxed)
      Self.owners.withLock { $0 = nil }
      Self.driven.withLock { $0 = nil }
      for (job, isMain) in Self.takeAll() {
        UnsafeMutableRawPointer(bitPattern: job).map { AsyncExecutors.runElsewhere($0, isMain) }
      }
      Self.exclusion.unlock()
    }
    queues.end()
    (live, records, others, watched, main, newborn) = ([], [:], [], [], [], [])
  }

  private static let exclusion = AsyncLock()

  private func lock() {
    Self.exclusion.lock()
    hasLock = true
    Self.owners.withLock { $0 = [:] }
    Self.driven.withLock { $0 = world }
    Self.isOwned.store(true, ordering: .relaxed)
    AsyncWatch.watch(self)
    // The step that has begun the first Task may wait for it with the thread.
    AsyncWatch.stepBegins()
  }

  var now: UInt64 { world.now }

  /// The time, as code of the world asks for it.
  ///
  /// Time passes between steps only. So a loop that waits for it within one would never end, and nothing can take the
  /// world's thread out of it.
  func readClock() -> UInt64 {
    clockReads += 1
    if clockReads > Self.mostClockReads {
      report("waits for the clock in a loop without an await, and time passes only between steps")
      // No report of the abort as well.
      _ = caw_exchange(nil)
      abort()
    }
    return now
  }

  private static var mostClockReads: Int { 10_000_000 }

  // MARK: Threads outside

  /// The Tasks of the world that has the lock; nil without one.
  private static let owners = Guarded<[UInt64: Void]?>(nil)
  /// Whether a world has the lock.
  ///
  /// Relaxed: who enqueues a Task of a world has it from the world, which has stored this before.
  private static let isOwned = Atomic<Bool>(false)
  private static let inbox = Guarded<[(job: UInt, isMain: Bool)]>([])
  private static let hasInbox = Atomic<Bool>(false)
  /// The world that has the lock, which may wait for the outside.
  private static let driven = Guarded<SimulatedWorld?>(nil)

  /// Takes a job that a thread outside of the world has enqueued, if its Task is one of a world.
  static func takesFromOutside(_ job: UnsafeMutableRawPointer, _ isMain: Bool) -> Bool {
    guard isOwned.load(ordering: .relaxed), caw_job_kind(job) == Int32(CAW_TASK.rawValue) else { return false }
    let id = caw_id(job)
    return owners.withLock { owners in
      guard owners?[id] != nil else { return false }
      inbox.withLock { $0.append((UInt(bitPattern: job), isMain)) }
      hasInbox.store(true, ordering: .relaxed)
      driven.withLock { $0?.noteFromOutside() }
      return true
    }
  }

  private static func takeAll() -> [(job: UInt, isMain: Bool)] {
    inbox.withLock { jobs in
      defer { jobs = [] }
      return jobs
    }
  }

  private func takeInbox() {
    guard Self.hasInbox.load(ordering: .relaxed), hasLock else { return }
    Self.hasInbox.store(false, ordering: .relaxed)
    for (job, isMain) in Self.takeAll() {
      guard let job = UnsafeMutableRawPointer(bitPattern: job) else { continue }
      fail("\(title(of: record(of: job))) was resumed by a thread outside of the world")
      enqueue(job, isMain)
    }
  }

  /// Records that code of the world calls a function that continues outside.
  ///
  /// That of a test's body counts once it is known to be code of Tasks.
  func leave(_ function: String) {
    if let task = world.runningTask { return leaves(title(of: task), by: function) }
    if isInFirstPart, !world.stepIsOutside { bodyLeft = bodyLeft ?? function }
  }

  private func leaves(_ task: String, by function: String) {
    fail("\(task) calls \(function), and what that begins runs outside of the world")
  }

  /// Whether the calling code is the body of a test before it suspends first, or a Task that it has begun at once.
  private var isInFirstPart: Bool {
    guard body.job != nil, let task = caw_current_task() else { return false }
    return task == body.job || records[caw_id(task)] != nil
  }

  /// Whether the world takes work that its code is about to give to a queue; if not, the run fails.
  func takesWork(of function: String) -> Bool {
    if includesDispatch, world.runningTask != nil || isInFirstPart { return true }
    leave(function)
    return false
  }

  /// Adds work of a queue; each queue runs one at a time, in the order of these calls.
  func take(_ work: AsyncWork) {
    queues.add(work)
    list(work.queue)
  }

  private func list(_ queue: UnsafeMutableRawPointer) {
    guard queues.needsCandidate(queue) else { return }
    let candidate = addOther(queue)
    queues.listed(queue, as: candidate.id)
    world.add(candidate, on: nil)
  }

  private func fail(_ wait: String) { world.fail(World.realWait(wait)) }

  // MARK: Jobs

  private func record(of job: UnsafeMutableRawPointer) -> SimulatedTask {
    let key = caw_id(job)
    if let known = records[key] { return known }
    count += 1
    yields = 0
    let task = SimulatedTask(self, job, id: Candidate.firstTask | count, key: key)
    if world.footprints != nil { watch(task) }
    records[key] = task
    return task
  }

  /// Holds a Task to its end.
  ///
  /// One that ends in the step that creates it is not held: what it returns goes at once.
  private func hold(_ task: SimulatedTask) {
    if task.index >= 0 { return }
    if !hasLock { lock() }
    Self.owners.withLock { $0?[task.key] = () }
    if caw_is_async_let(task.job) {
      task.index = .max
    } else {
      caw_retain(task.job)
      task.index = live.count
      live.append(task)
    }
  }

  /// Takes a Task that code of the world has created: from here on, because its first part may run in the step that
  /// creates it, or wait in an actor's own queue.
  ///
  /// Where it was created is for a report only, because it costs as much as a step.
  func created(_ job: UnsafeMutableRawPointer, _ callers: UnsafeBufferPointer<UInt>) {
    guard caw_job_kind(job) == Int32(CAW_TASK.rawValue) else { return }
    let key = caw_id(job)
    if isTraced { sites[key] = Array(callers) }
    if beginsBody {
      beginsBody = false
      body = (job, key)
    } else if world.stepIsOutside {
      outsiders.insert(key)
    } else {
      newborn.append(record(of: job))
    }
  }

  /// Says that the body of a test is code of Tasks: it has suspended.
  func takesBody() {
    policy.isAsync = true
    // It has not ended, so it is there.
    if let job = body.job {
      let task = record(of: job)
      hold(task)
      if let bodyLeft { leaves(title(of: task), by: bodyLeft) }
    }
    body = (nil, 0)
    // Its Tasks may be late; a world does not know that before.
    lateLeft = Self.mostLate
  }

  /// Prints the schedule; called in a signal's handler, after which the process ends.
  func trapped() { report("has trapped") }

  /// Prints the schedule of a run whose process is about to end, and what the code under test has done.
  func report(_ what: String) {
    let token = Token.encode(policy.choices, seed: seed)
    let task = world.runningTask.map(title) ?? "a coroutine"
    var text = "\nThe code under test \(what), in \(task) after \(policy.choices.count) choices.\nCO_REPLAY=\(token)\n"
    if let task = world.runningTask, Candidate.isTask(task.id), caw_is_cancelled(task.job) {
      text += "The Task is cancelled, so each sleep in it ends at once: its loops must end too.\n"
    }
    _ = text.withCString { write(2, $0, strlen($0)) }
  }

  /// Makes a candidate that is no Task.
  private func addOther(_ job: UnsafeMutableRawPointer) -> SimulatedTask {
    if !hasLock { lock() }
    count += 1
    let other = SimulatedTask(self, job, id: Candidate.noJob | Candidate.firstTask | count, key: 0)
    others.append(other)
    world.footprints?.isUniversal = true
    return other
  }

  func enqueue(_ job: UnsafeMutableRawPointer, _ isMain: Bool) {
    if arrived != nil {
      arrived?.append((job, isMain))
      return
    }
    let kind = caw_job_kind(job)
    if kind == Int32(CAW_CONTINUATION.rawValue) {
      yields += 1
      continuations.append((job, isMain))
      return
    }
    let task: SimulatedTask
    if kind == Int32(CAW_TASK.rawValue) {
      task = record(of: job)
      hold(task)
      world.footprints?.touch(task)
    } else {
      task = addOther(job)
      if kind == Int32(CAW_ACTOR.rawValue) { listedActors.append(caw_actor(job)) }
    }
    task.job = job
    task.isMain = isMain
    task.target = nil
    if isMain, !isBetweenSteps { return addToMain(task) }
    // What resumes it is a job of the pool, as that of another sleep is: which of them is first is not said.
    task.isArriving = isMain
    world.add(task, on: isMain ? caw_main() : nil)
  }

  /// Adds what the main actor's executor is to run: its queue is first in, first out.
  private func addToMain(_ task: SimulatedTask) {
    touchesMain()
    main.append(task)
    if main.count == 1 { world.add(task, on: caw_main()) }
  }

  /// A step depends on others that add to the main actor's queue.
  private func touchesMain() {
    if world.footprints != nil { world.touches(UInt(bitPattern: caw_main())) }
  }

  func hop(_ job: UnsafeMutableRawPointer, _ identity: UnsafeMutableRawPointer?, _ implementation: UInt) {
    hops += 1
    if isForeign(job) {
      let task = world.runningTask.map(title) ?? "a coroutine"
      fail("a Task of outside has continued in a step of \(task), because both use one actor")
      return caw_enqueue_outside(job, identity, implementation)
    }
    let task = record(of: job)
    hold(task)
    task.target = (identity, implementation)
    if let other = hopping {
      hopping = nil
      world.add(other, on: other.target?.identity)
    }
    // It has run in another one's step, as the next one in an actor's own queue does.
    if world.footprints != nil, world.runningTask !== task { world.footprints?.isUniversal = true }
    // To arrive there is the last thing that the step does, and others may come first.
    task.isArriving = caw_is_main(identity)
    hopping = task
    if world.footprints != nil { world.hops(task, to: identity) }
  }

  /// Whether a Task that runs in a step of the world is none of its own.
  private func isForeign(_ task: UnsafeMutableRawPointer) -> Bool {
    let key = caw_id(task)
    // Nothing tells of the creation of an `async let`.
    return records[key] == nil && key != body.key && !outsiders.contains(key) && !caw_is_async_let(task)
  }

  func sleep(_ job: UnsafeMutableRawPointer, _ nanoseconds: UInt64, _ isMain: Bool) {
    let (sum, overflows) = now.addingReportingOverflow(nanoseconds)
    // The world's time is a Duration's nanoseconds.
    let due = overflows ? UInt64(Int64.max) : min(sum, UInt64(Int64.max))
    var index = timers.count
    while index > 0, timers[index - 1].due <= due { index -= 1 }
    timers.insert((due, job, isMain), at: index)
    // One of no time fires without a wait of all others.
    if due <= now { holdEnd = min(holdEnd, world.steps + Self.longestHold) }
  }

  // MARK: Steps

  func run(_ task: SimulatedTask) {
    AsyncWatch.stepBegins()
    clockReads = 0
    if task.isArriving {
      task.isArriving = false
      main.append(task)
      if main.count > 1 { return touchesMain() }
    }
    // Before the step, which may add the Task to the main actor's queue.
    let isOfMain = main.first === task
    if let (identity, implementation) = task.target {
      task.target = nil
      continueOn(task, identity, implementation)
    } else if let queue = queues.queue(of: task.id) {
      queues.runFirst(of: queue)
      queues.ended(task.id)
      list(queue)
    } else {
      if !Candidate.isTask(task.id), caw_job_kind(task.job) == Int32(CAW_ACTOR.rawValue) {
        let actor = caw_actor(task.job)
        listedActors.removeAll { $0 == actor }
      }
      caw_run(task.job, task.isMain)
    }
    if isOfMain {
      main.removeFirst()
      if let next = main.first { world.add(next, on: caw_main()) }
    }
  }

  private func continueOn(_ task: SimulatedTask, _ identity: UnsafeMutableRawPointer?, _ implementation: UInt) {
    if caw_is_main(identity) { return caw_run(task.job, true) }
    if !includesDispatch, let identity, caw_is_custom(identity, implementation),
      !SimulatedWorld.isOfCoroutines(identity)
    {
      fail(
        "\(title(of: task)) continues on \(Self.name(of: identity, implementation)), an executor of the program's own"
      )
    }
    arrived = []
    caw_enqueue(task.job, identity, implementation)
    let jobs = arrived ?? []
    arrived = nil
    for (job, isMain) in jobs { caw_run(job, isMain) }
    // The actor has taken the Task into its queue, because it runs already: in a job of the world, or on a thread of
    // outside. A preference may have taken the actor's job elsewhere.
    if jobs.isEmpty, let identity, !caw_is_custom(identity, implementation), !listedActors.contains(identity),
      !caw_has_preference(task.job)
    {
      let actor = Self.name(of: identity, implementation)
      fail("\(title(of: task)) continues on \(actor), which runs outside of the world")
    }
  }

  func gather() {
    takeInbox()
    isBetweenSteps = true
    defer { isBetweenSteps = false }
    while !continuations.isEmpty {
      let all = continuations
      continuations = []
      for (job, isMain) in all { caw_run(job, isMain) }
    }
  }

  var nextTimer: UInt64 { timers.last?.due ?? .max }

  func fireTimers(_ now: UInt64) {
    (holdEnd, yields) = (.max, 0)
    isBetweenSteps = true
    defer { isBetweenSteps = false }
    while let last = timers.last, last.due <= now {
      timers.removeLast()
      caw_run(last.job, last.isMain)
      // Of timers of one instant, a later one may come after what an earlier one has made ready.
      if let next = timers.last, next.due <= now, world.delaysTimer() {
        holdEnd = world.steps + Self.longestHold
        return
      }
    }
  }

  /// For how many steps a timer may be held back: what the other one has begun may wait for it.
  private static var longestHold: Int { 16 }
  /// The number of yields after which Tasks are taken to wait for time: it would pass meanwhile.
  private static var mostYields: Int { 10_000 }
  var mustFire: Bool { world.steps >= holdEnd || yields >= Self.mostYields }

  // MARK: Footprints
  //
  // What a step of a Task touches, so that a search may leave out orders of steps that do not depend on each other
  // (Sharing.waits): the actor on which it runs, itself, each Task that it resumes, each stream that it uses, and the
  // parent of a child that ends in it, the only one that sees that. A step depends on every other one if it creates a
  // Task, because Tasks are numbered; if an unstructured Task ends in it, whose value anyone may ask for; if a Task is
  // cancelled in it; and if it is one of an actor's own queue, in which any Task may run.

  private func watch(_ task: SimulatedTask) {
    world.footprints?.isUniversal = true
    let creator = caw_is_child(task.job) ? caw_current_task() : nil
    let parent = creator.flatMap { $0 == task.job ? nil : records[caw_id($0)] }
    watched.append(WatchedTask(task: task, parent: parent, isInParent: caw_is_async_let(task.job)))
  }

  func uses(_ object: UnsafeMutableRawPointer) {
    if world.footprints != nil { world.touches(UInt(bitPattern: object)) }
  }

  func stepFinished(_ id: UInt64) {
    var index = 0
    while index < watched.count {
      let (task, parent) = (watched[index].task, watched[index].parent)
      if watched[index].isInParent ? caw_has_gone(task.job, task.key) : task.index < 0 || caw_has_ended(task.job) {
        watched.remove(at: index)
        if task.id == id, let parent { world.footprints?.touch(parent) } else { world.footprints?.isUniversal = true }
        continue
      }
      if watched[index].isInParent {
        // The end of its scope cancels it, and then waits.
        if parent == nil || parent?.id == id && hopping !== parent { world.footprints?.isUniversal = true }
      } else if watched[index].isCancelled != caw_is_cancelled(task.job) {
        watched[index].isCancelled.toggle()
        world.footprints?.isUniversal = true
      }
      index += 1
    }
  }

  // MARK: The end

  var hasLive: Bool {
    while let last = live.last, caw_has_ended(last.job) { forget(last) }
    return !live.isEmpty
  }

  private static var few: Int { 32 }

  /// Holds the Tasks that the step has created and that go on, and releases those that have ended.
  ///
  /// A Task keeps its result, and what that does when it goes may be what another Task waits for. A Task that ends in a
  /// step of another one, or of an actor's own queue, is found at once among few; of many, all are looked at whenever
  /// they have become twice as many. In the order of their numbers, also where the run is repeated by a policy that
  /// needs no footprints.
  func endStep() {
    if hasLock { AsyncWatch.stepEnds() }
    for task in newborn where task.index < 0 {
      if caw_has_gone(task.job, task.key) {
        records[task.key] = nil
        others.append(task)
      } else {
        hold(task)
      }
    }
    newborn = []
    if live.count > Self.few, live.count < nextSweep {
      if let task = world.runningTask, live.indices.contains(task.index), caw_has_ended(task.job) { forget(task) }
      return
    }
    _ = forgetEnded()
  }

  func forgetEnded() -> Bool {
    let ended = live.filter { caw_has_ended($0.job) }
    if ended.count > 1 { ended.sorted { $0.id < $1.id }.forEach(forget) } else { ended.first.map(forget) }
    nextSweep = max(Self.few, 2 * live.count)
    return !ended.isEmpty
  }

  private func forget(_ task: SimulatedTask) {
    yields = 0
    // First, because nothing else may hold it after the next lines; its item is used to the world's end.
    others.append(task)
    let last = live.removeLast()
    if last !== task {
      live[task.index] = last
      last.index = task.index
    }
    task.index = -1
    records[task.key] = nil
    Self.owners.withLock { _ = $0?.removeValue(forKey: task.key) }
    caw_release(task.job)
  }

  func cancelAll() {
    for task in live.sorted(by: { $0.id < $1.id }) where !caw_has_ended(task.job) { caw_cancel(task.job) }
  }

  /// Throws if Tasks have not ended, although they were cancelled.
  func requireNoneLeft() throws {
    guard hasLive, live.contains(where: { !caw_has_ended($0.job) }) else { return }
    throw World.LeftRunningError(
      dump: dump,
      sentence: "the body ended, and left Tasks behind that do not end when they are cancelled: something that nothing "
        + "resumes"
    )
  }

  var dump: String {
    var text = ""
    for task in isTraced ? unfinished : live.sorted(by: { $0.id < $1.id }) where !caw_has_ended(task.job) {
      let name = name(of: task).map { " \"\($0.asName)\"" } ?? ""
      let state =
        task.target.map { "goes to \(Self.name(of: $0.identity, $0.implementation))" }
        ?? (caw_is_enqueued(task.job) ? "waits for an actor or an executor" : "waits\(waitSite(of: task))")
      let site = site(of: task)
      text += "\(title(of: task))\(name) \(state)\(caw_is_cancelled(task.job) ? ", cancelled" : "")"
      text += site.isEmpty ? "\n" : ", created in \(site)\n"
    }
    return text
  }

  /// The Tasks that have not ended, with the children that lie in their parents.
  private var unfinished: [SimulatedTask] {
    records.values.filter { !caw_has_gone($0.job, $0.key) }.sorted { $0.id < $1.id }
  }

  func title(of task: SimulatedTask) -> String {
    if Candidate.isTask(task.id) { return "Task \(task.id & ~Candidate.firstTask)" }
    return queues.queue(of: task.id) == nil ? "an actor's own queue" : "a queue"
  }

  func name(of task: SimulatedTask) -> String? {
    Candidate.isTask(task.id) && !caw_has_gone(task.job, task.key) ? TaskContext.name(of: task.job) : nil
  }

  func site(of task: SimulatedTask) -> String {
    guard Candidate.isTask(task.id), let callers = sites[task.key] else { return "" }
    return SimulatedWorld.function(at: callers) ?? ""
  }

  /// Where a suspended Task continues, as the end of a sentence.
  private func waitSite(of task: SimulatedTask) -> String {
    guard isTraced else { return "" }
    let addresses = withUnsafeTemporaryAllocation(of: UInt.self, capacity: 16) { addresses in
      guard let start = addresses.baseAddress else { return [UInt]() }
      return Array(addresses.prefix(Int(caw_waits(task.job, start, 16))))
    }
    return SimulatedWorld.function(at: addresses.map { $0 + 1 }).map { " in \($0)" } ?? ""
  }

  func end(of task: SimulatedTask) -> String {
    if let (identity, implementation) = task.target { return "goes to \(Self.name(of: identity, implementation))" }
    if !Candidate.isTask(task.id) || caw_has_gone(task.job, task.key) { return "ended" }
    let isEnqueued = caw_is_enqueued(task.job) || continuations.contains { caw_continues($0.job, task.job) }
    return isEnqueued ? "yields" : "waits"
  }

  /// What an executor is, for reports.
  static func name(of identity: UnsafeMutableRawPointer?, _ implementation: UInt) -> String {
    guard let identity else { return "no actor" }
    if caw_is_main(identity) { return "the main actor" }
    // Sound because the identity of a serial executor is the object.
    return "\(type(of: Unmanaged<AnyObject>.fromOpaque(identity).takeUnretainedValue()))"
  }
}

/// A Task whose ends and cancellations are looked for after each step.
private struct WatchedTask {
  let task: SimulatedTask
  let parent: SimulatedTask?
  /// Whether it lies in its parent, which `async let` has begun.
  let isInParent: Bool
  var isCancelled = false
}
