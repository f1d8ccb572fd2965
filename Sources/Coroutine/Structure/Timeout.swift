import Synchronization

/// Runs `body` under a deadline: after `duration` every suspension point in it throws CancellationError, and co_timeout
/// throws ``TimeoutError``, which is no cancellation: the caller goes on.
///
/// Deadlines nest, the earliest counts; each shows inside as CancellationError and leaves its own co_timeout as TimeoutError.
/// A body that returns a value all the same has succeeded; an error of its own passes. Zero or less: `body` never runs. The
/// body runs here and now, on this coroutine; cancellation from outside shows in it as ever. Off a coroutine
/// ``CoroutineError/notInCoroutine``.
@discardableResult
public func co_timeout<Output>(_ duration: Duration, _ body: () throws -> Output) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  guard duration > .zero else { throw TimeoutError(after: duration) }
  var frame = CancelFrame(.deadline, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    let now = scheduler._withUnsafeGuaranteedRef { $0.clock }
    var node = TimerNode(deadline: duration.deadline(after: now), effect: .expire(job, frame))
    return try withUnsafeMutablePointer(to: &node) { node in
      frame.pointee.timer = (node, scheduler)
      scheduler._withUnsafeGuaranteedRef { $0.add(node, now: now) }
      job.pointee.frames = frame
      defer {
        // After this nobody touches the frame; see TimerWheel.swift on firing under the lock.
        frame.pointee.timer!.scheduler._withUnsafeGuaranteedRef { $0.remove(node) }
        job.pointee.frames = frame.pointee.outer
        job.forgetSignals()
      }
      do {
        return try body()
      } catch let error as CancellationError {
        // An enclosing cancellation that is in force as well goes first: it has to unwind further than this.
        let outer = frame.pointee.outer
        job.pointee.frames = outer
        if let enclosing = job.cancellation() { throw enclosing }
        throw frame.pointee.isSignalled.load(ordering: .acquiring) ? TimeoutError(after: duration) : error
      }
    }
  }
}
