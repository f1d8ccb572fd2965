import Glibc

/// What a row is measured with.
package enum Clock: Sendable {
  /// The time that passes.
  case wall
  /// The time that all threads of the process have spent computing: what a row costs that mostly sleeps.
  case processor

  /// Nanoseconds since some moment that stays the same while the process lives.
  package var now: UInt64 {
    var time = timespec()
    clock_gettime(self == .wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}
