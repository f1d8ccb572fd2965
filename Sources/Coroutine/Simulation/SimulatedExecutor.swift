internal import CCoroutineRuntime
import Dispatch
import Synchronization

/// Stands in a world for a queue, or for the worker pool: a scheduler, and the carrier that runs its jobs.
///
/// - The executor of a queue is serial. It lists one candidate at a time, its head. The others are in `waiting`, first
///   in, first out.
/// - The executor of the pool lists all its jobs and Swift jobs. It lists its handlers one at a time, because the
///   handlers of a worker run one after another.
final class SimulatedExecutor {
  let scheduler: Scheduler
  /// In memory of its own, because a coroutine keeps the address over a switch.
  let carrier: UnsafeMutablePointer<Carrier>
  let isSerial: Bool
  /// Retained, so that no other queue gets its address while the world runs.
  private let queue: DispatchQueue?
  @exclusivity(unchecked) private var waiting = MessageQueue()
  @exclusivity(unchecked) private var hasHead = false
  private let world: SimulatedWorld
  private let host: SimulatedHost
  private let index: Int

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?, index: Int, seed: UInt64) {
    self.world = world
    self.queue = queue
    self.index = index
    isSerial = queue != nil
    host = SimulatedHost(world, queue)
    scheduler = Scheduler(host: host, anchor: nil, pool: nil)
    carrier = .allocate(capacity: 1)
    carrier.initialize(
      to: Carrier(scheduler: .passUnretained(scheduler), readyQueue: scheduler.readyQueue, now: world.now)
    )
    carrier.pointee.random = seed &+ UInt64(index) &* 0x9E37_79B9_7F4A_7C15
    // The world takes every message itself, so a push must start no drain; see `waitOutside`.
    _ = scheduler.inbox.wakeUp()
  }

  deinit {
    carrier.deinitialize(count: 1)
    carrier.deallocate()
  }

  /// Adds a job, a Swift job or a handler that has become ready.
  ///
  /// A queue's order is that of these calls, so the running step has touched the queue.
  func add(_ message: Inbox.Message, to candidates: inout CandidateList) {
    switch message {
    case .swiftJob where !isSerial:
      candidates.append(Candidate(message, id: Candidate.noJob | world.takeID(), self, isHead: false))
    default:
      if !isSerial, let id = Candidate.coroutine(message) {
        return candidates.append(Candidate(message, id: id, self, isHead: false))
      }
      world.touches(UInt(bitPattern: carrier))
      waiting.append(message)
      listHead(&candidates)
    }
  }

  /// Lists the first waiting candidate, if the executor has no head.
  private func listHead(_ candidates: inout CandidateList) {
    guard !hasHead, let message = waiting.popFirst() else { return }
    hasHead = true
    let id = Candidate.coroutine(message) ?? Candidate.noJob | UInt64(index) << 32
    candidates.append(Candidate(message, id: id, self, isHead: true))
  }

  /// Lists the next head; called after a step of a candidate of this executor.
  func ended(_ candidate: Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    hasHead = false
    listHead(&candidates)
  }

  /// Lets the other jobs of the queue overtake a coroutine that is about to wait.
  func letOvertake(_ candidate: inout Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    candidate.isHead = false
    hasHead = false
    listHead(&candidates)
  }

  func cancelAll(where isMeant: (JobRef) -> Bool = { _ in true }) {
    var jobs: [AnyJob] = []
    // Read without the lock: this thread alone launches and ends jobs of the world, and a dump only reads the list.
    var job = scheduler.firstLive
    while let current = job {
      if isMeant(current) { jobs.append(current.handle.takeUnretainedValue()) }
      job = current.pointee.nextLive
    }
    // In the order of their launches.
    for job in jobs.reversed() { job.cancel() }
  }

  /// Releases the memory and the pins that a drain releases when it goes idle.
  func close() {
    host.end(scheduler)
    scheduler.unpinHandlers()
    scheduler.readyQueue.stackCache.pointee.freeAll()
    StackTrimmer.trimIfMany()
  }
}

/// The messages that wait in an executor, first in, first out, in the inbox's encoding.
struct MessageQueue {
  private var words: [UInt] = []
  private var first = 0

  mutating func append(_ message: Inbox.Message) { words.append(Inbox.encode(message)) }

  mutating func popFirst() -> Inbox.Message? {
    guard first < words.count else { return nil }
    defer {
      first += 1
      if first == words.count { (words, first) = ([], 0) }
    }
    return Inbox.decode(words[first])
  }
}

// MARK: - The host of a world's schedulers

