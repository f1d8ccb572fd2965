import Synchronization

/// Suspends the coroutine for `duration`, without blocking its thread.
///
/// Never too early: the coroutine continues when the monotonic clock has reached now plus `duration` and its scheduler
/// runs it. Zero or less lets the other ready coroutines run once, as ``co_yield()`` does. A delay of 292 years or more
/// ends only by a cancellation.
///
/// A delay under a deadline that passes at the same instant, or before the coroutine continues, throws: when a delay
/// returns, no deadline around it has passed. So `try co_timeout(d) { try co_delay(d) }` throws ``TimeoutError``.
///
/// If the coroutine is cancelled, it throws the cancellation error at once. Throws ``CoroutineError/notInCoroutine``
/// outside a coroutine. Constant time whatever the number of timers; no allocation.
@available(*, noasync, message: "use `Task.sleep(for:)`")
public func co_delay(_ duration: Duration) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  // Compares a number: the operators of Duration are calls into the standard library.
  let nanoseconds = duration.nanoseconds
  guard nanoseconds > 0 else { return try co_yield() }
  let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
  try scheduler._withUnsafeGuaranteedRef { scheduler in
    let now = scheduler.clock
    let deadline = scheduler.deadline(nanoseconds, after: now)
    var node = TimerNode(deadline: deadline, job)
    try withUnsafeMutablePointer(to: &node) { node in
      _ = try WaitQueue.park(carrier, job, .delay, for: UInt(truncatingIfNeeded: deadline)) { epoch in
        scheduler.add(node, waking: epoch, now: now)
      } withdraw: {
        scheduler.remove(node)
      }
    }
  }
  // A deadline that has passed by now counts, also if it is that of the delay itself: its timer was added before, and
  // the timers of one instant fire in the order of adding.
  try job.checkCancelled()
}
