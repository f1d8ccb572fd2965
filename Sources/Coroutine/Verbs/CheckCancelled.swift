import Synchronization

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
