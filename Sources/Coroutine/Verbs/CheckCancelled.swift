import Synchronization

/// Whether the current coroutine is cancelled, so that its next suspension would throw.
///
/// False outside a coroutine and inside ``co_shield(_:)``.
public var co_isCancelled: Bool {
  guard let job = Carrier.current?.pointee.job else { return false }
  return job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 && job.cancellation() != nil
}

/// Throws the cancellation error if the current coroutine is cancelled.
///
/// Does not suspend: for long computations between suspensions. Throws ``CoroutineError/notInCoroutine`` outside a
/// coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// do {
///   return try fetch("/news")
/// } catch {
///   try co_checkCancelled()
///   print("no news: \(error)")
///   return nil
/// }
/// ```
@available(*, noasync, message: "use `Task.checkCancellation()`")
public func co_checkCancelled() throws {
  try Carrier.runningJob().1.checkCancelled()
}
