import Synchronization

/// The time left until the earliest deadline of the calling code; nil without a deadline.
///
/// A deadline is one of `co_timeout`. Those outside of a `co_shield` do not count inside of it, and a launched
/// coroutine inherits none. Zero if the deadline has passed. For calls that take a limit of their own:
///
/// ```swift
/// request.timeout = min(.seconds(10), co_timeLeft ?? .seconds(10))
/// ```
///
/// Nil outside a coroutine. Any thread; does not suspend. Linear in the number of nested deadlines.
public var co_timeLeft: Duration? {
  guard let job = Carrier.current?.pointee.job, let deadline = job.earliestDeadline else { return nil }
  return job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { scheduler in
    let now = scheduler.clock
    return Duration.nanoseconds(deadline > now ? scheduler.localLength(deadline - now) : 0)
  }
}

/// The instant of the earliest deadline of the calling code; nil without a deadline.
///
/// In all other respects it behaves as ``co_timeLeft`` does.
public var co_deadline: CoroutineClock.Instant? { co_timeLeft.map { co_now.advanced(by: $0) } }

/// Suspends the coroutine until the clock shows `instant`, never less.
///
/// An instant that has passed lets the other ready coroutines run once. In all other respects it behaves as
/// ``co_delay(_:)`` does. A loop that adds to the instant does not drift; see also ``co_ticker(every:)``.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// var next = co_now
/// for _ in 0..<times {
///   try work()
///   next = next.advanced(by: .seconds(1))
///   try co_delay(until: next)
/// }
/// ```
@available(*, noasync, message: "use `CoroutineClock().sleep(until:)`")
public func co_delay(until instant: CoroutineClock.Instant) throws { try co_delay(co_now.duration(to: instant)) }

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The earliest deadline that is visible to the running job, by the clock of its scheduler.
  ///
  /// Called on the job's own carrier.
  fileprivate var earliestDeadline: UInt64? {
    var earliest: UInt64?
    var frame = pointee.frames
    while let current = frame, current.pointee.kind != .shield {
      if let (node, _) = current.pointee.timer, node.pointee.deadline != Duration.never {
        earliest = Swift.min(earliest ?? .max, node.pointee.deadline)
      }
      frame = current.pointee.outer
    }
    return earliest
  }
}
