public import Dispatch
import Synchronization

/// Moves the coroutine to `queue`: it suspends, and continues on the scheduler of that queue.
///
/// If it is already on `queue`, it goes to the back of the ready queue. If the coroutine is cancelled before the
/// switch, it throws and stays on its queue; if it is cancelled during the switch, it throws on the new queue. Throws
/// ``CoroutineError/notInCoroutine`` outside a coroutine.
public func co_switch(to queue: DispatchQueue) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  let destination = QueueHost.scheduler(for: queue)
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(destination).toOpaque() {
    return try co_yield()
  }
  Carrier.transfer(carrier, job, to: destination, holding: queue)
  try job.checkCancelled()
}
