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
/// cancelled waiter has taken nothing, and the waiters behind it move up. ``reserve(_:)`` takes tokens without a wait,
/// and says when they may be used.
public final class RateLimiter: @unchecked Sendable {
  // Sound because of the first invariant, and because the gate guards itself; the storage is accessed through its
  // address only, as the first property.
  //
  // A bucket under a lock, and a gate of one permit at which the coroutines queue that find too few tokens.
  //
  //   --acquire, enough tokens and `owed` is 0--> takes them
  //   --acquire, else: `owed` + count--> QUEUED at the gate --first--> SLEEPS until its tokens are available
  //                                        |                            |--> takes them, `owed` - count, leaves the
  //                                        |                            |    gate
  //                                        +--cancelled-----------------+--> leaves the gate, `owed` - count; the
  //                                                                          tokens stay in the bucket
  //   --reserve--> takes them now, if need be from the future: `credit` may fall below zero
  //
  // Invariants
  //  1. The fields below are accessed under `lock`, which is held for some arithmetic and never over a wait. So a call
  //     that need not wait takes its tokens or fails for the lack of them, whatever other threads do.
  //  2. `owed` is the number of tokens that coroutines want which have found too few, or others waiting, and have
  //     neither taken theirs nor given up. While it is above zero, only the holder of the permit takes tokens. The gate
  //     serves first come, first served (Permits), so the sleeping coroutine is the first, and nothing overtakes it.
  //  3. `credit` counts in units so small that nothing is rounded: a nanosecond adds `perPeriod` units, a token costs
  //     as many units as `period` has nanoseconds. credit < burst · period + perPeriod, as of the time `asOf`: after a
  //     sleep of whole nanoseconds there may be a part of a nanosecond too much, which must not be lost.
  //  4. `reserved` is the number of tokens of all reservations that were not cancelled. A reservation takes its tokens
  //     out of `credit` at once, and yet is behind the coroutines that wait: what was reserved since a coroutine has
  //     come does not count against it (`available(since:)`), and the time of a reservation is the time at which the
  //     tokens of all that wait, and its own, have been added.
  //  5. `sleeper` is the wait of the coroutine that sleeps, from its publication until the coroutine has run again. A
  //     change that may make tokens available earlier claims that wait, and the coroutine computes anew.
  //
  // The clock is that of the caller's scheduler, as for timers: a simulated coroutine waits in virtual time.
  @exclusivity(unchecked) private var storage = Permits(1)
  let lock = Shared<SpinLock>()
  @exclusivity(unchecked) private(set) var credit: Int128
  @exclusivity(unchecked) private(set) var asOf: UInt64 = 0
  @exclusivity(unchecked) var owed = 0
  @exclusivity(unchecked) var reserved = 0
  @exclusivity(unchecked) private(set) var perPeriod: Int128
  @exclusivity(unchecked) private(set) var period: Int128
  @exclusivity(unchecked) private var sleeper: (job: JobRef, epoch: WaitEpoch)?
  /// The number of changes that may make tokens available earlier.
  @exclusivity(unchecked) private var changes = 0
  let burst: Int

  var gate: PermitsRef { propertyAddress(in: self, at: 0, as: Permits.self) }

  /// Creates a limiter that gives out `tokens` tokens in each `period`, and up to `burst` at once after a pause.
  ///
  /// Traps on numbers below 1 and on periods below a nanosecond.
  public init(_ tokens: Int, per period: Duration = .seconds(1), burst: Int = 1) {
    Self.check(tokens, period)
    if burst < 1 {
      misuse("A RateLimiter cannot have a burst of \(burst): with less than 1 nothing would ever happen.")
    }
    perPeriod = Int128(tokens)
    self.period = Int128(period.nanoseconds)
    self.burst = burst
    credit = Int128(burst) * self.period
    _ = PermitsRef(&storage, at: gate)
  }

  static func check(_ tokens: Int, _ period: Duration) {
    if tokens < 1 { misuse("A RateLimiter cannot give out \(tokens) tokens in a period: give it 1 or more.") }
    if period < .nanoseconds(1) {
      misuse("A RateLimiter cannot have a period of \(period): give it a nanosecond or more.")
    }
  }

  deinit { gate.letFinish(self) }

  /// Gives the limiter a name, which dumps show: `RateLimiter "mails" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The limiter.
  @discardableResult
  public func named(_ name: String) -> RateLimiter {
    gate.setName(name, of: self)
    return self
  }

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
    var reservedBefore = 0
    if take(count, at: Carrier.localTime, orWaits: &reservedBefore) { return }
    do {
      if !gate.takeAtOnce(1) { try gate.wait(1, .permits, of: self, carrier, job) }
      defer { _ = gate.give(1) }
      try sleep(for: count, since: reservedBefore)
    } catch {
      lock.withLock { owed -= count }
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
    guard count <= burst else { return false }
    lock.lock()
    refill(Carrier.localTime)
    let isTaken = takeIfAvailable(count)
    lock.unlock()
    return isTaken
  }

