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