/// The host of a simulated executor's scheduler: the world's loop takes the messages and runs the jobs.
final class SimulatedHost: Host, @unchecked Sendable {
  // Sound because `world` is a constant, and `isEnded` is accessed under `lock`.
  let world: SimulatedWorld
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var isEnded = false

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?) {
    self.world = world
    // A world's queue has no thread, as a real one has none: what a program is refused there, it is refused here.
    super.init(
      label: queue?.label ?? "world",
      controlsOrder: true,
      mayPoll: false,
      hasOwnThread: queue == nil
    )
  }

  override var now: UInt64 { world.now }
  override var localNow: UInt64 { world.localNow }
  override func lasting(_ nanoseconds: Int64) -> Int64 { world.lasting(nanoseconds) }
  override func time(showing reading: UInt64) -> UInt64 { world.time(showing: reading) }
  override func localLength(_ nanoseconds: UInt64) -> UInt64 { world.localLength(nanoseconds) }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    world.messageArrived()
    return true
  }

  /// Whether the calling thread drives this world.
  override func isCurrent(_ scheduler: Scheduler) -> Bool { SimulatedWorld.current === world }

  override func choose(_ count: Int) -> Int { count < 2 ? 0 : world.policy.choose(count) }

  override func simulated(_ queue: DispatchQueue?) -> Scheduler? { world.executor(of: queue).scheduler }

  override func nextJobID() -> UInt64? { world.takeID() }

  // Virtual time does not advance by itself: the world decides before each wait which job continues.
  override func mustGiveWay(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef, _ source: UInt) -> Bool {
    world.reachesPoint(job, source, holdsQueue: false)
  }

  override func mustGiveWay(atPointOf job: JobRef) -> Bool { world.reachesPoint(job, 0, holdsQueue: true) }

  override func willHandleInterrupt() { touchesEverything() }

  override func willThrowCancellation(_ job: JobRef) { world.throwsCancellation(job) }

  override func schedulerOfTimers(_ scheduler: Scheduler) -> Scheduler? { scheduler }

  override func random(_ carrier: UnsafeMutablePointer<Carrier>) -> Double {
    Double(carrier.pointee.drawNumber() >> 11) * 0x1p-53
  }

  override var standIns: StandIns { world.standIns }

  override func touchesEverything() { world.footprints?.isUniversal = true }

  override func touches(_ object: UInt) { world.touches(object) }

  override func chooseFault(_ name: StaticString) -> Bool { world.policy.chooseFault(name) }

  override func requireReal(_ job: JobRef?, on target: Scheduler?, _ what: () -> String) throws {
    if target?.host is SimulatedHost { return }
    if let job, world.isOutside(job) { return }
    throw world.refuse(what(), job)
  }

  override func noteWake(_ job: JobRef) { if isCalledFromOutside { world.foreignWakes.add(job) } }

  override var isCalledFromOutside: Bool { SimulatedWorld.current !== world }

  override func checkWake(_ job: JobRef) { world.checkWake(job) }

  override func takesUnhandled(_ error: CoroutineRuntime.UnhandledError) -> Bool { world.takesUnhandled(error) }

  // MARK: Swift jobs
  //
  // A Task may outlive the world, if a cancelled co_await has left it, or if it waits for something outside. `admit`
  // and `end` share one lock. So a Swift job either is in the inbox before the world takes the remaining messages, or
  // is refused and runs on another executor.

  override func admit(_ push: () -> Void) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    if isEnded { return false }
    if SimulatedWorld.current !== world { world.swiftJobArrivesFromOutside() }
    push()
    return true
  }

  /// Ends the host, and enqueues the remaining Swift jobs on Swift's global executor.
  func end(_ scheduler: Scheduler) {
    lock.lock()
    isEnded = true
    lock.unlock()
    scheduler.inbox.takeAll(as: nil, scheduler.handle)
    scheduler.runSwiftJobsElsewhere()
  }

  override func takesBlocking(_ job: JobRef, _ body: @autoclosure () -> @Sendable () -> Void) -> Bool {
    if world.isOutside(job) { return false }
    world.addBlocking(body())
    return true
  }
}

// MARK: - What can take the next step

