internal import CCoroutine
import Synchronization

// The shared scheduler: one worker per processor that the process may use, each a thread with a scheduler of its own
// (WorkerHost.swift). A job is on one worker at a time; between two suspensions it may be on another.
//
// Distribution of work
//   * launches from outside are distributed round-robin, to workers without work first,
//   * a worker with more than one ready job wakes an idle worker, which steals half of them,
//   * a worker holds jobs that a batch of events has woken for about a time slice (Scheduler.swift),
//   * a waker takes the woken job to its own worker (Carrier.sendRemotely),
//   * a worker whose steals do not pay backs off from stealing for a while (WorkerHost.swift),
//   * if one job keeps a worker busy for long, the watchdog has another one take over what is left there
//     (TakeOver.swift), and it ends back-offs (Watchdog.swift).
//
//            nothing to do              an offer, or a message of its own
//   BUSY ----------------------> IDLE ------------------------------------> BUSY
//    |                                            a message of its own
//    +----- the same, and its ----> BACKING OFF --------------------------> BUSY
//           steals have not paid       | the watchdog: BUSY, tries again
//
// While a worker is IDLE, no other worker has two ready jobs, unless it holds a batch. A worker sets its idle bit and
// inspects the others' queues after that; a pushing thread appends and reads the idle bits after that; both use the
// victim's lock, whose order decides which side sees the other. (A single ready job wakes no other worker. Its own
// worker takes it when the running job parks; if that does not park, the watchdog acts.)
//
// While a worker is BACKING OFF, the watchdog runs: a worker sets its back-off bit and reads `watching` after that; the
// watchdog stops watching and reads the bits after that. The thread that clears a bit (an offer, the watchdog or the
// worker's own drain) then moves the inbox out of `idle`. A worker whose bit is cleared before its inbox is idle sees
// that afterwards (`wasOffered`). The inbox lets exactly one of them start a drain.
//
// Stealing is safe because a job enters a ready queue only after its stack is switched out, and a job in a ready queue
// has no wait that another thread could end. The stealing worker sets the job's scheduler under the victim's lock.

@usableFromInline
final class WorkerPool: @unchecked Sendable {
  // Sound because `workers` is set once, before the pool is published, and everything else is atomic.
  static let shared = WorkerPool(count: Processors.chosen, label: "coroutine.shared")

  /// The pool of the worker in whose drain the caller runs; nil outside such a drain.
  static var ofCaller: WorkerPool? {
    Carrier.current?.pointee.readyQueue?.pointee.workerPool?.takeUnretainedValue()
  }

  @exclusivity(unchecked) private(set) var workers: [Scheduler] = []
  let idle = Atomic<UInt64>(0)
  /// The workers that back off from stealing: they have no drain, and get no offers.
  let backingOff = Atomic<UInt64>(0)
  /// The workers whose threads could not be started: they have no drain, and get no offers (WorkerHost.swift).
  let withoutThread = Atomic<UInt64>(0)
  /// The number of times that a worker has backed off.
  let backoffs = Atomic<Int>(0)
  private let nextIndex = Atomic<Int>(0)
  let watching = Atomic<Bool>(false)
  /// Whether the watchdog fires seldom, because all workers are busy.
  let isSlow = Atomic<Bool>(false)
  /// Whether a spare worker may be busy, which is watched although all workers may be idle.
  let isSpareBusy = Atomic<Bool>(false)
  let watchdog = WatchdogThread()
  let label: String
  /// How long the thread of a spare worker sleeps without work before it ends, in ns.
  let spareRest: UInt64
  /// Where the kernel says what a thread of the process does; another directory in tests.
  let tasks: String
  // Used by the watchdog's thread only.
  @exclusivity(unchecked) var spares: [Scheduler] = []
  @exclusivity(unchecked) var watched: [WatchedWorker] = []
  @exclusivity(unchecked) var lastBackoffs = 0
  /// Whether all spare workers were taken when one was needed last.
  @exclusivity(unchecked) var lacksSpares = false
  /// Whether a worker has been kept for half of the time after which it has stalled.
  @exclusivity(unchecked) var isNearStall = false
  /// Whether work waits on a worker that has not read its clock since the look before.
  @exclusivity(unchecked) var isAnyLate = false
  @exclusivity(unchecked) var lastClockReads: UInt64 = 0
  /// When workers without a thread get the next offer.
  @exclusivity(unchecked) var nextRetry: UInt64 = 0

