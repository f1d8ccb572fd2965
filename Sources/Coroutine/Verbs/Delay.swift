public import Dispatch
import Synchronization

/// Suspends the coroutine, and never its thread, for `duration`.
///
/// Never early: it goes on when the monotonic clock has reached now plus `duration`, and its scheduler then finds time
/// for it. Zero or less lets others run once.
///
/// Cancellation ends it at once, with its reason. Throws ``CoroutineError/notInCoroutine`` off a coroutine. Constant time
/// whatever the number of sleepers; allocates nothing.
public func co_delay(_ duration: Duration) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  // Asked of a number: the operators of Duration are calls into the standard library.
  let nanoseconds = duration.nanoseconds
  guard nanoseconds > 0 else { return try co_yield() }
  let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
  let reason = scheduler._withUnsafeGuaranteedRef { scheduler in
    let now = scheduler.clock
    let deadline = Duration.deadline(nanoseconds, after: now)
    let epoch = job.beginWait(.delay, for: UInt(truncatingIfNeeded: deadline))
    var node = TimerNode(deadline: deadline, effect: .wake(job, epoch))
    return withUnsafeMutablePointer(to: &node) { node in
      scheduler.add(node, now: now)
      let reason = Carrier.park(carrier, job)
      if reason != WakeReason.timer { scheduler.remove(node) }
      return reason
    }
  }
  if reason == WakeReason.cancelled { throw job.cancellation() ?? CancellationError() }
}

/// Goes to the back of the run queue: every other coroutine that is ready on this queue runs first.
///
/// Throws when cancelled, before and after; off a coroutine ``CoroutineError/notInCoroutine``.
public func co_yield() throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  // Alone on the queue, with nothing to look at: nobody to let run. The base is still visited every so often.
  if carrier.pointee.isAlone {
    carrier.pointee.switchesLeft &-= 1
    return
  }
  job.pointee.after = .requeue
  Carrier.giveWay(carrier, job)
  try job.checkCancelled()
}

/// Whether cancellation is in force here: whether the next suspension would throw.
///
/// False outside of a coroutine and inside ``co_shield(_:)``.
public var co_isCancelled: Bool {
  guard let job = Carrier.current?.pointee.job else { return false }
  return job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 && job.cancellation() != nil
}

/// Throws what cancellation throws, if it is in force.
///
/// Does not suspend: for long computations between suspensions. Off a coroutine it throws
/// ``CoroutineError/notInCoroutine``.
public func co_checkCancelled() throws {
  try Carrier.requireJob().1.checkCancelled()
}

/// Continues on `queue` from here on: suspends, and the coroutine's scheduler is that queue's from now on.
///
/// On the same queue it goes to the back of the run queue. Cancelled, it throws: before the switch it stays where it
/// was, after it the error is thrown on the new queue. Off a coroutine ``CoroutineError/notInCoroutine``.
public func co_switch(to queue: DispatchQueue) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  let destination = SchedulerRegistry.scheduler(for: queue)
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(destination).toOpaque() {
    return try co_yield()
  }
  destination.pin(queue)
  job.moveDeadlines(to: destination)
  job.pointee.destination = Unmanaged.passUnretained(destination)
  job.pointee.after = .transfer
  Carrier.giveWay(carrier, job)
  try job.checkCancelled()
}

extension Scheduler {
  /// Takes over a job that has left its old scheduler's stack, and the reference that its record holds.
  func adopt(_ job: JobRef) {
    let old = job.pointee.home
    if !isImmortal { _ = Unmanaged.passRetained(self) }
    // Held through the hand-over: the job may be the last that kept its old queue alive.
    let oldScheduler = old.takeUnretainedValue()
    oldScheduler.unregister(job)
    register(job, on: nil)
    job.pointee.move.withLock { job.pointee.scheduler.store(Unmanaged.passUnretained(self), ordering: .releasing) }
    Carrier.makeReady(job)
    unpin()
    if !oldScheduler.isImmortal { old.release() }
  }
}
