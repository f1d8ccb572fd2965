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
  try scheduler._withUnsafeGuaranteedRef { scheduler in
    let now = scheduler.clock
    let deadline = Duration.deadline(nanoseconds, after: now)
    var node = TimerNode(deadline: deadline, job)
    try withUnsafeMutablePointer(to: &node) { node in
      _ = try WaitQueue.park(carrier, job, .delay, for: UInt(truncatingIfNeeded: deadline)) { epoch in
        scheduler.add(node, waking: epoch, now: now)
      } withdraw: {
        scheduler.remove(node)
      }
    }
  }
}