  init(count: Int, label: String, spareRest: UInt64 = 10_000_000_000, tasks: String = "/proc/self/task") {
    let count = min(64, max(1, count))
    self.label = label
    self.spareRest = spareRest
    self.tasks = tasks
    workers = (0..<count).map { WorkerHost.makeScheduler("\(label).\($0)", self, $0) }
    watched = Array(repeating: WatchedWorker(), count: count)
    // Every worker starts without a drain, so it is idle.
    idle.store(count == 64 ? .max : (1 << UInt64(count)) - 1, ordering: .releasing)
  }

  /// Returns the worker for the next launch from outside: one without work, else the next one round-robin of those that
  /// have threads.
  func nextWorker() -> Scheduler {
    let index = (nextIndex.wrappingAdd(1, ordering: .relaxed).oldValue & .max) % workers.count
    let withoutThread = withoutThread.load(ordering: .relaxed)
    if withoutThread != 0 { return nextWorker(index, except: withoutThread) }
    let mask = withoutDrain(false)
    return mask == 0 || mask & (1 << UInt64(index)) != 0 ? workers[index] : workers[mask.trailingZeroBitCount]
  }

  @inline(never)
  private func nextWorker(_ index: Int, except withoutThread: UInt64) -> Scheduler {
    // Where a thread could not start, neither could the watchdog's perhaps, which tries again.
    for worker in workers { worker.submitWhatIsLeft() }
    let mask = withoutDrain(false) & ~withoutThread
    if mask != 0 { return workers[mask.trailingZeroBitCount] }
    for step in workers.indices {
      let other = (index + step) % workers.count
      if withoutThread & (1 << UInt64(other)) == 0 { return workers[other] }
    }
    return workers[index]
  }

  /// Wakes an idle worker; called by a worker that has more ready jobs than it can run at once.
  @inlinable @inline(__always)
  func offerWork() {
    if hasIdle { wakeOne() }
  }

  @usableFromInline var hasIdle: Bool { idle.load(ordering: .relaxed) != 0 }

  @usableFromInline @inline(never)
  func wakeOne() {
    var mask = idle.load(ordering: .acquiring)
    while mask != 0 {
      let index = mask.trailingZeroBitCount
      let (won, seen) = idle.compareExchange(
        expected: mask,
        desired: mask & ~(1 << UInt64(index)),
        ordering: .sequentiallyConsistent
      )
      if won {
        workers[index].asWorker { $0.wasJustOffered.store(true, ordering: .sequentiallyConsistent) }
        if workers[index].inbox.wakeUp() { return workers[index].submit() }
        // It has got work since it went idle, perhaps what is offered. It may keep it, so another one is woken.
        mask = idle.load(ordering: .acquiring)
        continue
      }
      mask = seen
    }
  }

  /// Tries to steal work for a worker that has nothing to do.
  ///
  /// Returns true if it has got work, or should check again.
  func steal(for thief: Scheduler) -> Bool {
    let index = thief.workerIndex
    // A spare worker only runs the jobs that it was given.
    guard index < workers.count else { return false }
    // After an offer one job is enough: meanwhile the offering worker may have parked and taken the other one.
    let isOffered = thief.asWorker { $0.wasJustOffered.exchange(false, ordering: .sequentiallyConsistent) }
    guard thief.asWorker({ $0.stealBackoff.pays(at: .now) }) else {
      backOff(index)
      return false
    }
    if takeHalf(for: thief, index, atLeast: isOffered ? 1 : 2) { return true }
    _ = idle.bitwiseOr(1 << UInt64(index), ordering: .sequentiallyConsistent)
    // Tries once more, because only now can pushing threads see the bit.
    if takeHalf(for: thief, index, atLeast: 2) { return true }
    startWatching()
    return false
  }

  private func notIdle(_ index: Int) {
    _ = idle.bitwiseAnd(~(1 << UInt64(index)), ordering: .sequentiallyConsistent)
  }

