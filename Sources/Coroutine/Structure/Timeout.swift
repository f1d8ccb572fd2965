import Synchronization

/// Runs `body` under a deadline; without one if `duration` is nil.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let page = try co_timeout(.seconds(5)) {
///   let address = try fetch("/address").text
///   return try fetch(address)
/// }
/// ```
///
/// After `duration`, every suspension point in `body` throws CancellationError, and co_timeout throws ``TimeoutError``.
/// That is no cancellation: the caller continues. A `co_delay` that ends exactly at the deadline throws, too. Deadlines
/// nest, and the earliest counts. With nil, the call
/// only calls `body`, and enclosing deadlines hold. A deadline that is 292 years away never passes.
///
/// - Throws: ``TimeoutError`` after `duration`, or at once, without calling `body`, if it is zero or less. An error of
///   `body` itself. ``CoroutineError/notInCoroutine`` outside a coroutine, unless `duration` is nil.
///
/// A body that returns a value despite the deadline has succeeded. `body` runs directly, on this coroutine, and sees a
/// cancellation from outside as usual.
@inlinable @discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_timeout<Output>(_ duration: Duration?, _ body: () throws -> Output) throws -> Output {
  // Inlined, so that a nil costs no more than the call of `body`.
  guard let duration else { return try body() }
  return try withDeadline(after: duration, body)
}

/// Runs `body` under a deadline at an instant; without one for nil.
///
/// In all other respects it behaves as ``co_timeout(_:_:)`` does, with the time from now until `instant`. So calls that
/// follow one another may share one deadline.
@inlinable @discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_timeout<Output>(
  until instant: CoroutineClock.Instant?,
  _ body: () throws -> Output
) throws -> Output {
  guard let instant else { return try body() }
  return try withDeadline(after: co_now.duration(to: instant), body)
}

@usableFromInline
func withDeadline<Output>(after duration: Duration, _ body: () throws -> Output) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  guard duration > .zero else { throw TimeoutError(after: duration) }
  var frame = CancelFrame(.deadline, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    let (now, deadline) = scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      return (now, scheduler.deadline(duration.nanoseconds, after: now))
    }
    var node = TimerNode(deadline: deadline, effect: .expire(job, frame))
    return try withUnsafeMutablePointer(to: &node) { node in
      frame.pointee.timer = (node, scheduler)
      scheduler._withUnsafeGuaranteedRef { $0.add(node, now: now) }
      job.pointee.frames = frame
      defer {
        // After this, no other thread touches the frame; see TimerWheel.swift about firing under the lock.
        frame.pointee.timer!.scheduler._withUnsafeGuaranteedRef { $0.remove(node) }
        job.pointee.frames = frame.pointee.outer
        job.forgetSignals()
      }
      do {
        return try body()
      } catch let error as CancellationError {
        // An enclosing cancellation that is also in force takes precedence: it has to unwind further than this one.
        let outer = frame.pointee.outer
        job.pointee.frames = outer
        if let enclosing = job.cancellation() { throw enclosing }
        throw frame.pointee.isSignalled.load(ordering: .acquiring) ? TimeoutError(after: duration) : error
      }
    }
  }
}
