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