  private func takeHalf(for thief: Scheduler, _ index: Int, atLeast minimum: Int) -> Bool {
    for step in 1..<max(2, workers.count) {
      let victim = workers[(index + step) % workers.count]
      guard victim !== thief else { continue }
      var (stolen, swiftJobs) = victim.giveHalf(to: thief, atLeast: minimum)
      guard stolen.count + swiftJobs.count > 0 else { continue }
      // Where many Tasks wait, more are made than their worker runs: help pays, whatever each of them takes.
      let isCrowded = victim.swiftJobsWaiting >= SwiftJobs.crowd
      thief.asWorker { $0.stealBackoff.took(isCrowded ? 0 : stolen.count + swiftJobs.count, at: .now) }
      // Before it offers them, perhaps to itself.
      notIdle(index)
      thief.keep(&stolen, &swiftJobs)
      return true
    }
    return false
  }

  /// Whether an offer, or the end of its back-off, has cleared this worker's bit, which was set when it found no work;
  /// or whether a Swift job waits for it.
  ///
  /// Called by a worker that has just gone idle.
  func wasOffered(_ scheduler: Scheduler) -> Bool {
    let index = scheduler.workerIndex
    let isOffered = index < workers.count && withoutDrain() & (1 << UInt64(index)) == 0
    return isOffered || scheduler.asWorker { $0.swiftJobs.isWaitingAtLast }
  }

  /// Marks a worker as busy that was woken by a message and not by an offer.
  func markBusy(_ scheduler: Scheduler) {
    let index = scheduler.workerIndex
    if index >= workers.count {
      // A spare worker, perhaps the only one that is busy.
      _ = isSpareBusy.exchange(true, ordering: .acquiringAndReleasing)
      return startWatching()
    }
    guard withoutDrain(false) != 0 else {
      // The threads that woke the workers may have cleared all bits, before any worker has started the watchdog.
      if !watching.load(ordering: .sequentiallyConsistent) { startWatching() }
      return
    }
    notIdle(index)
    _ = endBackoff(index)
    // This worker may run one job for long while other workers sleep.
    startWatching()
  }

  // MARK: Back-off

  /// The workers that have no drain, or are about to have none.
  func withoutDrain(_ isOrdered: Bool = true) -> UInt64 {
    let withoutThread = withoutThread.load(ordering: .relaxed)
    return withoutThread
      | (isOrdered
        ? idle.load(ordering: .sequentiallyConsistent) | backingOff.load(ordering: .sequentiallyConsistent)
        : idle.load(ordering: .relaxed) | backingOff.load(ordering: .relaxed))
  }

  private func backOff(_ index: Int) {
    backoffs.wrappingAdd(1, ordering: .relaxed)
    _ = backingOff.bitwiseOr(1 << UInt64(index), ordering: .sequentiallyConsistent)
    startWatching()
  }

  var isAnyBackingOff: Bool { backingOff.load(ordering: .sequentiallyConsistent) != 0 }

  /// Ends a worker's back-off; returns whether it was backing off, so that of several threads only one ends it.
  private func endBackoff(_ index: Int) -> Bool {
    let bit: UInt64 = 1 << UInt64(index)
    return backingOff.bitwiseAnd(~bit, ordering: .sequentiallyConsistent).oldValue & bit != 0
  }

  /// Ends the back-off of all workers, or of one as a probe, so that they look for work again.
  func endBackoffs(ofAll: Bool) {
    var mask = backingOff.load(ordering: .sequentiallyConsistent)
    while mask != 0 {
      let index = mask.trailingZeroBitCount
      mask &= mask - 1
      guard endBackoff(index) else { continue }
      // A worker that has not gone idle yet sees that its bit is cleared (wasOffered).
      if workers[index].inbox.wakeUp() { workers[index].submit() }
      if !ofAll { return }
    }
  }
}

extension Scheduler {
  /// Takes up to half of this worker's ready jobs out of its queue, if there are `minimum`, for the queue of `thief`;
  /// and of its Swift jobs the same.
  ///
  /// Called by the thief's drain.
  func giveHalf(to thief: Scheduler, atLeast minimum: Int) -> (jobs: JobQueue, swiftJobs: WorkQueue) {
    var (stolen, swiftJobs) = (JobQueue(), WorkQueue())
    readyQueue.pointee.lock.lock()
    defer { readyQueue.pointee.lock.unlock() }
    readyQueue.takeHalf(atLeast: minimum, into: &stolen)
    asWorker { $0.swiftJobs.takeHalf(atLeast: minimum, into: &swiftJobs) }
    var job = stolen.first
    while let current = job {
      current.pointee.scheduler.store(.passUnretained(thief), ordering: .releasing)
      job = current.pointee.next
    }
    thief.noteSteal(of: stolen.count)
    return (stolen, swiftJobs)
  }

