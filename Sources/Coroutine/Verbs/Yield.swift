/// Lets other coroutines run: the coroutine goes to the back of the ready queue, behind all others that are ready on
/// this queue.
///
/// Throws if the coroutine is cancelled, before or after; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `Task.yield()`")
public func co_yield() throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  // No other coroutine is ready, and no message is pending: continue. The driver is still entered at regular intervals.
  if carrier.pointee.isAlone {
    carrier.pointee.switchesLeft &-= 1
    return
  }
  job.pointee.after = .requeue
  Carrier.giveWay(carrier, job)
  try job.checkCancelled()
}