/// One flow of control that may take the next step of a world.
///
/// It is a coroutine, a handler, a Swift job, or a body of co_blocking.
package struct Candidate {
  /// The number of the coroutine in its world, in the order of the launches.
  ///
  /// Candidates that are no coroutines have numbers from `noJob` on.
  package let id: UInt64
  /// The inbox's encoding of the candidate (`Inbox.encode`).
  let word: UInt
  // The world holds its executors.
  unowned(unsafe) let executor: SimulatedExecutor
  /// Whether the executor lists no other candidate before this one has taken a step.
  var isHead: Bool

  package static var noJob: UInt64 { 1 << 63 }

  init(_ message: Inbox.Message, id: UInt64, _ executor: SimulatedExecutor, isHead: Bool) {
    word = Inbox.encode(message)
    self.id = id
    self.executor = executor
    self.isHead = isHead
  }

  var job: JobRef? {
    if case .job(let job) = Inbox.decode(word) { return job }
    return nil
  }

  /// The arrival of a coroutine, with the reference that its queue has; nil for other candidates.
  var arrival: Unmanaged<Arrival>? { Self.arrival(Inbox.decode(word)) }

  static func arrival(_ message: Inbox.Message) -> Unmanaged<Arrival>? {
    if case .work(let item) = message { Arrival.owned(by: item) } else { nil }
  }

  /// The number of the coroutine that a message is about; nil for a Swift job or a handler.
  static func coroutine(_ message: Inbox.Message) -> UInt64? {
    if case .job(let job) = message { return job.pointee.label.id }
    return arrival(message)?._withUnsafeGuaranteedRef { $0.id }
  }

  var isSwiftJob: Bool {
    if case .swiftJob = Inbox.decode(word) { true } else { false }
  }

  /// A coroutine with its name and its launch site; what it is for others.
  package var title: String {
    if let job { return job.handle._withUnsafeGuaranteedRef { $0.summary } }
    if arrival != nil { return "coroutine #\(id)" }
    if let task { return task.owner.title(of: task) }
    return isSwiftJob ? "a part of a Task" : "a handler"
  }

  /// Runs a candidate that is no coroutine, as a drain of its executor would.
  func run() {
    switch Inbox.decode(word) {
    case .work(let item): item.run()
    case .swiftJob(let job): executor.scheduler.perform(job)
    case .job: misuse("a coroutine is resumed, not run")
    }
  }
}

/// The candidates in the order in which they became ready.
///
/// Removing takes constant time. The policy chooses among the first `window` candidates only, and the candidates in
/// front of the removed one move up by one.
struct CandidateList {
  private var items: [Candidate] = []
  private var first = 0

  static var window: Int { 256 }

  init() { items.reserveCapacity(8) }

  var count: Int { items.count - first }
  var isEmpty: Bool { items.count == first }
  var last: Candidate? { isEmpty ? nil : items[items.count - 1] }

  mutating func append(_ candidate: Candidate) { items.append(candidate) }

  mutating func prepend(_ candidate: Candidate) {
    if first > 0 {
      first -= 1
      items[first] = candidate
    } else {
      items.insert(candidate, at: 0)
    }
  }

  mutating func remove(at index: Int) -> Candidate {
    let candidate = items[first + index]
    var position = first + index
    while position > first {
      items[position] = items[position - 1]
      position -= 1
    }
    first += 1
    if first == items.count {
      items.removeAll(keepingCapacity: true)
      first = 0
    } else if first > 1024, first > items.count / 2 {
      items.removeFirst(first)
      first = 0
    }
    return candidate
  }

  /// Removes the first arrival whose coroutine does not come any more, if there is one.
  mutating func removeCancelledArrival() -> Candidate? {
    let index = items[first...].firstIndex { $0.arrival?._withUnsafeGuaranteedRef { $0.isCancelled } ?? false }
    return index.map { remove(at: $0 - first) }
  }

  /// Calls `body` with the first `window` candidates.
  func withWindow<R>(_ body: (UnsafeBufferPointer<Candidate>) -> R) -> R {
    items.withUnsafeBufferPointer { items in
      body(UnsafeBufferPointer(rebasing: items[first..<min(items.count, first + Self.window)]))
    }
  }
}

extension SimulatedStep {
  init(_ candidate: Candidate, now: UInt64) {
    let task = candidate.task
    let kind = task.map { $0.owner.end(of: $0) } ?? (candidate.isSwiftJob ? "part of a Task" : "handler")
    self.init(
      id: candidate.id,
      name: task.flatMap { $0.owner.name(of: $0) },
      launchSite: task.map { $0.owner.site(of: $0) } ?? "",
      end: kind,
      now: now
    )
  }