  /// Adds what was stolen from another worker, and offers it if it is more than one; called by the drain.
  func keep(_ stolen: inout JobQueue, _ swiftJobs: inout WorkQueue) {
    if !stolen.isEmpty { readyQueue.keep(&stolen) }
    guard !swiftJobs.isEmpty else { return }
    readyQueue.pointee.lock.lock()
    let count = asWorker { $0.swiftJobs.keep(&swiftJobs) }
    readyQueue.pointee.lock.unlock()
    if count > 1 { readyQueue.pointee.workerPool?._withUnsafeGuaranteedRef { $0.offerWork() } }
  }
}

// MARK: - The state of one worker

/// The part of a scheduler that only a worker of the pool has.
///
///     field           access
///     index           constant
///     handlers        any thread; it has a lock
///     taking          the drain and rescuers, to take from the inbox (Inbox.swift)
///     isRescued       set by the watchdog; cleared by the rescuer (TakeOver.swift)
///     poller          set once (WorkerHost.swift); read by any thread
///     isLeft          the thread that submits the drain, and one that submits it once more
///     wasJustOffered  set by a worker that has work to give; cleared by this one
///     swiftJobs       its lists under the lock of the ready queue (ReadyQueue.swift)
///     swiftJobChanges written by the drain; read by the watchdog and by dumps
///     stealBackoff    the drain only
///
/// A worker lives as long as the process, and so does this object. Its scheduler has an unmanaged reference, so that no
/// use counts references.
final class WorkerState: @unchecked Sendable {
  // Sound because of the table above.

  /// The number of the worker in its pool; that of a spare worker is not below the number of workers.
  let index: UInt8
  let handlers = HandlerQueue()
  /// Held by a thread that takes from the worker's inbox.
  let taking = ThreadLock()
  /// Whether a worker was asked to take over from this one, and has not begun.
  let isRescued = Atomic<Bool>(false)
  /// The poller, as an unmanaged reference; 0 before the first wait for a descriptor, and on a spare worker.
  let poller = Atomic<UInt>(0)
  /// Whether something is left in the inbox of a worker whose thread could not be started (WorkerHost.swift).
  let isLeft = Atomic<Bool>(false)
  /// Whether a worker with work to give has woken this one.
  let wasJustOffered = Atomic<Bool>(false)
  /// The Swift jobs that wait for this worker.
  let swiftJobs = SwiftJobs()
  /// How often one of the pool's Swift jobs has begun or ended here: odd while one runs.
  ///
  /// For the report of a stall.
  let swiftJobChanges = Atomic<UInt64>(0)
  /// The number of the Task whose job has begun here last; 0 if it is no Task's (SwiftJobHeader).
  let swiftTask = Atomic<UInt32>(0)
  /// The record of this worker's steals.
  @exclusivity(unchecked) var stealBackoff = StealBackoff()

  init(_ index: Int) { self.index = UInt8(index) }

  /// Notes that a Swift job of this Task begins.
  func beginSwiftJob(of task: UInt32) {
    swiftTask.store(task, ordering: .relaxed)
    changeSwiftJob()
    Events.note(.taskRun, nil, UInt64(task))
  }

  /// Notes that it has come back.
  func endSwiftJob(of task: UInt32) {
    changeSwiftJob()
    Events.note(.taskLeave, nil, UInt64(task))
  }

  private func changeSwiftJob() {
    swiftJobChanges.store(swiftJobChanges.load(ordering: .relaxed) &+ 1, ordering: .relaxed)
  }
}

extension Scheduler {
  /// Calls `body` with the state of a worker; on workers only.
  @inline(__always)
  func asWorker<Output>(_ body: (WorkerState) -> Output) -> Output {
    worker.unsafelyUnwrapped._withUnsafeGuaranteedRef(body)
  }

  /// The number of a worker in its pool; of workers only.
  var workerIndex: Int { asWorker { Int($0.index) } }
}

// MARK: - Jobs of Swift Concurrency

