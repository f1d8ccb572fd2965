import Synchronization

/// Limits the rate of an operation: a token bucket.
///
/// ```swift
/// let limiter = RateLimiter(100, per: .seconds(1), burst: 20)
/// try limiter.acquire()          // before each request
/// ```
///
/// The bucket holds at most `burst` tokens, and is full at first. Tokens are added evenly, so in any time t at most
/// `burst` + t · rate are given out. Waiters are served strictly first come, first served, whatever the amounts. A
/// cancelled waiter has taken nothing, and the waiters behind it move up.
public final class RateLimiter: @unchecked Sendable {
  // Sound because of the first invariant, and because the gate guards itself; the storage is accessed through its
  // address only, as the first property.
  //
  // A gate of one permit, and a bucket that belongs to the holder of the permit.
  //
  //   --acquire--> QUEUED at the gate --first--> SLEEPS until its tokens are available --> takes them, leaves the gate
  //                      |                             |
  //                      +--cancelled------------------+--> leaves the gate to the next; the tokens stay in the bucket
  //
  // Invariants
  //  1. Only the holder of the permit accesses the bucket. The gate serves first come, first served (Permits), so the
  //     sleeping coroutine is the first, and nothing overtakes it.
  //  2. `credit` counts in units so small that nothing is rounded: a nanosecond adds `tokens` units, a token costs as
  //     many units as `period` has nanoseconds. 0 <= credit < burst · period + tokens, as of the time `asOf`: after a
  //     sleep of whole nanoseconds there may be a part of a nanosecond too much, which must not be lost.
  //
  // The clock is that of the caller's scheduler, as for timers: a simulated coroutine waits in virtual time.
  @exclusivity(unchecked) private var storage = Permits(1)
  @exclusivity(unchecked) private var credit: UInt128
  @exclusivity(unchecked) private var asOf: UInt64 = 0
  private let tokens: UInt128
  private let period: UInt128
  private let burst: Int

  var gate: PermitsRef { propertyAddress(in: self, at: 0, as: Permits.self) }

  /// Creates a limiter that gives out `tokens` tokens in each `period`, and up to `burst` at once after a pause.
  ///
  /// Traps on numbers below 1 and on periods below a nanosecond.
  public init(_ tokens: Int, per period: Duration = .seconds(1), burst: Int = 1) {
    if tokens < 1 { misuse("A RateLimiter cannot give out \(tokens) tokens in a period: give it 1 or more.") }
    if period < .nanoseconds(1) {
      misuse("A RateLimiter cannot have a period of \(period): give it a nanosecond or more.")
    }
    if burst < 1 {
      misuse("A RateLimiter cannot have a burst of \(burst): with less than 1 nothing would ever happen.")
    }
    self.tokens = UInt128(tokens)
    self.period = UInt128(period.nanoseconds)
    self.burst = burst
    credit = UInt128(burst) * self.period
    _ = PermitsRef(&storage, at: gate)
  }

  deinit { Inspection.letFinish(self) }

  /// Takes `count` tokens, all at once.
  ///
  /// Suspends until they are available and all earlier waiters have been served. Taking 0 never waits. If the coroutine
  /// is cancelled, before or during the wait, it throws and has taken none. A negative number traps.
  /// - Throws: The cancellation error; ``CoroutineError/wouldDeadlock`` if `count` is above the burst;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func acquire(_ count: Int = 1) throws {
    let (carrier, job) = try Carrier.beginWaiting()
    if count < 0 { refuse(count) }
    if count == 0 { return }
    if count > burst { throw CoroutineError.wouldDeadlock(because: .tokens(count, burst: burst)) }
    if !gate.takeAtOnce(1) { try gate.wait(1, .permits, of: self, carrier, job) }
    defer { _ = gate.give(1) }
    while true {
      let missing = take(
        count,
        job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.localClock }
      )
      if missing == 0 { return }
      try co_delay(.nanoseconds(missing))
    }
  }

  /// Takes `count` tokens if they are available and nothing waits.
  ///
  /// Never suspends; any thread, coroutine or not. A negative number traps.
  /// - Returns: Whether the tokens were taken.
  public func tryAcquire(_ count: Int = 1) -> Bool {
    if count < 0 { refuse(count) }
    if count == 0 { return true }
    Host.touches(UInt(bitPattern: gate))
    guard count <= burst, gate.take(1) else { return false }
    defer { _ = gate.give(1) }
    let scheduler = Carrier.current?.pointee.job?.pointee.scheduler.load(ordering: .relaxed)
    return take(count, scheduler?._withUnsafeGuaranteedRef { $0.localClock } ?? Clock.now) == 0
  }

  /// Takes the tokens and returns 0, or returns the nanoseconds until they are available.
  ///
  /// Requires the permit.
  private func take(_ count: Int, _ now: UInt64) -> Int64 {
    let elapsed = UInt128(now > asOf ? now - asOf : 0)
    credit = min(UInt128(burst) * period + tokens - 1, credit + elapsed * tokens)
    asOf = max(asOf, now)
    let price = UInt128(count) * period
    if price <= credit {
      credit -= price
      return 0
    }
    return Int64(clamping: (price - credit + tokens - 1) / tokens)
  }

  private func refuse(_ count: Int) -> Never {
    misuse("A RateLimiter cannot give out \(count) tokens: ask for 0 or more.")
  }
}