  /// `live` are the world's jobs: one of them may own the lock that the job waits for.
  init(_ job: AnyJob, among live: [AnyJob], isInterrupted: Bool, now: UInt64) {
    let value = SnapshotReader.value(of: InspectedJob(job), JobNames(live))
    let end = job.completion.known.isSettled ? "ended" : isInterrupted ? "interrupted" : value.stateText
    self.init(id: value.id, name: value.name, launchSite: value.launchSite, end: end, now: now)
  }
}

// MARK: - Threads outside of the world

// Waits of a world's coroutines for the real world.

extension SimulatedWorld {
  /// Marks the running coroutine's waits as waits for the real world while `body` runs.
  ///
  /// The coroutines that `body` launches inherit that, until they end.
  package func outside<R, Failure>(_ body: () throws(Failure) -> R) throws(Failure) -> R {
    guard Carrier.current?.pointee.job != nil else { return try body() }
    hasDeclared = true
    return try Self.declared.withValue(true, body)
  }

  /// Whether the waits of a coroutine, and of those that it launches, are declared.
  private static let declared = CoroutineLocal(default: false)

  func isOutside(_ job: JobRef) -> Bool { Self.declared.value(from: job.pointee.locals?.takeUnretainedValue()) }

  /// Whether there is a live coroutine whose waits are declared, and for which `isMeant` is true.
  private func hasOutside(where isMeant: (JobRef) -> Bool) -> Bool {
    if !hasDeclared { return false }
    for executor in executors {
      var job = executor.scheduler.firstLive
      while let current = job {
        if isOutside(current), isMeant(current) { return true }
        job = current.pointee.nextLive
      }
    }
    return false
  }

  /// Returns the error of a wait for the real world, which also fails the run if the code under test catches it.
  func refuse(_ what: String, _ job: JobRef?) -> any Error {
    let name = job.map { $0.handle._withUnsafeGuaranteedRef { $0.summary } } ?? "code outside of any coroutine"
    let error = policy.realWait("\(name) waits for \(what)")
    fail(error)
    return error
  }

  /// Blocks the thread until a real thread has sent a message, if a coroutine waits for one.
  ///
  /// `lastly` is for when time cannot pass either: then a declared wait for an object of the program, a channel or a
  /// promise for example, is taken as one that a real thread ends. Not for ever, because the declared code may have a
  /// deadlock as well.
  ///
  /// Returns whether a message has arrived.
  func waitOutside(lastly: Bool = false) -> Bool {
    if lastly, finding != nil { return false }
    // Nothing can run, so each of them is parked. One that does not wait any more was claimed by a real thread, which
    // is about to send its message. In a run that has failed, it may be parked for ever (`throwsCancellation`).
    let isAwaited = hasOutside { job in
      guard job.seemsWaiting || finding == nil else { return false }
      guard let kind = WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed)) else { return false }
      return kind.isReal || kind == .job && waitsForJobOutside(job) || lastly && kind.mayBeReal
    }
    guard isAwaited else { return false }
    defer { for executor in executors { _ = executor.scheduler.inbox.wakeUp() } }
    // A message that arrives after this finds an idle inbox, and signals the semaphore.
    for executor in executors where !executor.scheduler.inbox.goIdle() { return true }
    let limit = lastly ? DispatchTime.now() + .seconds(10) : .distantFuture
    var end = DispatchTimeoutResult.success
    LimitedThread.whileWaiting { end = wakeUp.wait(timeout: limit) }
    return end == .success
  }

  /// The error of a coroutine whose wait something outside may end, or has just ended; nil if there is none.
  ///
  /// Called when nothing can run. Of several coroutines it names the one that was launched first.
  var waitsForOutside: (any Error)? {
    var found: (job: JobRef, what: String)?
    for executor in executors {
      var job = executor.scheduler.firstLive
      while let current = job {
        if let what = outsideWait(of: current),
          found.map({ current.pointee.label.id < $0.job.pointee.label.id }) ?? true
        {
          found = (current, what)
        }
        job = current.pointee.nextLive
      }
    }
    return found.map { refuse("\($0.what), which nothing in the world ends", $0.job) }
  }

  private func outsideWait(of job: JobRef) -> String? {
    let source = job.pointee.waitSource.load(ordering: .relaxed)
    // Whether it still waits is not asked: a thread that has ended the wait may not have sent its message yet.
    switch WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed)) {
    case .task: return "a Task"
    // A wait for a stop has a source.
    case .callback where source == 0: return "a callback"
    case .job: return waitsForJobOutside(job) ? "a coroutine outside of the world" : nil
    default: return nil
    }
  }

  /// Whether the job that `job` waits for runs outside of the world.
  private func waitsForJobOutside(_ job: JobRef) -> Bool {
    // Sound because the waiting coroutine holds the job, and is parked.
    guard let address = UnsafeRawPointer(bitPattern: job.pointee.waitSource.load(ordering: .relaxed)) else {
      return false
    }
    let other = Unmanaged<AnyJob>.fromOpaque(address)._withUnsafeGuaranteedRef { $0 }
    return (Host.of(other.record) as? SimulatedHost)?.world !== self
  }

  /// Fails the run if a thread outside of the world has ended a wait of a coroutine that has not declared it.
  ///
  /// The coroutine has not continued yet, so it is still in `outside` if it has.
  func checkWake(_ job: JobRef) {
    if !isOutside(job) { _ = refuse("what a thread outside of the world has ended", job) }
  }

  /// Records that a real thread is about to resume a Task of the world; called by that thread.
  func swiftJobArrivesFromOutside() { hasSwiftJobFromOutside.store(true, ordering: .relaxed) }

  /// Fails the run: the policy does not choose the moment at which a real thread resumes a Task.
  func checkSwiftJobFromOutside() {
    hasSwiftJobFromOutside.store(false, ordering: .relaxed)
    if !hasOutside(where: { _ in true }) {
      fail(policy.realWait("a Task that co_await has started was resumed by a real thread"))
    }
  }

  /// Wakes the world's thread; called by a thread whose message has found an idle inbox.
  func messageArrived() { wakeUp.signal() }
}