  /// The number of tokens that are available at this moment; negative if more are reserved than have been added.
  ///
  /// It may be above zero while coroutines wait: the first of them wants more. Any thread; does not suspend.
  public var tokens: Int {
    let now = Carrier.localTime
    lock.lock()
    refill(now)
    let (whole, rest) = credit.quotientAndRemainder(dividingBy: period)
    lock.unlock()
    return Int(clamping: min(Int128(burst), rest < 0 ? whole - 1 : whole))
  }

  /// Gives out `tokens` tokens in each `period` from now on.
  ///
  /// The tokens that are in the bucket stay, as do the burst and the times of earlier reservations. Waiting coroutines
  /// wait for their tokens at the new rate. Never suspends; any thread. Traps as ``init(_:per:burst:)`` does.
  public func setRate(_ tokens: Int, per period: Duration = .seconds(1)) {
    Self.check(tokens, period)
    let (now, length) = (Carrier.localTime, Int128(period.nanoseconds))
    lock.lock()
    refill(now)
    // Rounded down, so that no part of a token is given away.
    let (whole, rest) = credit.quotientAndRemainder(dividingBy: self.period)
    let part = rest * length
    credit = whole * length + (part < 0 ? part - self.period + 1 : part) / self.period
    perPeriod = Int128(tokens)
    self.period = length
    wakeSleeperAndUnlock()
  }

  // MARK: The bucket

  /// Takes the tokens if they are available and nothing waits; else counts the caller as waiting, and returns what was
  /// reserved before.
  private func take(_ count: Int, at now: UInt64, orWaits reservedBefore: inout Int) -> Bool {
    lock.lock()
    refill(now)
    let isTaken = takeIfAvailable(count)
    if !isTaken {
      owed += count
      reservedBefore = reserved
    }
    lock.unlock()
    return isTaken
  }

  /// Called under the lock.
  private func takeIfAvailable(_ count: Int) -> Bool {
    let price = Int128(count) * period
    guard owed == 0, price <= credit else { return false }
    credit -= price
    return true
  }

  /// Changes the tokens in the bucket; called under the lock.
  func add(_ count: Int) { credit = min(most, credit + Int128(count) * period) }

  private var most: Int128 { Int128(burst) * period + perPeriod - 1 }

  /// Adds the tokens of the time that has passed; called under the lock.
  func refill(_ now: UInt64) {
    guard now > asOf else { return }
    credit = min(most, credit + Int128(now - asOf) * perPeriod)
    asOf = now
  }

  /// The time in which so many units are added, rounded up; called under the lock.
  func time(for units: Int128) -> UInt64 {
    units <= 0 ? 0 : UInt64(clamping: (units + perPeriod - 1) / perPeriod)
  }

  // MARK: The first waiter

  /// Sleeps until the tokens are available, and takes them.
  ///
  /// The caller is counted as waiting, and has the permit; it is counted no more when this returns. `reservedBefore` is
  /// the number of tokens that were reserved when it came. A reservation that was made before and cancelled since is
  /// missing in `reserved` now, hence the maximum.
  private func sleep(for count: Int, since reservedBefore: Int) throws {
    while true {
      let (carrier, job) = try Carrier.beginWaiting()
      let now = Carrier.localTime
      lock.lock()
      refill(now)
      let available = credit + Int128(max(0, reserved - reservedBefore)) * period
      let missing = time(for: Int128(count) * period - available)
      if missing == 0 {
        credit -= Int128(count) * period
        owed -= count
        lock.unlock()
        return
      }
      let seen = changes
      lock.unlock()
      try doze(missing, seen, carrier, job)
    }
  }

  /// Suspends for a time, or until a change after `seen`.
  private func doze(
    _ nanoseconds: UInt64,
    _ seen: Int,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) throws {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    try scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      var node = TimerNode(deadline: scheduler.deadline(Int64(clamping: nanoseconds), after: now), job)
      lock.lock()
      if changes != seen { return lock.unlock() }
      defer { lock.withLock { sleeper = nil } }
      try withUnsafeMutablePointer(to: &node) { node in
        let reason = try WaitQueue.park(carrier, job, .permits, for: self) { epoch in
          sleeper = (job, epoch)
          lock.unlock()
          // After the lock: starting a timer may allocate.
          scheduler.add(node, waking: epoch, now: now)
        } withdraw: {
          scheduler.remove(node)
        }
        if reason != WakeReason.timer { scheduler.remove(node) }
      }
    }
  }

  /// Leaves the lock, and makes the sleeping coroutine compute its time anew.
  func wakeSleeperAndUnlock() {
    changes += 1
    let woken = sleeper.flatMap { $0.job.claim($0.epoch, WakeReason.delivered) ? $0.job : nil }
    lock.unlock()
    if let woken { Carrier.makeReady(woken) }
  }

  func refuse(_ count: Int) -> Never {
    misuse("A RateLimiter cannot give out \(count) tokens: ask for 0 or more.")
  }
}
