internal import CCoroutineRuntime
import Synchronization

/// Suspends the coroutine for `duration`, without blocking its thread.
///
/// Never too early: the coroutine continues when the monotonic clock has reached now plus `duration` and its scheduler
/// runs it. Zero or less lets the other ready coroutines run once, as ``co_yield()`` does. A delay of 292 years or more
/// ends only by a cancellation.
///
/// A delay under a deadline that passes at the same instant, or before the coroutine continues, throws: when a delay
/// returns, no deadline around it has passed. So `try co_timeout(d) { try co_delay(d) }` throws ``TimeoutError``.
///
/// If the coroutine is cancelled, it throws the cancellation error at once. Throws ``CoroutineError/notInCoroutine``
/// outside a coroutine. Constant time whatever the number of timers; no allocation.
@available(*, noasync, message: "use `Task.sleep(for:)`")
public func co_delay(_ duration: Duration) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  // Compares a number: the operators of Duration are calls into the standard library.
  let nanoseconds = duration.nanoseconds
  guard nanoseconds > 0 else { return try co_yield() }
  try delay(carrier, job) { scheduler, now in scheduler.deadline(nanoseconds, after: now) }
}

/// Suspends the coroutine until the deadline that `deadline` returns; it is above `now`, or this is a yield.
@inline(__always)
private func delay(
  _ carrier: UnsafeMutablePointer<Carrier>,
  _ job: JobRef,
  until deadline: (_ scheduler: Scheduler, _ now: UInt64) -> UInt64
) throws {
  let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
  try scheduler._withUnsafeGuaranteedRef { scheduler in
    let now = scheduler.clock
    let deadline = deadline(scheduler, now)
    guard deadline > now else { return try co_yield() }
    var node = TimerNode(deadline: deadline, job)
    try withUnsafeMutablePointer(to: &node) { node in
      _ = try WaitQueue.park(carrier, job, .delay, for: UInt(truncatingIfNeeded: deadline)) { epoch in
        scheduler.add(node, waking: epoch, now: now)
      } withdraw: {
        scheduler.remove(node)
      }
    }
  }
  // A deadline that has passed by now counts, also if it is that of the delay itself: its timer was added before, and
  // the timers of one instant fire in the order of adding.
  try job.checkCancelled()
}

// MARK: - Deadlines

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
/// ``co_delay(_:)`` does. Coroutines of one queue that wait for equal instants continue in the order of their calls. A
/// loop that adds to the instant does not drift; see also ``co_ticker(every:)``.
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
public func co_delay(until instant: CoroutineClock.Instant) throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  try delay(carrier, job) { scheduler, _ in scheduler.deadline(at: instant) }
}

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

// MARK: - The clock of coroutines

extension Scheduler {
  /// Returns the time of this scheduler's clock at which the running code's clock shows `instant`, or `never`.
  ///
  /// It reads no clock, so equal instants have equal deadlines, and what waits for them wakes in the order of adding.
  func deadline(at instant: CoroutineClock.Instant) -> UInt64 {
    guard instant.nanoseconds < .max else { return Duration.never }
    let reading = UInt64(max(0, instant.nanoseconds))
    let time = cco_has_worlds() ? host.time(showing: reading) : reading
    return time >= UInt64(Int64.max) ? Duration.never : time
  }
}

/// The clock of coroutines: monotonic, with nanoseconds.
///
/// It is the clock of `co_delay`, `co_timeout` and all timers. In a simulated world it shows the world's time, so code
/// that measures time with it is simulated too; `ContinuousClock` shows real time there. On a host of a world's network
/// it is the host's clock, which may run at another rate. As a `Clock`, it suits code that takes one.
///
/// ```swift
/// let start = co_now
/// try fetch()
/// log("fetched in \(co_now - start)")
/// ```
public struct CoroutineClock: Sendable {
  /// A time of this clock.
  ///
  /// It has a meaning in this process, and in one world, only.
  public struct Instant: Sendable, Hashable, Comparable, InstantProtocol {
    let nanoseconds: Int64

    /// Returns the time after `duration`; a time beyond what the clock can show becomes the last or the first one.
    public func advanced(by duration: Duration) -> Instant {
      let (sum, overflow) = nanoseconds.addingReportingOverflow(duration.nanoseconds)
      return Instant(nanoseconds: overflow ? (duration < .zero ? .min : .max) : sum)
    }

    /// Returns the time from this instant to `other`; negative if `other` is earlier.
    public func duration(to other: Instant) -> Duration {
      .nanoseconds(other.nanoseconds) - .nanoseconds(nanoseconds)
    }

    /// Whether `one` is earlier than `other`.
    public static func < (one: Instant, other: Instant) -> Bool { one.nanoseconds < other.nanoseconds }
    /// Returns the time after `duration`.
    public static func + (instant: Instant, duration: Duration) -> Instant { instant.advanced(by: duration) }
    /// Returns the time before `duration`.
    public static func - (instant: Instant, duration: Duration) -> Instant { instant.advanced(by: .zero - duration) }
    /// Returns the time from `other` to `one`.
    public static func - (one: Instant, other: Instant) -> Duration { other.duration(to: one) }
    /// Moves the instant by `duration`.
    public static func += (instant: inout Instant, duration: Duration) { instant = instant + duration }
  }

  /// Creates the clock; all values are equal.
  public init() {}

  /// The present time.
  ///
  /// Any thread; does not suspend.
  public var now: Instant { Instant(nanoseconds: Int64(clamping: Carrier.localTime)) }

  /// The smallest time between two instants: a nanosecond.
  public var minimumResolution: Duration { .nanoseconds(1) }
}

/// The present time of the ``CoroutineClock``.
///
/// Any thread, coroutine or not; does not suspend. `co_now - start` is the time since `start`.
public var co_now: CoroutineClock.Instant { CoroutineClock().now }

extension Carrier {
  /// The time by the clock of the running code: that of its scheduler in a coroutine, else that of the process.
  static var localTime: UInt64 {
    guard let scheduler = current?.callerScheduler else { return Clock.now }
    return scheduler._withUnsafeGuaranteedRef { $0.localClock }
  }
}