/// The jobs of a world that other threads are about to wake.
///
/// A job is parked from before it is added until the world has taken it, which happens after its wake-up has arrived:
/// both are done by one thread, in this order. So the addresses are valid.
final class ForeignWakes: @unchecked Sendable {
  // Sound because `jobs` is accessed under `lock`, which a test holds to delay a message.
  let lock = ThreadLock()
  private let isEmpty = Atomic<Bool>(true)
  @exclusivity(unchecked) private var jobs: [JobRef] = []

  func add(_ job: JobRef) {
    lock.withLock {
      jobs.append(job)
      isEmpty.store(false, ordering: .relaxed)
    }
  }

  /// Removes and returns all; one load if there is none.
  func take() -> [JobRef] {
    if isEmpty.load(ordering: .relaxed) { return [] }
    return lock.withLock {
      isEmpty.store(true, ordering: .relaxed)
      defer { jobs = [] }
      return jobs
    }
  }
}

extension WaitKind {
  /// Whether only the real world ends a declared wait of this kind.
  fileprivate var isReal: Bool {
    switch self {
    case .callback, .task, .blocking, .readable, .writable, .descriptor: true
    default: false
    }
  }

  /// Whether a real thread may end a declared wait of this kind as well as a coroutine of the world.
  fileprivate var mayBeReal: Bool {
    switch self {
    case .promise, .select, .lock, .receive, .send, .permits, .condition, .group, .answer, .decision, .change: true
    default: false
    }
  }
}

// MARK: - The Task around a world

/// A Task from which other Tasks inherit task-locals and priority while it waits or is suspended.
package struct TaskContext: @unchecked Sendable {
  // Sound because the address is compared and stored only; `inherit` says when it may be used.
  private let task: UnsafeMutableRawPointer?

  init(task: UnsafeMutableRawPointer?) { self.task = task }

  /// The Task of the calling code; outside a Task, a context that passes nothing on.
  package static var current: TaskContext { TaskContext(task: cco_current_task()) }

  /// Calls `body`, which begins Tasks that inherit this Task's task-locals and priority.
  ///
  /// Called in a coroutine, while the Task waits or is suspended. `body` must not suspend, except inside of the Tasks
  /// that it begins.
  package func inherit<R>(_ body: () throws -> R) rethrows -> R {
    let outer = cco_exchange_task(task)
    defer { _ = cco_exchange_task(outer) }
    return try body()
  }
}

// MARK: - A timer of CoroutineTesting

extension SimulatedWorld {
  /// Calls `body` after `duration` of the world's time, unless the world has ended before.
  ///
  /// Called inside the world. Timers of one instant fire in the order of these calls.
  package func after(_ duration: Duration, _ body: @escaping () -> Void) {
    WorldTimer(body).start(duration, isLocal: false)
  }
}

/// A timer of a world.
///
/// It calls a closure on the world's thread, outside of every coroutine.
private final class WorldTimer: TimerCall, @unchecked Sendable {
  // Sound because `body` is a constant, and a world runs on one thread.
  private let body: () -> Void
  init(_ body: @escaping () -> Void) { self.body = body }
  override func fire() { body() }
}
