import Glibc

/// The clock of timers: nanoseconds of CLOCK_MONOTONIC, which is also Dispatch's uptime.
enum Clock {
  static var now: UInt64 { read(CLOCK_MONOTONIC) }

  /// The processor time of the calling thread.
  static var ofThread: UInt64 { read(CLOCK_THREAD_CPUTIME_ID) }

  private static func read(_ clock: clockid_t) -> UInt64 {
    var time = timespec()
    clock_gettime(clock, &time)
    return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
  }
}

extension Duration {
  /// The duration in whole nanoseconds, rounded up so that no wait ends early, and clamped at both ends.
  var nanoseconds: Int64 {
    // Up to 18 seconds, one division of machine words is enough. Beyond, the library divides double words.
    if let short = UInt64(exactly: attoseconds) {
      let (quotient, remainder) = short.quotientAndRemainder(dividingBy: 1_000_000_000)
      return Int64(quotient) + (remainder > 0 ? 1 : 0)
    }
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    if overflow { return seconds < 0 ? .min : .max }
    let rounded = attoseconds / 1_000_000_000 + (attoseconds % 1_000_000_000 > 0 ? 1 : 0)
    let (sum, overflowed) = product.addingReportingOverflow(rounded)
    return overflowed ? (product < 0 ? .min : .max) : sum
  }

  /// Returns the time this long after `now`.
  ///
  /// A duration that does not fit is clamped to a time that is at least a century after `now`.
  func deadline(after now: UInt64) -> UInt64 { Self.deadline(nanoseconds, after: now) }
  static func deadline(_ nanoseconds: Int64, after now: UInt64) -> UInt64 {
    now &+ UInt64(min(max(0, nanoseconds), .max / 2))
  }
}