// The worker pool as an executor of Swift Concurrency: of Tasks that prefer it, and of all Tasks that have no executor
// of their own, once `CoroutineRuntime.runTasksOnWorkers` has installed it (Tasks/DefaultExecutor.swift).
//
// A job waits for one worker (SwiftJobs in ReadyQueue.swift): for the one on which code has enqueued it, or else for
// that to which a launch from outside would go. The driver runs one of them in each of its rounds, and goes on with
// further ones while no coroutine is ready.
//
// No lost wake-up. A job that is enqueued on its own worker is seen by that worker's drain, which runs. Otherwise the
// thread adds the job, which stores the number of jobs, and then moves the inbox out of `idle`. The worker ends its
// drain (Inbox.goIdle), and then reads the number. The four accesses are sequentially consistent, so at least one side
// sees the other: the thread starts a drain, or the worker does not go to sleep. A worker that steals has them in its
// hands for a moment; its own drain runs, and puts them into its lists before it looks for more.
//
// If more than one job is ready, an idle worker is offered work, as for coroutines. A single one waits for its worker,
// and if that computes for long, for a take-over. So does a coroutine behind a single Swift job: to ask for Swift jobs
// would be a load for each coroutine that becomes ready.

/// The worker pool as a task executor: its jobs run in parallel, so it is no serial executor.
///
/// Enqueueing a job never suspends and allocates nothing; any thread. The code of a job is outside any coroutine.
public final class WorkerPoolExecutor: TaskExecutor {
  /// The executor of the pool that runs coroutines without a queue.
  public static let shared = WorkerPoolExecutor()

  private init() {}

  /// Enqueues a job of Swift Concurrency on the worker pool.
  public func enqueue(_ job: consuming ExecutorJob) {
    WorkerPool.shared.enqueue(UnownedJob(job), SwiftJobHeader.ofPoolExecutor)
  }
}

extension WorkerPool: TaskExecutor {
  @usableFromInline
  func enqueue(_ job: consuming ExecutorJob) { enqueue(UnownedJob(job), SwiftJobHeader.ofPool) }

  /// Enqueues a job; `executor` says on behalf of what it runs, `isDue` that it is a sleep which is over.
  ///
  /// Any thread.
  func enqueue(_ job: UnownedJob, _ executor: UInt, isDue: Bool = false) {
    let job = SwiftJobRef(job)
    job.pointee.executor = executor | UInt(SwiftJobs.level(of: job)) << 2
    // Before another thread may run it, and free it.
    Events.note(.taskReady, nil, UInt64(job.pointee.task))
    if let own = workerOfCaller(where: { isRegular($0) || !hasFree }) {
      let position: SwiftJobs.Position = isDue ? .due : job.pointee.isYield ? .back : .next
      if own._withUnsafeGuaranteedRef({ $0.addSwiftJob(job, position) }) > 1 { offerWork() }
    } else {
      // No thread of a forked child is a worker's.
      ForkedChild.useThreads()
      let worker = nextWorker()
      let count = worker.addSwiftJob(job, isDue ? .due : .back)
      if worker.inbox.wakeUp() { return worker.submit() }
      if count > 1 { offerWork() }
      if withoutThread.load(ordering: .relaxed) != 0 { worker.submitWhatIsLeft() }
    }
  }

  /// Whether a worker has nothing to do.
  var hasFree: Bool { withoutDrain(false) & ~withoutThread.load(ordering: .relaxed) != 0 }

  /// The worker in whose drain the caller runs, if it is of this pool and the condition holds.
  ///
  /// A spare worker keeps what its Tasks make only while the others are busy: no worker steals from it, and it would be
  /// kept from its end.
  @inline(__always)
  func workerOfCaller(where condition: (Scheduler) -> Bool) -> Unmanaged<Scheduler>? {
    guard let carrier = Carrier.current, let own = carrier.pointee.scheduler,
      carrier.pointee.readyQueue?.pointee.workerPool?.toOpaque() == Unmanaged.passUnretained(self).toOpaque(),
      own._withUnsafeGuaranteedRef(condition)
    else { return nil }
    return own
  }

  /// Whether a worker is none of the spare ones.
  @inline(__always)
  func isRegular(_ worker: Scheduler) -> Bool { worker.workerIndex < workers.count }

