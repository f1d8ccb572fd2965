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
///  3. While any job or handler of it is live, a scheduler holds its anchor (Liveness.swift).
@usableFromInline
final class Scheduler: @unchecked Sendable {
  // Sound because of the invariants above: each mutable property names its guard.

  let inbox = Inbox()
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>
  /// The driver's work beside ready jobs: handlers, jobs of Swift Concurrency (Scheduler+Swift.swift), and on a worker
  /// requests to take over from another one, or to inspect a job.
  ///
  /// Accessed by the drain, and by the jobs that run in it.
  @exclusivity(unchecked) var work = WorkQueue()
  /// The number of synchronous parts of isolated code below the top of the stack (Scheduler+Swift.swift); accessed as
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
  /// (Scheduler+Samples.swift).
  @exclusivity(unchecked) var wakeUps: UInt = 0
  @exclusivity(unchecked) var wokenAt: UInt64 = 0
  /// The number of jobs that keep the thread of this scheduler (Scheduler+Keep.swift).
  @exclusivity(unchecked) var keepers = 0
  /// The number of handlers that were bound on this scheduler's own carrier and have not run (HandlerPin.swift).
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
    // In a forked child no other thread counts.
    counters = host.refusesJobs ? SchedulerRegistry.ended : CounterWords()
    liveness = Liveness(anchor: anchor, releasesAnchor: host.releasesAnchor)
    isImmortal = anchor != nil
    worker = pool.map { _ in Unmanaged.passRetained(WorkerState(index)) }
    readyQueue = .allocate(capacity: 1)
    readyQueue.initialize(to: ReadyQueue(workerPool: pool.map(Unmanaged.passUnretained)))
    identity = SerialIdentity(self)
    if !host.refusesJobs { SchedulerRegistry.add(self) }
  }

  deinit {
    SchedulerRegistry.remove(self)
    if !host.refusesJobs { counters.free() }
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
    case .interrupt(let job):
      host.willHandleInterrupt()
      handleInterrupt(of: job)
    case .swiftJob: work.append(message)
    case .work(let item):
      if item == timerWakeup.item {
        timerWakeupArrived()
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
      // Nothing of this scheduler was live. So the messages are interrupts of finished jobs, which need no drain, and
      // jobs of Tasks that outlived the coroutine that started them. But another thread may have pinned the queue
      // since, and sent a job that must run there. A pin comes before its messages, so it is seen here.
      var late: [Inbox.Message] = []
      inbox.takeAll(as: nil) { late.append($0) }
      late.forEach(handle)
      if !hasLive {
        runSwiftJobsElsewhere()
        // Interrupts of jobs that have ended here, or left (StrayInterrupt.swift): these follow the job.
        while case .work(let item)? = work.popFirst() { item.run() }
      }
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
