internal import CCoroutine
import Synchronization

/// Runs the jobs of one host, one at a time.
///
/// Invariants
///  1. At most one drain of a scheduler is scheduled or runs, on any kind of queue: only the inbox's transition out of `idle`
///     starts one (Inbox.swift). A job is resumed by its scheduler's drain only, so what happens between two suspensions
///     is atomic with respect to everything else on a serial queue, and a concurrent queue is one serial worker.
///  2. `readyQueue`, `work` and `stackCache` are touched by the drain and by the jobs that run in it; by nobody else (thieves: under the
///     worker's lock).
///  3. While anything of it is live (a job, a handler) a scheduler holds its anchor (Host.swift); where the host releases its
///     anchor, `anchor` is set then and only then.
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because of the invariants above: each mutable property names its guard.

  let inbox = Inbox()
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>
  /// Handlers that wait for the base; on a worker requests to run another worker's.
  ///
  /// Drain only.
  @exclusivity(unchecked) var work = WorkQueue()
  /// The handlers of a worker, which lives for ever; nil: this is the scheduler of a queue.
  let handlers: Unmanaged<HandlerQueue>?
  /// A worker's place in its group.
  let index: UInt8

  let host: Host
  let isImmortal: Bool

  // Guarded by `liveLock`.
  let liveLock = SpinLock()
  @exclusivity(unchecked) private var anchor: Anchor?
  @exclusivity(unchecked) var firstLive: JobRef?
  @exclusivity(unchecked) private(set) var liveJobs = 0
  @exclusivity(unchecked) private var livePins = 0
  @exclusivity(unchecked) private var nextID: UInt64 = 0
  @exclusivity(unchecked) private var lastID: UInt64 = 0

  // Guarded by `timerLock`.
  let timerLock = SpinLock()
  @exclusivity(unchecked) var wheel = TimerWheel()
  /// The wheel's next event, readable without the lock; `max`: nothing.
  let nextTimer = Atomic<UInt64>(.max)

  /// When the drain last read the clock: an upper bound for how long the running job has run, which dumps ask for.
  ///
  /// Written by the drain, which has just read the clock; read by anyone.
  let lastLook = Atomic<UInt64>(0)

  // The drain only.
  @exclusivity(unchecked) var timeSlice = TimeSlice()
  @exclusivity(unchecked) var idleSpin = IdleSpin()
  let timerWakeup = TimerWakeup()
  /// Handlers that were bound on this scheduler's own turn and have not run (HandlerPin.swift).
  @exclusivity(unchecked) var boundHandlers = 0
  /// Whether they hold a pin, all of them together.
  @exclusivity(unchecked) var handlersHoldPin = false
  /// How many of them were dropped off this scheduler's turn; any thread.
  let droppedHandlers = Atomic<Int>(0)
  /// A worker with work to give has woken this one.
  let wasJustOffered = Atomic<Bool>(false)
  /// What it remembers of its thefts, where it is a worker; the drain only.
  @exclusivity(unchecked) var stealBackoff = StealBackoff()

  /// `anchor`: set for a scheduler that lives as long as the process, or as its host. A scheduler that releases its anchor gets
  /// it with the first job or handler.
  init(host: Host, anchor: Anchor?, pool: WorkerPool?, index: Int = 0) {
    self.host = host
    self.anchor = anchor
    self.index = UInt8(index)
    isImmortal = anchor != nil
    handlers = pool.map { _ in Unmanaged.passRetained(HandlerQueue()) }
    readyQueue = .allocate(capacity: 1)
    readyQueue.initialize(to: ReadyQueue(workerPool: pool.map(Unmanaged.passUnretained)))
    if !host.refusesJobs { SchedulerRegistry.add(self) }
  }

  deinit {
    SchedulerRegistry.remove(self)
    // Whoever releases last has seen what the last drain did to the fibers, by the reference count. ThreadSanitizer does not
    // know about that; it knows the store by which that drain went idle.
    _ = inbox.head.load(ordering: .acquiring)
    readyQueue.deinitialize(count: 1)
    readyQueue.deallocate()
  }

  /// The clock: nanoseconds that never go back.
  var clock: UInt64 { host.now }
  var label: String { host.label }

  // MARK: Messages

  /// Sends a message from anywhere, and starts a drain where none is under way.
  func push(_ message: Inbox.Message) {
    if inbox.push(message) { submit() }
  }

  /// As push, but handled at once on this scheduler's own turn.
  func send(_ message: Inbox.Message) {
    if isOwnTurn { handle(message) } else { push(message) }
  }

  /// Whether the calling code runs in this scheduler's drain.
  var isOwnTurn: Bool { Carrier.current?.pointee.scheduler?.toOpaque() == Unmanaged.passUnretained(self).toOpaque() }

  func handle(_ message: Inbox.Message) {
    switch message {
    case .job(let job): readyQueue.append(job)
    case .interrupt(let job): handleInterrupt(of: job)
    case .work(let item):
      if item == timerWakeup.item {
        timerWakeupArrived()
      } else {
        work.append(message)
      }
    }
  }

  // MARK: Drains

  /// Puts a drain at the back of the queue.
  ///
  /// The caller has moved the inbox out of `idle`, or is the drain.
  func submit() {
    while true {
      if host.submit(self, isImmortal ? anchor : liveLock.withLock({ anchor })) { return }
      // Nothing of this scheduler is live, so what was pushed are interrupts of jobs that have finished: no drain needed.
      var late: [Inbox.Message] = []
      inbox.takeAll(isShared: false) { late.append($0) }
      late.forEach(handle)
      guard readyQueue.pointee.queue.isEmpty && work.isEmpty else { continue }
      prepareToIdle()
      if inbox.goIdle() { return }
    }
  }

  // MARK: Where we are

  /// Whether blocking the calling thread would block the jobs.
  var isCurrent: Bool { host.isCurrent(self) }

  // MARK: What is live

  /// Registers a job at its launch.
  ///
  /// Any thread.
  func register(_ job: JobRef, holding anchor: @autoclosure () -> Anchor?) {
    liveLock.lock()
    if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
    liveJobs += 1
    if job.pointee.label.id == 0 { job.pointee.label.id = takeID() }
    job.pointee.home = Unmanaged.passUnretained(self)
    job.pointee.previousLive = nil
    job.pointee.nextLive = firstLive
    firstLive?.pointee.previousLive = job
    firstLive = job
    liveLock.unlock()
  }

  /// Gives a job that is not live yet its number.
  func identify(_ job: JobRef) {
    liveLock.withLock { job.pointee.label.id = takeID() }
  }

  private func takeID() -> UInt64 {
    if nextID == lastID { (nextID, lastID) = JobIdentifiers.reserve() }
    nextID += 1
    return nextID
  }

  /// Takes a job out at its end.
  func unregister(_ job: JobRef) {
    liveLock.lock()
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      firstLive = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    liveJobs -= 1
    let released = takeAnchorElsewhere()
    liveLock.unlock()
    leave(released)
  }

  /// Keeps the queue alive for something that is no job.
  func pin(_ anchor: @autoclosure () -> Anchor?) {
    liveLock.withLock {
      if host.releasesAnchor, self.anchor == nil { self.anchor = anchor() }
      livePins += 1
    }
  }

  func unpin() {
    liveLock.lock()
    livePins -= 1
    let released = takeAnchorElsewhere()
    liveLock.unlock()
    leave(released)
  }

  /// Gives up the queue when the last that was live has gone, unless this is the scheduler's own turn.
  ///
  /// There, what a job's end calls may still attach a handler, which needs the queue: the drain gives it up before it goes
  /// idle. Under the lock.
  private func takeAnchorElsewhere() -> Anchor? {
    liveJobs == 0 && livePins == 0 && host.releasesAnchor && !isOwnTurn ? anchor.take() : nil
  }

  /// Off the scheduler's turn no drain would drop the alarm, which holds the queue, which owns the scheduler: so a tick
  /// is sent.
  ///
  /// The queue's last reference may be this scheduler's too: it is held until the tick is under way.
  private func leave(_ released: Anchor?) {
    guard let released else { return }
    withExtendedLifetime(released) { sendTimerWakeup() }
  }

  /// The drain, about to go idle: whether nothing is live any more, and if so the queue, to be released last.
  ///
  /// Never where the host keeps its anchor.
  func takeAnchorIfOver() -> (isOver: Bool, anchor: Anchor?) {
    liveLock.withLock {
      guard liveJobs == 0, livePins == 0, host.releasesAnchor else { return (false, nil) }
      return (true, anchor.take())
    }
  }

  /// A live scheduler has one.
  var currentAnchor: Anchor? { liveLock.withLock { anchor } }
  var hasLive: Bool { liveLock.withLock { liveJobs + livePins > 0 } }
}

/// Hands out identifiers in blocks, so that launching shares no word among processors.
enum JobIdentifiers {
  private static let next = Atomic<UInt64>(0)
  static func reserve() -> (next: UInt64, last: UInt64) {
    let first = next.wrappingAdd(1024, ordering: .relaxed).oldValue
    return (first, first + 1024)
  }
}
