public import CCoroutine
public import Synchronization

// A turn: a thread lets coroutines run. A drain of a scheduler is one, an immediate start another. The thread's words
// lead to the innermost turn, the turn to the job that runs, so a switch from job to job changes one field of the turn
// and nothing that is thread-local.
//
// Whoever calls code that may suspend must read `Carrier.current` anew afterwards: the job may go on on another thread.
//
// Waits that need not wait. A job whose waits are all satisfied at once (settled promises, buffered values, free locks)
// never switches, and would keep the base from handlers, messages, timers and the queue's other blocks for ever. So
// every wait begins with `beginWaiting`, which counts. After `Carrier.waits` of them the job looks at the clock, and if
// the base has not looked around for `Carrier.patience`, the job gives way before it takes anything: it goes to the
// back of the ready queue, and the base looks. Only then is cancellation checked, so a wait either throws and has taken
// nothing, or goes on; inside a shield it goes on.

@usableFromInline
struct Carrier: ~Copyable {
  /// Where the drain, or the immediate start's caller, is parked while a job runs.
  @usableFromInline var driver = cco_saved_context()
  /// The job that runs; nil while the base does.
  @usableFromInline var job: JobRef?
  /// The scheduler whose ready queue this thread may touch; nil: none, wakes go through inboxes.
  @usableFromInline let scheduler: Unmanaged<Scheduler>?
  /// `scheduler`'s worker; an empty one where there is no scheduler.
  @usableFromInline let readyQueue: UnsafeMutablePointer<ReadyQueue>?
  /// Switches from job to job before the base must look at the clock, the inbox and the timers.
  @usableFromInline var switchesLeft = 0
  /// Who has just left and needs something done by whoever arrives: a job (AfterSwitch), or a fiber that is free (tag
  /// 1).
  @usableFromInline var leaving: UInt = 0
  /// Waits that may begin before the one who waits looks at the clock.
  @usableFromInline var waitsLeft = Carrier.waits
  /// The clock when the base last looked, for "since when" in dumps.
  @usableFromInline var now: UInt64
  /// Where its sequence of random numbers is: which of several ready cases a select takes.
  @usableFromInline var random: UInt64

  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>?, readyQueue: UnsafeMutablePointer<ReadyQueue>?, now: UInt64) {
    self.scheduler = scheduler
    self.readyQueue = readyQueue
    self.now = now
    random = now
  }

  /// The calling thread's innermost turn.
  ///
  /// A thread-local read that no compiler keeps over a switch (hazard 4).
  @inlinable static var current: UnsafeMutablePointer<Carrier>? {
    @inline(__always) get { cco_thread().pointee.carrier?.assumingMemoryBound(to: Carrier.self) }
  }

  /// The turn and job of the calling code; throws off a coroutine.
  ///
  /// Also inside of a Task's synchronous part, where this process cannot take the Task along (hazard 14).
  @inlinable @inline(__always)
  static func requireJob() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    guard let carrier = current, let job = carrier.pointee.job else { throw outside }
    if cco_facts.refuses_tasks != 0, cco_is_inside_task() { throw CoroutineError.insideTask }
    return (carrier, job)
  }

  /// Why code that is outside of any coroutine cannot wait: a forked child cannot be helped by a launch.
  @usableFromInline static var outside: CoroutineError {
    @inline(never) get { ForkedChild.isHere ? .afterFork : .notInCoroutine }
  }

  /// The turn and job of code that is about to wait.
  ///
  /// Throws off a coroutine, and where cancellation is in force. May suspend; the caller has taken nothing yet. On the
  /// usual path one decrement more than asking for the two.
  @inlinable @inline(__always)
  static func beginWaiting() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    let (carrier, job) = try requireJob()
    let now = countWait(carrier, job)
    try job.checkCancelled()
    return (now, job)
  }

  /// Counts a wait that begins; the turn to go on with.
  @inlinable @inline(__always)
  static func countWait(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> UnsafeMutablePointer<Carrier> {
    carrier.pointee.waitsLeft &-= 1
    return carrier.pointee.waitsLeft < 0 ? giveWayIfOverdue(carrier, job) : carrier
  }

  /// So many waits may begin between two looks at the clock, which costs what ten settled awaits do.
  @usableFromInline static var waits: Int { 256 }

  /// How long the base may be kept from looking around, in ns, before a job that need not wait gives way.
  static var patience: UInt64 { TimeSlice.slice / 4 }

  /// Gives way to everything that is ready, and has the base look around, unless it has done so a moment ago; the turn
  /// after that.
  ///
  /// Looks at no cancellation.
  @usableFromInline @inline(never)
  static func giveWayIfOverdue(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> UnsafeMutablePointer<Carrier>
  {
    carrier.pointee.waitsLeft = waits
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    // Virtual time does not go on by itself.
    let isOverdue = scheduler._withUnsafeGuaranteedRef {
      $0.host.hasVirtualTime || $0.clock &- carrier.pointee.now > patience
    }
    guard isOverdue else { return carrier }
    carrier.pointee.switchesLeft = 0
    job.pointee.after = .requeue
    carrier.pointee.leaving = UInt(bitPattern: job)
    switchOut(carrier, job)
    return current.unsafelyUnwrapped
  }

  /// Whether a yield would come straight back: nothing is ready, nothing has been sent, and the base need not look yet.
  var isAlone: Bool {
    guard switchesLeft > 0, let scheduler, let readyQueue, readyQueue.pointee.workerPool == nil,
      readyQueue.pointee.queue.isEmpty
    else {
      return false
    }
    return scheduler._withUnsafeGuaranteedRef { !$0.inbox.hasMessages && $0.work.isEmpty }
  }

  /// Parks the running job, whose wait has begun and is published; returns how the wait ended.
  @inlinable @inline(__always)
  static func park(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> UInt8 {
    job.pointee.waitingSince.store(carrier.pointee.now, ordering: .relaxed)
    switchOut(carrier, job)
    return job.endWait()
  }

  /// Leaves the running job's stack with the job ready: `after` says where it goes.
  ///
  /// The three stores beside those of the switch tell dumps that it is ready, and since when.
  @inline(__always)
  static func giveWay(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) {
    job.pointee.waitKind.store(WaitKind.carrier.rawValue, ordering: .relaxed)
    job.pointee.waitingSince.store(carrier.pointee.now, ordering: .relaxed)
    carrier.pointee.leaving = UInt(bitPattern: job)
    switchOut(carrier, job)
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
  }

  /// Parks the running job and gives the thread to the next: directly to a job that is ready, else to the base.
  @inlinable @inline(__always)
  static func switchOut(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) {
    let mine = job.pointee.context.unsafelyUnwrapped
    if carrier.pointee.switchesLeft > 0, let next = carrier.pointee.readyQueue.unsafelyUnwrapped.takeRunnable() {
      carrier.pointee.switchesLeft &-= 1
      carrier.pointee.job = next
      cco_switch(&mine.pointee.parked, &next.pointee.context.unsafelyUnwrapped.pointee.parked)
    } else {
      carrier.pointee.job = nil
      cco_switch(&mine.pointee.parked, &carrier.pointee.driver)
    }
    arrive()
  }

  /// The first thing after a switch: does what the one who left could not do for itself while it was still on its
  /// stack.
  @inlinable @inline(__always)
  static func arrive() {
    let carrier = current.unsafelyUnwrapped
    if carrier.pointee.leaving != 0 { finishLeaving(carrier) }
  }

  @usableFromInline @inline(never)
  static func finishLeaving(_ carrier: UnsafeMutablePointer<Carrier>) {
    let word = carrier.pointee.leaving
    carrier.pointee.leaving = 0
    if word & 1 != 0 {
      let stack = UnsafeMutablePointer<cco_context>(bitPattern: word & ~1).unsafelyUnwrapped
      let stackCache = carrier.pointee.readyQueue?.stackCache
      if stackCache == nil || !stackCache.unsafelyUnwrapped.pointee.push(stack) { StackRunner.free(stack) }
      return
    }
    let job = JobRef(bitPattern: word).unsafelyUnwrapped
    let after = job.pointee.after
    job.pointee.after = .nothing
    switch after {
    case .nothing:
      break
    case .requeue:
      // Nobody else can have moved it: it was not in any queue.
      if let readyQueue = carrier.pointee.ownReadyQueue(of: job) {
        readyQueue.appendYielded(job)
      } else {
        sendRemotely(job)
      }
    case .transfer:
      let destination = job.pointee.destination.unsafelyUnwrapped
      job.pointee.destination = nil
      destination._withUnsafeGuaranteedRef { $0.takeOver(job) }
    }
  }

  /// The worker of this turn, if that is where the job belongs.
  @inlinable @inline(__always)
  func ownReadyQueue(of job: JobRef) -> UnsafeMutablePointer<ReadyQueue>? {
    guard let scheduler, job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == scheduler.toOpaque() else {
      return nil
    }
    return readyQueue
  }

  /// Makes a job ready whose wait the caller has claimed (or that has not begun to wait): once, from any thread.
  @inlinable @inline(__always)
  static func makeReady(_ job: JobRef) {
    if let readyQueue = current?.pointee.ownReadyQueue(of: job) { readyQueue.append(job) } else { sendRemotely(job) }
  }

  /// As makeReady, for a job that the caller has just launched.
  @inline(__always)
  static func makeLaunchedReady(_ job: JobRef) {
    guard let carrier = current, let readyQueue = carrier.pointee.ownReadyQueue(of: job) else {
      return sendRemotely(job)
    }
    job.pointee.waitingSince.store(carrier.pointee.now, ordering: .relaxed)
    readyQueue.appendLaunched(job)
  }

  /// From another scheduler's turn, or none.
  ///
  /// Between workers of one group the waker's worker takes the job along if it is already switched out: it runs sooner,
  /// on warm data, and no drain has to be started.
  @usableFromInline @inline(never)
  static func sendRemotely(_ job: JobRef) {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    if let carrier = current, let readyQueue = carrier.pointee.readyQueue,
      let workerPool = readyQueue.pointee.workerPool,
      let mine = carrier.pointee.scheduler,
      scheduler._withUnsafeGuaranteedRef({ $0.readyQueue.pointee.workerPool?.toOpaque() }) == workerPool.toOpaque(),
      job.pointee.flags.bitwiseOr(0, ordering: .acquiringAndReleasing).newValue
        & (JobFlags.foreign | JobFlags.inspecting)
        == 0,
      let context = job.pointee.context, cco_is_parked(&context.pointee.parked)
    {
      job.pointee.scheduler.store(mine, ordering: .releasing)
      readyQueue.append(job)
      return
    }
    scheduler._withUnsafeGuaranteedRef { $0.push(.job(job)) }
  }
}
