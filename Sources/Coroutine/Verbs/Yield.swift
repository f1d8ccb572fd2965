public import Dispatch
import Synchronization

/// Lets other coroutines run: the coroutine goes to the back of the ready queue, behind all others that are ready on
/// this queue.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// func checksum(_ bytes: [UInt8]) throws -> Int {
///   var sum = 0
///   for (index, byte) in bytes.enumerated() {
///     sum &+= Int(byte)
///     if index % 100_000 == 99_999 { try co_yield() }
///   }
///   return sum
/// }
/// ```
///
/// Throws if the coroutine is cancelled, before or after; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `Task.yield()`")
public func co_yield() throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  if !Carrier.yield(carrier, job) {
    // No other coroutine is ready, and no message is pending: continue. The driver is still entered at regular
    // intervals.
    if carrier.pointee.isAlone {
      carrier.pointee.switchesLeft &-= 1
      return
    }
    Carrier.giveWay(carrier, job)
  }
  try job.checkCancelled()
}

// MARK: - Cancellation, without a wait

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

// MARK: - Another queue

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
/// A coroutine that gives up leaves an arrival of some eighty bytes in the queue, until that comes to it. So a loop
/// that gives up and tries again needs more and more memory as long as the queue is blocked.
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
  let scheduler = destination.scheduler
  if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque() {
    return try co_yield()
  }
  try Host.requireReal(on: scheduler) { "the thread of a CoroutineHost" }
  try Carrier.switchOver(carrier, job, to: scheduler, holding: destination.anchor)
  try job.checkCancelled()
}
