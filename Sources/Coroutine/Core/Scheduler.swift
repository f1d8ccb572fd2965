internal import CCoroutine
import CDispatch
import Dispatch
import Synchronization

/// Runs the jobs of one DispatchQueue, one at a time.
///
/// Invariants
///  1. At most one drain of a scheduler is scheduled or runs, on any kind of queue: only the inbox's transition out of `idle`
///     starts one (Inbox.swift). A job is resumed by its scheduler's drain only, so what happens between two suspensions
///     is atomic with respect to everything else on a serial queue, and a concurrent queue is one serial lane.
///  2. `lane`, `work` and `fibers` are touched by the drain and by the jobs that run in it; by nobody else (thieves: under the
///     lane's lock).
///  3. While anything of it is live (a job, a handler) a scheduler holds its queue; then, and only then, `queue` is set.
///     The queue owns the scheduler through a queue-specific value; schedulers of the shared lanes live for ever.
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because of the invariants above: each mutable property names its guard.

  let inbox = Inbox()
  @usableFromInline let lane: UnsafeMutablePointer<Lane>
  /// Handlers that wait for the base; on a lane requests to run another lane's.
  ///
  /// Drain only.
  @exclusivity(unchecked) var work = WorkQueue()
  /// The handlers of a lane, which lives for ever; nil: this is the scheduler of a queue.
  let handlers: Unmanaged<HandlerQueue>?
  /// A lane's place in its group.
  let index: UInt8

  let label: String
  /// Names it to the locks that its jobs use (SpinLock.swift).
  let lockKey = LockKey.make()
  /// The raw queue; valid while `queue` is set, or for ever.
  private let rawQueue: OpaquePointer?
  let isImmortal: Bool

  // Guarded by `liveLock`.
  let liveLock = SpinLock()
  @exclusivity(unchecked) private var queue: DispatchQueue?
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
  @exclusivity(unchecked) var alarm: Alarm?
  @exclusivity(unchecked) var pace = Pace()
  @exclusivity(unchecked) var lingering = Linger()
  let tick = TimerTick()
  /// Handlers that were bound on this scheduler's own turn and have not run (Handlers.swift).
  @exclusivity(unchecked) var boundHandlers = 0
  /// Whether they hold a pin, all of them together.
  @exclusivity(unchecked) var handlersHoldPin = false
  /// How many of them were dropped off this scheduler's turn; any thread.
  let droppedHandlers = Atomic<Int>(0)
  /// A lane with work to give has woken this one.
  let wasJustOffered = Atomic<Bool>(false)
  /// What it remembers of its thefts, where it is a lane; the drain only.
  @exclusivity(unchecked) var theft = Theft()

  /// What replaces the clock and the choice of the next job; nil in production.
  let simulation: Simulation?
  /// Whether it fails what it gets, as a forked child must.
  let refuses: Bool

  /// The scheduler of a queue, or a lane of `group`.
  init(queue: DispatchQueue, group: LaneGroup?, immortal: Bool, index: Int = 0) {
    self.label = queue.label
    self.rawQueue = Scheduler.rawQueue(of: queue)
    self.isImmortal = immortal
    self.queue = immortal ? queue : nil
    self.simulation = nil
    self.refuses = false
    self.index = UInt8(index)
    handlers = group.map { _ in Unmanaged.passRetained(HandlerQueue()) }
    lane = .allocate(capacity: 1)
    lane.initialize(to: Lane(group: group.map(Unmanaged.passUnretained)))
    SchedulerRegistry.add(self)
    _ = FirstTimer.shared
  }

  /// A scheduler that is drained by hand.
  init(simulation: Simulation) {
    self.label = "simulation"
    self.rawQueue = nil
    self.isImmortal = false
    self.simulation = simulation
    self.refuses = false
    self.index = 0
    handlers = nil
    lane = .allocate(capacity: 1)
    lane.initialize(to: Lane(group: nil))
    SchedulerRegistry.add(self)
  }

  /// A scheduler that runs nothing and fails each job that it gets.
  init(refusingAs label: String) {
    self.label = label
    self.rawQueue = nil
    self.isImmortal = true
    self.simulation = nil
    self.refuses = true
    self.index = 0
    handlers = nil
    lane = .allocate(capacity: 1)
    lane.initialize(to: Lane(group: nil))
  }

  deinit {
    SchedulerRegistry.remove(self)
    // Whoever releases last has seen what the last drain did to the fibers, by the reference count. ThreadSanitizer does not
    // know about that; it knows the store by which that drain went idle.
    _ = inbox.head.load(ordering: .acquiring)
    lane.deinitialize(count: 1)
    lane.deallocate()
  }

  /// The clock: nanoseconds that never go back.
  var clock: UInt64 { simulation?.now ?? Clock.now }

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
  var isOwnTurn: Bool { Turn.current?.pointee.scheduler?.toOpaque() == Unmanaged.passUnretained(self).toOpaque() }

  func handle(_ message: Inbox.Message) {
    switch message {
    case .job(let job): lane.append(job)
    case .interrupt(let job): handleInterrupt(of: job)
    case .work(let item):
      let item = item.takeRetainedValue()
      if item === tick {
        _ = tick.isPending.exchange(false, ordering: .acquiringAndReleasing)
        if tick.isFromAlarm.exchange(false, ordering: .acquiringAndReleasing) { alarm?.wentOff() }
      } else {
        work.append(.work(Unmanaged.passRetained(item)))
      }
    case .handler:
      work.append(message)
    }
  }

  // MARK: Drains

  /// Puts a drain at the back of the queue.
  ///
  /// The caller has moved the inbox out of `idle`, or is the drain, which has this scheduler's key until the queue has the next.
  func submit(as key: LockKey = .current) {
    if let simulation {
      simulation.wakeUp()
      return
    }
    if refuses { return refuseAll() }
    while true {
      if let queue = isImmortal ? self.queue : liveLock.withLock(as: key, { self.queue }) {
        // `queue` is held for the call because the last live job may end on another thread meanwhile.
        withExtendedLifetime(queue) {
          let context = Unmanaged.passRetained(self).toOpaque()
          if let rawQueue {
            dispatch_async_f(rawQueue, context) { Scheduler.drain($0!) }
          } else {
            nonisolated(unsafe) let context = context  // Sound because the block is its only user.
            queue.async { Scheduler.drain(context) }
          }
        }
        return
      }
      // Nothing of this scheduler is live, so what was pushed are interrupts of jobs that have finished: no drain needed.
      var late: [Inbox.Message] = []
      inbox.takeAll(isShared: false) { late.append($0) }
      late.forEach(handle)
      guard lane.pointee.queue.isEmpty && work.isEmpty else { continue }
      prepareToIdle()
      if inbox.goIdle() { return }
    }
  }

  private static func drain(_ context: UnsafeMutableRawPointer) {
    Unmanaged<Scheduler>.fromOpaque(context).takeRetainedValue().drain()
  }

  /// Foundation's wrapper holds the C queue in its one stored property; nil where that is no longer so.
  private static func rawQueue(of queue: DispatchQueue) -> OpaquePointer? {
    Mirror(reflecting: queue).children.first { $0.label == "__wrapped" }?.value as? OpaquePointer
  }

  // MARK: Where we are

  /// Makes the queue recognisable from inside of its blocks, and from those of every queue that targets it.
  func markQueue(_ queue: DispatchQueue) {
    guard let rawQueue else { return }
    let me = Unmanaged.passUnretained(self).toOpaque()
    dispatch_queue_set_specific(rawQueue, me, me, nil)
  }

  /// Whether the calling thread is inside a block of this scheduler's queue, so that blocking it would block the jobs.
  var isCurrentQueue: Bool {
    guard rawQueue != nil else { return SchedulerRegistry.current === self }
    return dispatch_get_specific(Unmanaged.passUnretained(self).toOpaque()) != nil
  }

  // MARK: What is live

  /// Registers a job at its launch.
  ///
  /// Any thread.
  func register(_ job: JobRef, on queue: @autoclosure () -> DispatchQueue?) {
    let hold = liveLock.lock(as: .current)
    if !isImmortal, self.queue == nil { self.queue = queue() }
    liveJobs += 1
    if job.pointee.label.id == 0 { job.pointee.label.id = takeID() }
    job.pointee.home = Unmanaged.passUnretained(self)
    job.pointee.previousLive = nil
    job.pointee.nextLive = firstLive
    firstLive?.pointee.previousLive = job
    firstLive = job
    liveLock.unlock(hold)
  }

  /// Gives a job that is not live yet its number.
  func identify(_ job: JobRef) {
    liveLock.withLock(as: .current) { job.pointee.label.id = takeID() }
  }

  private func takeID() -> UInt64 {
    if nextID == lastID { (nextID, lastID) = JobIdentifiers.reserve() }
    nextID += 1
    return nextID
  }

  /// Takes a job out at its end.
  func unregister(_ job: JobRef) {
    let hold = liveLock.lock(as: .current)
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      firstLive = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    liveJobs -= 1
    let released = takeQueueElsewhere()
    liveLock.unlock(hold)
    leave(released)
  }

  /// Keeps the queue alive for something that is no job.
  func pin(_ queue: @autoclosure () -> DispatchQueue?) {
    liveLock.withLock(as: .current) {
      if !isImmortal, self.queue == nil { self.queue = queue() }
      livePins += 1
    }
  }

  func unpin() {
    let hold = liveLock.lock(as: .current)
    livePins -= 1
    let released = takeQueueElsewhere()
    liveLock.unlock(hold)
    leave(released)
  }

  /// Gives up the queue when the last that was live has gone, unless this is the scheduler's own turn.
  ///
  /// There, what a job's end calls may still attach a handler, which needs the queue: the drain gives it up before it goes
  /// idle. Under the lock.
  private func takeQueueElsewhere() -> DispatchQueue? {
    liveJobs == 0 && livePins == 0 && !isImmortal && !isOwnTurn ? queue.take() : nil
  }

  /// Off the scheduler's turn no drain would drop the alarm, which holds the queue, which owns the scheduler: so a tick
  /// is sent.
  ///
  /// The queue's last reference may be this scheduler's too: it is held until the tick is under way.
  private func leave(_ released: DispatchQueue?) {
    guard let released else { return }
    withExtendedLifetime(released) { sendTick() }
  }

  /// The drain, about to go idle: whether nothing is live any more, and if so the queue, to be released last.
  ///
  /// Never of an immortal scheduler, nor of a simulation, which has no queue.
  func takeQueueIfOver() -> (isOver: Bool, queue: DispatchQueue?) {
    liveLock.withLock(as: .current) {
      guard liveJobs == 0, livePins == 0, !isImmortal, simulation == nil else { return (false, nil) }
      return (true, queue.take())
    }
  }

  /// The queue, for those that must call Dispatch with it.
  ///
  /// A live scheduler has one.
  var currentQueue: DispatchQueue? { liveLock.withLock(as: .current) { queue } }
  var hasLive: Bool { liveLock.withLock(as: .current) { liveJobs + livePins > 0 } }
}

/// Hands out identifiers in blocks, so that launching shares no word among processors.
enum JobIdentifiers {
  private static let next = Atomic<UInt64>(0)
  static func reserve() -> (next: UInt64, last: UInt64) {
    let first = next.wrappingAdd(1024, ordering: .relaxed).oldValue
    return (first, first + 1024)
  }
}
