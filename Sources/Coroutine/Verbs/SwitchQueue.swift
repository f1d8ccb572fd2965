public import Dispatch
import Synchronization

/// Moves the coroutine to `queue`: it suspends until that queue has come to it, and continues on the scheduler of that
/// queue.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// try co_switch(to: queue)
/// let entries = lines.map { "\($0): stored" }  // beside no other work of `queue`
/// try co_switch(to: WorkerPoolExecutor.shared)
/// ```
///
/// If it is already on `queue`, it goes to the back of the ready queue. If the coroutine is cancelled before it has
/// arrived, also by a deadline, it throws at once, on the queue where it was, although `queue` may be blocked. If it is
/// cancelled as it arrives, it throws on the new queue. Throws ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``,
/// and ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// A coroutine that gives up leaves an arrival of some eighty bytes in the queue, until that comes to it. So a loop that
/// gives up and tries again needs more and more memory as long as the queue is blocked.
@available(*, noasync, message: "use a Task that prefers a `CoroutineExecutor`")
public func co_switch(to queue: DispatchQueue) throws { try switchOver(to: queue) }

/// Moves the coroutine to any ``LaunchTarget``, as to a queue.
///
/// Suspends until the target has come to the coroutine. If it is already there, it goes to the back of the ready queue.
/// If the coroutine is cancelled before it has arrived, it throws where it was, although the target may be blocked, and
/// leaves an arrival there, as in a queue. If it is cancelled as it arrives, it throws there. Throws
/// ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``, and
/// ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use a Task that prefers a `CoroutineExecutor`")
@_disfavoredOverload
public func co_switch(to target: some LaunchTarget) throws { try switchOver(to: target) }

/// Inlined, so that a switch between queues calls nothing through a witness.
@inline(__always)
private func switchOver(to target: some LaunchTarget) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  try job.requireMovable()
  let destination = target._destination
  guard let scheduler = destination.scheduler else { throw CoroutineError.afterFork }
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque() {
    return try co_yield()
  }
  try Host.requireReal(on: scheduler) { "the thread of a CoroutineHost" }
  try Carrier.switchOver(carrier, job, to: scheduler, holding: destination.anchor)
  try job.checkCancelled()
}
