internal import CCoroutine
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
///  3. While any job or handler of it is live, a scheduler holds its anchor (Host.swift). If the host releases its
///     anchor, `anchor` is set only then.
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because of the invariants above: each mutable property names its guard.

  let inbox = Inbox()
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>
  /// What waits for the driver beside ready jobs: handlers, jobs of Swift Concurrency (Scheduler+Swift.swift), and on a
  /// worker requests to run another worker's handlers.
  ///
  /// Accessed by the drain, and by the jobs that run in it.
  @exclusivity(unchecked) var work = WorkQueue()
  /// The handlers of a worker, which lives for ever; nil for the scheduler of a queue.
  let handlers: Unmanaged<HandlerQueue>?
  /// Who has the scheduler's actors to itself (Exclusion.swift); accessed as `work` is.
  @exclusivity(unchecked) var exclusion = Exclusion()
  /// What actors name as their executor.
  ///
  /// Set in `init`, constant from then on.
  @exclusivity(unchecked) private var identity: SerialIdentity?
  var serialIdentity: SerialIdentity { identity.unsafelyUnwrapped }
  /// The index of a worker in its pool.
  let index: UInt8

  let host: Host
  let isImmortal: Bool

  // Guarded by `liveLock`.
  let liveLock = SpinLock()
  @exclusivity(unchecked) private var anchor: Anchor?
  @exclusivity(unchecked) var firstLive: JobRef?
  /// The job at which a dump continues its walk through the live jobs.
  @exclusivity(unchecked) private var nextListed: JobRef?
  @exclusivity(unchecked) private(set) var liveJobs = 0
  @exclusivity(unchecked) private var livePins = 0
  @exclusivity(unchecked) private var nextID: UInt64 = 0
  @exclusivity(unchecked) private var lastID: UInt64 = 0
  /// The error of each job that is launched from now on; nil unless the host has ended (Scheduler+End.swift).
  @exclusivity(unchecked) var endedBy: (any Error)?

  // Guarded by `timerLock`.
  let timerLock = ThreadLock()
  @exclusivity(unchecked) var wheel = TimerWheel()
  /// The time of the wheel's next event, readable without the lock; `max` means none.
  let nextTimer = Atomic<UInt64>(.max)

  /// The time at which the drain last read the clock: gives an upper bound for how long the running job has run, for
  /// dumps.
  ///
  /// Written by the drain, which has just read the clock; read by any thread.
  let lastLook = Atomic<UInt64>(0)

  /// How often one of the pool's Swift jobs has begun or ended on this worker: odd while one runs.
  ///
  /// For the report of a stall. Written by the drain (WorkerPool+Swift.swift); read by the watchdog and by dumps.
  let swiftJobChanges = Atomic<UInt64>(0)

  /// A worker's poller, as an unmanaged reference; 0 before the first wait for a descriptor, and on every other
  /// scheduler.
  ///
  /// Set once (WorkerPool+Pollers.swift).
  let poller = Atomic<UInt>(0)

  // Accessed by the drain only.
  @exclusivity(unchecked) var timeSlice = TimeSlice()
  @exclusivity(unchecked) var idleSpin = IdleSpin()
  let timerWakeup = TimerWakeup()
  /// The number of jobs that keep the thread of this scheduler (Scheduler+Keep.swift).
  @exclusivity(unchecked) var keepers = 0
  /// The number of handlers that were bound on this scheduler's own carrier and have not run (HandlerPin.swift).
  @exclusivity(unchecked) var boundHandlers = 0
  /// Whether these handlers hold their common pin.
  @exclusivity(unchecked) var handlersHoldPin = false
  /// The number of these handlers that were dropped outside this scheduler's carrier; any thread.
  let droppedHandlers = Atomic<Int>(0)
  /// Whether a worker with work to give has woken this one.
  let wasJustOffered = Atomic<Bool>(false)
  /// The name that a coroutine on this carrier has given last; accessed on it only (JobName.shared).
  @exclusivity(unchecked) var latestName: JobName?
  /// A worker's record of its steals; accessed by the drain only.
  @exclusivity(unchecked) var stealBackoff = StealBackoff()

  /// Creates a scheduler.
  ///
  /// `anchor` is set for a scheduler that lives as long as the process, or as its host. A scheduler that releases its
  /// anchor gets it with the first job or handler.
  init(host: Host, anchor: Anchor?, pool: WorkerPool?, index: Int = 0) {
    // From here on a launch finds the task-locals that it passes on.
    cco_start()
    self.host = host
    self.anchor = anchor
    self.index = UInt8(index)
    isImmortal = anchor != nil
    handlers = pool.map { _ in Unmanaged.passRetained(HandlerQueue()) }
    readyQueue = .allocate(capacity: 1)
    readyQueue.initialize(to: ReadyQueue(workerPool: pool.map(Unmanaged.passUnretained)))
    identity = SerialIdentity(self)
    if !host.refusesJobs { SchedulerRegistry.add(self) }
  }

  deinit {
    SchedulerRegistry.remove(self)
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
    if inbox.push(message) { submit() }
  }

  /// Sends a message; on this scheduler's own carrier it is handled at once.
  func send(_ message: Inbox.Message) {
    if isOwnTurn { handle(message) } else { push(message) }
  }

  /// Whether the calling code runs in this scheduler's drain.
  var isOwnTurn: Bool { Carrier.current?.pointee.scheduler?.toOpaque() == Unmanaged.passUnretained(self).toOpaque() }

  func handle(_ message: Inbox.Message) {
    switch message {
    case .job(let job): readyQueue.append(job)
    case .interrupt(let job):
      if host.hasVirtualTime { host.touchesEverything() }
      handleInterrupt(of: job)
    case .swiftJob: work.append(message)
    case .work(let item):
      if item == timerWakeup.item {
        timerWakeupArrived()
      } else {
        work.append(message)
      }
    }
  }

  // MARK: Drains

  /// Submits a drain at the back of the queue.
  ///
  /// Called after moving the inbox out of `idle`, or by the drain.
  func submit() {
    while true {
      if host.submit(self, isImmortal ? anchor : liveLock.withLock({ anchor })) { return }
      // Nothing of this scheduler was live. So the messages are interrupts of finished jobs, which need no drain, and
      // jobs of Tasks that outlived what they were started for. But somebody may have pinned the queue since, and sent
      // a job that must run there. A pin comes before its messages, so it is seen here.
      var late: [Inbox.Message] = []
      inbox.takeAll(isShared: false) { late.append($0) }
      late.forEach(handle)
      if !hasLive { runSwiftJobsElsewhere() }
      guard readyQueue.pointee.queue.isEmpty, work.isEmpty else { continue }
      prepareToIdle()
      if inbox.goIdle() { return }
    }
  }

  // MARK: Current thread

  /// Whether blocking the calling thread would block the jobs.
  var isCurrent: Bool { host.isCurrent(self) }

  // MARK: Live jobs and pins

  /// Registers a job at its launch.
  ///
  /// Any thread.
  func register(_ job: JobRef, holding anchor: @autoclosure () -> Anchor?) {
    liveLock.lock()
    if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
    liveJobs += 1
    if job.pointee.label.id == 0 { number(job) }
    job.pointee.home = Unmanaged.passUnretained(self)
    job.pointee.previousLive = nil
    job.pointee.nextLive = firstLive
    firstLive?.pointee.previousLive = job
    firstLive = job
    let isEnded = endedBy != nil
    liveLock.unlock()
    if isEnded { refuse(job) }
  }

  /// Appends the live jobs to `jobs`, the latest first.
  ///
  /// Takes a few of them in each critical section, so that launches and ends are not kept waiting. A job that comes
  /// meanwhile may be missing. One call at a time: the caller holds the lock of `Dump`.
  func listLiveJobs(_ jobs: inout [AnyJob]) {
    liveLock.withLock { nextListed = firstLive }
    var isOver = false
    while !isOver {
      var some = InlineArray<32, Unmanaged<AnyJob>?>(repeating: nil)
      liveLock.lock()
      for index in some.indices {
        guard let job = nextListed else { break }
        some[index] = job.handle.retain()
        nextListed = job.pointee.nextLive
      }
      isOver = nextListed == nil
      liveLock.unlock()
      for index in some.indices { if let job = some[index] { jobs.append(job.takeRetainedValue()) } }
    }
  }

  /// Assigns a number to a job that is not live yet.
  func identify(_ job: JobRef) {
    liveLock.withLock { number(job) }
  }

  /// Assigns the identifier, and the number under which the job owns locks; called under the lock.
  @inline(__always)
  private func number(_ job: JobRef) {
    if nextID == lastID, hasNumberedInWorld(job) { return }
    nextID += 1
    job.pointee.label.id = nextID
    job.pointee.owner.store(OwnerNumber.ofJob(nextID), ordering: .relaxed)
  }

  /// Reserves numbers; in a simulated world, assigns the next ones instead.
  @inline(never)
  private func hasNumberedInWorld(_ job: JobRef) -> Bool {
    guard let id = host.nextJobID() else {
      (nextID, lastID) = JobIdentifiers.reserve()
      return false
    }
    // Every world begins with the same identifiers, so that its runs can be compared.
    job.pointee.label.id = id
    job.pointee.owner.store(OwnerNumber.draw(), ordering: .relaxed)
    return true
  }

  /// Unregisters a job at its end.
  func unregister(_ job: JobRef) {
    liveLock.lock()
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      firstLive = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    if nextListed == job { nextListed = job.pointee.nextLive }
    liveJobs -= 1
    let released = takeAnchorElsewhere()
    liveLock.unlock()
    leave(released)
  }

  /// Keeps the queue alive for a user that is not a job, and with it this scheduler.
  ///
  /// Without an anchor the pins themselves hold this scheduler: a job's record does, but a handler has none.
  func pin(_ anchor: @autoclosure () -> Anchor?) {
    liveLock.withLock {
      if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
      livePins += 1
      if livePins == 1, isHeldByPins { _ = Unmanaged.passRetained(self) }
    }
  }

  func unpin() {
    liveLock.lock()
    livePins -= 1
    let released = takeAnchorElsewhere()
    let isLast = livePins == 0 && isHeldByPins
    liveLock.unlock()
    leave(released)
    if isLast { Unmanaged.passUnretained(self).release() }
  }

  private var isHeldByPins: Bool { !isImmortal && !host.releasesAnchor }

  /// Takes the anchor to release it when nothing is live any more, unless on this scheduler's own carrier.
  ///
  /// There, a job's end may still attach a handler, which needs the queue; the drain releases it before it goes idle.
  /// Called under the lock.
  private func takeAnchorElsewhere() -> Anchor? {
    liveJobs == 0 && livePins == 0 && host.releasesAnchor && !isOwnTurn ? anchor.take() : nil
  }

  /// Releases the anchor outside the scheduler's own carrier, and wakes the drain.
  ///
  /// Without that no drain would cancel the host's timer, which holds the queue, which owns the scheduler. The queue's
  /// last reference may also be this scheduler's last, so it is retained until the wake-up is under way.
  private func leave(_ released: Anchor?) {
    guard let released else { return }
    withExtendedLifetime(released) { sendTimerWakeup() }
  }

  /// Returns whether nothing is live any more, and if so the anchor, to be released last.
  ///
  /// Called by the drain before it goes idle. Always false if the host keeps its anchor.
  func takeAnchorIfOver() -> (isOver: Bool, anchor: Anchor?) {
    guard host.releasesAnchor else { return (false, nil) }
    return liveLock.withLock { liveJobs == 0 && livePins == 0 ? (true, anchor.take()) : (false, nil) }
  }

  /// The anchor, which every live scheduler has.
  var currentAnchor: Anchor? { liveLock.withLock { anchor } }
  var hasLive: Bool { liveLock.withLock { liveJobs + livePins > 0 } }
}

/// Assigns identifiers in blocks, so that launches on several processors share no word.
enum JobIdentifiers {
  private static let next = Atomic<UInt64>(0)
  static func reserve() -> (next: UInt64, last: UInt64) {
    let first = next.wrappingAdd(1024, ordering: .relaxed).oldValue
    return (first, first + 1024)
  }
}
