/// The clock of one host of a world's network, which may run faster or slower than the world's time.
///
/// It is a line: at the world's time `since` it showed `shown`, and in a million nanoseconds of the world it advances
/// by `millionths` nanoseconds. Another rate begins another line at the same point, so the clock never jumps. All
/// numbers are integers, so a run is the same on every processor.
package struct LocalClock {
  private var shown = SimulatedWorld.start
  private var since = SimulatedWorld.start
  private var millionths: UInt64 = 1_000_000

  /// Creates a clock that shows the world's time.
  package init() {}

  /// The time of this clock at the world's time `now`, rounded down.
  package func reading(at now: UInt64) -> UInt64 {
    shown &+ Self.scaled(now &- since, by: millionths, of: 1_000_000, roundsUp: false)
  }

  /// Returns how many nanoseconds of the world's time `nanoseconds` of this clock last.
  ///
  /// Rounded up, so that no timer of the host is early by the host's own clock. A duration that was clamped to `.max`
  /// stays so.
  package func lasting(_ nanoseconds: Int64) -> Int64 {
    guard nanoseconds > 0, nanoseconds < .max else { return nanoseconds }
    let length = Self.scaled(UInt64(nanoseconds), by: 1_000_000, of: millionths, roundsUp: true)
    return Int64(clamping: length)
  }

  /// Lets the clock run at `millionths` · 10⁻⁶ of the world's rate from the world's time `now` on.
  package mutating func run(atMillionths millionths: UInt64, from now: UInt64) {
    shown = reading(at: now)
    since = now
    self.millionths = millionths
  }

  private static func scaled(_ number: UInt64, by factor: UInt64, of divisor: UInt64, roundsUp: Bool) -> UInt64 {
    let product = UInt128(number) * UInt128(factor) + UInt128(roundsUp ? divisor - 1 : 0)
    return UInt64(clamping: product / UInt128(divisor))
  }
}

extension SimulatedWorld {
  /// The time by the clock of the running code.
  var localNow: UInt64 { clockOfCaller?()?.reading(at: now) ?? now }

  /// The length in the world's time of `nanoseconds` by the clock of the running code.
  func lasting(_ nanoseconds: Int64) -> Int64 { clockOfCaller?()?.lasting(nanoseconds) ?? nanoseconds }

  /// How far the clock of the running code advances in the next `nanoseconds` of the world's time.
  func localLength(_ nanoseconds: UInt64) -> UInt64 {
    guard let clock = clockOfCaller?() else { return nanoseconds }
    return clock.reading(at: now &+ nanoseconds) &- clock.reading(at: now)
  }
}
