internal import CCoroutine
public import Dispatch
import Synchronization

/// Moves the coroutine to `queue`: it suspends until that queue has come to it, and continues on the scheduler of that
/// queue.
///
/// If it is already on `queue`, it goes to the back of the ready queue. If the coroutine is cancelled before it has
/// arrived, also by a deadline, it throws at once, on the queue where it was, although `queue` may be blocked. If it is
/// cancelled as it arrives, it throws on the new queue. Throws ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``,
/// and ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// A coroutine that gives up leaves an entry of some hundred bytes in the queue, until that comes to it. So a loop that
/// gives up and tries again needs more and more memory as long as the queue is blocked.
@available(*, noasync, message: "use a Task that prefers a `CoroutineExecutor`")
public func co_switch(to queue: DispatchQueue) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  try job.requireMovable()
  if ForkedChild.refuses(CCO_USES_QUEUES) { throw CoroutineError.afterFork }
  let destination = QueueHost.scheduler(for: queue)
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(destination).toOpaque() {
    return try co_yield()
  }
  try Carrier.switchOver(carrier, job, to: destination, holding: queue)
  try job.checkCancelled()
}

/// Continues the running coroutine on the thread of a ``CoroutineHost``.
///
/// Suspends, as `co_switch(to:)` to a queue does. If it is already there, it goes to the back of the ready queue. If
/// the coroutine is cancelled before it has arrived, it throws where it was, although the host may be blocked, and
/// leaves an entry there, as in a queue. If it is cancelled as it arrives, it throws on the host's thread. Throws
/// ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``, and ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use a Task that prefers a `CoroutineExecutor`")
public func co_switch(to host: HostedScheduler) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  try job.requireMovable()
  let destination = host.scheduler
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(destination).toOpaque() {
    return try co_yield()
  }
  try Host.requireReal(job) { "the thread of a CoroutineHost" }
  try Carrier.switchOver(carrier, job, to: destination, holding: nil)
  try job.checkCancelled()
}
