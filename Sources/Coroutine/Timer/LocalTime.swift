import CCoroutine

// Time as the running code measures it.
//
// It differs from the scheduler's clock in one case only: in a simulated world, on a host whose clock runs at a rate of
// its own. Timers, their wheel and the host's wake-ups use the scheduler's clock always. So a duration is converted
// once, when its timer is created; and code that measures how much time has passed reads `localClock`.
//
// Outside a world, each function costs one load more (`cco_has_worlds`).

extension Scheduler {
  /// The clock by which the running code measures how much time has passed.
  var localClock: UInt64 { cco_has_worlds() ? host.localNow : clock }

  /// Returns how far the running code's clock advances in the next `nanoseconds` of this scheduler's clock.
  func localLength(_ nanoseconds: UInt64) -> Int64 {
    Int64(clamping: cco_has_worlds() ? host.localLength(nanoseconds) : nanoseconds)
  }

  /// Returns the time of this scheduler's clock at which `nanoseconds` of the running code's clock have passed.
  func deadline(_ nanoseconds: Int64, after now: UInt64) -> UInt64 {
    Duration.deadline(cco_has_worlds() ? host.lasting(nanoseconds) : nanoseconds, after: now)
  }
}
