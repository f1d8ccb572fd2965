public import Dispatch
import Synchronization

/// Continues on `queue` from here on: suspends, and the coroutine's scheduler is that queue's from now on.
///
/// On the same queue it goes to the back of the run queue. Cancelled, it throws: before the switch it stays where it
/// was, after it the error is thrown on the new queue. Off a coroutine ``CoroutineError/notInCoroutine``.
public func co_switch(to queue: DispatchQueue) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  let destination = QueueHost.scheduler(for: queue)
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
