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
  // A bucket under a lock, and a gate of one permit at which the coroutines queue that find too few tokens.
  //
  //   --acquire, enough tokens and `waiting` is 0--> takes them
  //   --acquire, else: `waiting` + 1--> QUEUED at the gate --first--> SLEEPS until its tokens are available
  //                                        |                            |--> takes them, `waiting` - 1, leaves the gate
  //                                        +--cancelled-----------------+--> leaves the gate, `waiting` - 1; the tokens
  //                                                                          stay in the bucket
  //
  // Invariants
  //  1. `credit`, `asOf` and `waiting` are accessed under `lock`, which is held for some arithmetic and never over a
  //     wait. So a call that need not wait takes its tokens or fails for the lack of them, whatever other threads do.
  //  2. `waiting` is the number of coroutines that have found too few tokens, or others waiting, and have neither taken
  //     theirs nor given up. While it is above zero, only the holder of the permit takes tokens. The gate serves first
  //     come, first served (Permits), so the sleeping coroutine is the first, and nothing overtakes it.
  //  3. `credit` counts in units so small that nothing is rounded: a nanosecond adds `tokens` units, a token costs as
  //     many units as `period` has nanoseconds. 0 <= credit < burst · period + tokens, as of the time `asOf`: after a
  //     sleep of whole nanoseconds there may be a part of a nanosecond too much, which must not be lost.
  //
  // The clock is that of the caller's scheduler, as for timers: a simulated coroutine waits in virtual time.
  @exclusivity(unchecked) private var storage = Permits(1)
  private let lock = Shared<SpinLock>()
  @exclusivity(unchecked) private var credit: UInt128
  @exclusivity(unchecked) private var asOf: UInt64 = 0
  @exclusivity(unchecked) private var waiting = 0
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
    let price = UInt128(count) * period
    if take(price, at: job.localTime, orWaits: true) { return }
    do {
      if !gate.takeAtOnce(1) { try gate.wait(1, .permits, of: self, carrier, job) }
      defer { _ = gate.give(1) }
      try sleep(until: price, job)
    } catch {
      lock.withLock { waiting -= 1 }
      throw error
    }
  }

  /// Takes `count` tokens if they are available and nothing waits.
  ///
  /// Fails for no other reason: other threads that call this, or that acquire tokens without having to wait, do not
  /// matter. A waiting coroutine that was cancelled counts until it has run.
  ///
  /// Never suspends; any thread, coroutine or not. A negative number traps.
  /// - Returns: Whether the tokens were taken.
  public func tryAcquire(_ count: Int = 1) -> Bool {
    if count < 0 { refuse(count) }
    if count == 0 { return true }
    let job = Carrier.current?.pointee.job
    return count <= burst && take(UInt128(count) * period, at: job?.localTime ?? Clock.now, orWaits: false)
  }

  /// Takes the tokens if they are available and nothing waits; else counts the caller as waiting, if it is to wait.
  private func take(_ price: UInt128, at now: UInt64, orWaits: Bool) -> Bool {
    lock.lock()
    refill(now)
    let isTaken = waiting == 0 && price <= credit
    if isTaken { credit -= price } else if orWaits { waiting += 1 }
    lock.unlock()
    return isTaken
  }

  /// Sleeps until the tokens are available, and takes them.
  ///
  /// The caller is counted as waiting, and has the permit; it is counted no more when this returns.
  private func sleep(until price: UInt128, _ job: JobRef) throws {
    while true {
      let now = job.localTime
      lock.lock()
      refill(now)
      let missing = price > credit ? price - credit : 0
      if missing == 0 {
        credit -= price
        waiting -= 1
      }
      lock.unlock()
      if missing == 0 { return }
      try co_delay(.nanoseconds(Int64(clamping: (missing + tokens - 1) / tokens)))
    }
  }

  /// Adds the tokens of the time that has passed; called under the lock.
  private func refill(_ now: UInt64) {
    guard now > asOf else { return }
    credit = min(UInt128(burst) * period + tokens - 1, credit + UInt128(now - asOf) * tokens)
    asOf = now
  }

  private func refuse(_ count: Int) -> Never {
    misuse("A RateLimiter cannot give out \(count) tokens: ask for 0 or more.")
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The time by the clock of the running job's scheduler.
  fileprivate var localTime: UInt64 {
    pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.localClock }
  }
}