  /// Runs Swift jobs of a worker: one, and further ones while no coroutine is ready there; returns their number.
  ///
  /// Called by the worker's drain. The jobs run on the driver's stack.
  func runSwiftJobs(of worker: Scheduler, atMost most: Int) -> Int {
    var count = 0
    while let job = worker.takeSwiftJob(beforeCoroutines: count == 0) {
      count += 1
      // Read before the job runs, which may destroy it.
      let task = job.pointee.task
      worker.asWorker { $0.beginSwiftJob(of: task) }
      run(job)
      ForkedChild.mayGoOn()
      worker.asWorker { $0.endSwiftJob(of: task) }
      if count >= most || worker.inbox.hasMessages { break }
    }
    return count
  }

  private func run(_ job: SwiftJobRef) {
    switch job.pointee.executor & 3 {
    case SwiftJobHeader.ofPool: UnownedJob(job).runSynchronously(on: asUnownedTaskExecutor())
    case SwiftJobHeader.ofPoolExecutor:
      UnownedJob(job).runSynchronously(on: WorkerPoolExecutor.shared.asUnownedTaskExecutor())
    default: UnownedJob(job).runWithoutExecutor()
    }
  }
}

extension Scheduler {
  /// Adds a Swift job to this worker, and returns the number of jobs that are ready, coroutines too; any thread.
  fileprivate func addSwiftJob(_ job: SwiftJobRef, _ position: SwiftJobs.Position) -> Int {
    readyQueue.pointee.lock.lock()
    defer { readyQueue.pointee.lock.unlock() }
    let coroutines = readyQueue.pointee.queue.count &+ readyQueue.pointee.launched.count
    return coroutines &+ asWorker { $0.swiftJobs.add(job, position) }
  }

  /// Takes the next Swift job; nil if there is none, or if a coroutine is ready and this is not `beforeCoroutines`.
  fileprivate func takeSwiftJob(beforeCoroutines: Bool) -> SwiftJobRef? {
    guard hasSwiftJobs else { return nil }
    readyQueue.pointee.lock.lock()
    defer { readyQueue.pointee.lock.unlock() }
    if !beforeCoroutines, !readyQueue.pointee.queue.isEmpty || !readyQueue.pointee.launched.isEmpty { return nil }
    return asWorker { $0.swiftJobs.popFirst() }
  }

  /// The number of Swift jobs that wait for this worker; 0 if this is none.
  var swiftJobsWaiting: Int { worker?._withUnsafeGuaranteedRef { $0.swiftJobs.countForOthers } ?? 0 }

  /// The numbers of the Tasks whose jobs wait for this worker, the first few; none if this is no worker.
  var swiftTasksWaiting: (numbers: InlineArray<16, UInt32>, count: Int) {
    guard worker != nil else { return (InlineArray(repeating: 0), 0) }
    readyQueue.pointee.lock.lock()
    defer { readyQueue.pointee.lock.unlock() }
    return asWorker { $0.swiftJobs.tasks() }
  }

  /// Whether a Swift job waits for this worker; on workers only.
  var hasSwiftJobs: Bool { asWorker { $0.swiftJobs.isWaiting } }
}

extension Scheduler {
  /// Whether the drain runs a Swift job of the pool.
  var runsSwiftJob: Bool { swiftJobChanges & 1 != 0 }

  /// The number of the Task whose job the drain runs: 0 if it is no Task's, nil if it runs none.
  var runningSwiftTask: UInt32? {
    guard runsSwiftJob else { return nil }
    return worker?._withUnsafeGuaranteedRef { $0.swiftTask.load(ordering: .relaxed) }
  }

  /// How often a Swift job of the pool has begun or ended here; 0 if this is no worker.
  var swiftJobChanges: UInt64 {
    worker?._withUnsafeGuaranteedRef { $0.swiftJobChanges.load(ordering: .relaxed) } ?? 0
  }
}

// MARK: - The end of a drain

// The last step of a drain. It is here, because the interleaving tests compile this file of a scheduler.

extension Scheduler {
  /// Ends the drain unless there is something to do by now; returns whether it has ended.
  ///
  /// Called by the drain, which has found nothing to do.
  func endDrain() -> Bool {
    let pool = readyQueue.pointee.workerPool
    if inbox.goIdle() {
      // An offer that came before the inbox was idle has taken the worker's idle bit, and could not start a drain.
      guard let pool, pool._withUnsafeGuaranteedRef({ $0.wasOffered(self) }), inbox.wakeUp() else { return true }
    }
    pool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    return false
  }
}
