import Synchronization

/// Limits the rate of an operation: a token bucket.
///
/// ```swift
/// let limiter = RateLimiter(100, per: .seconds(1), burst: 20)
/// try limiter.acquire()          // before each request
/// ```
///
/// The bucket holds at most `burst` tokens, and is full at first. Tokens are added evenly, so in any time t at most
/// `burst` + t · rate are given out, also if some give up meanwhile. A waiter that runs late, because its thread was
/// busy, was given its tokens at the time at which they were there. Waiters are served strictly first come, first
/// served, whatever the amounts. A cancelled waiter has taken nothing, and the waiters behind it move up.
/// ``reserve(_:)`` takes tokens without a wait, and says when they may be used.
///
/// A limiter counts by the clock of its callers. In a simulated world it has a bucket of that world's, full at first:
/// a limiter of the whole process may serve several worlds.
public final class RateLimiter: @unchecked Sendable {
  // Sound because of invariants 1 and 3, and because the gate guards itself; the storage is accessed through its
  // address only, as the first property.
  //
  // The axis. Tokens are counted from the creation on: S(u) of them have been supplied at the time u, the burst not
  // counted. A grant of n tokens has a place, an interval of n tokens [a, a + n), and a time u from which it may be
  // used, with
  //
  //     a + n - burst <= S(u) <= a           (`instant` is the first such time, or now; n <= burst, so there is one)
  //
  // `end` is the end of the last place that was given: the theoretical arrival time. What is free before it are the
  // places of those who gave up: `holes`.
  //
  // Law: in any time from s to s + t, at most burst + S(s + t) - S(s) tokens are given.
  // Proof: the places of kept grants are disjoint, because a place is taken out of what is free, and put back only if
  // its grant is not kept. A grant with s <= u <= s + t has S(s) <= a and a + n <= S(s + t) + burst. So the places of
  // all such grants are disjoint parts of an interval of that length.
  //
  // The proof does not ask why a place is free, in which order places were given, or what the clocks of several threads
  // showed. What a new rate changes is S, from that time on. Two things are outside of the law: a reservation that was
  // made before a new rate keeps its time, also that of a select, and a coroutine that its scheduler resumes late uses
  // its tokens later.
  //
  //   --acquire, a place whose time has come, and nobody waits--> takes it
  //   --acquire, else: `owed` + n--> QUEUED at the gate --first: `owed` - n--> SLEEPS with a place, `first`
  //                                      |                                      |--its time--> has the tokens
  //                                      +--cancelled: `owed` - n               +--cancelled: the place is free again
  //   --reserve--> takes a place. If coroutines wait, it leaves free before it what they will take.
  //
  // Invariants
  //  1. The fields below are accessed under `lock`, which is never held over a wait. It is a ThreadLock, because
  //     `holes` allocates.
  //  2. While `owed` is above zero or `first` is there, coroutines wait, and no other caller takes a place before
  //     them. The gate of one permit serves first come, first served (Permits), so nothing overtakes the sleeper.
  //  3. `sleeper` is the wait of the coroutine that sleeps, from its publication until the coroutine has run again. A
  //     change that may let it move up claims that wait, and the coroutine looks for an earlier place.
  //  4. `holes` are sorted, do not touch one another or `end`, and end after the time of the last call. So there are
  //     at most as many as places were given up that are still to come.
  //
  // A token has 2⁵⁶ units, so that a part of one is exact to less than a nanosecond.
  @exclusivity(unchecked) private var storage = Permits(1)
  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var supply: Supply
  @exclusivity(unchecked) private var end: Int128 = 0
  @exclusivity(unchecked) private var holes: [Range<Int128>] = []
  /// The tokens that coroutines want which have no place yet.
  @exclusivity(unchecked) private var owed: Int128 = 0
  @exclusivity(unchecked) private var first: Range<Int128>?
  @exclusivity(unchecked) private var sleeper: (job: JobRef, epoch: WaitEpoch)?
  let burst: Int
  private let clock = LocalClockNumber()

  fileprivate static var unit: Int128 { 1 << 56 }

  var gate: PermitsRef { propertyAddress(in: self, at: 0, as: Permits.self) }

  /// Creates a limiter that gives out `tokens` tokens in each `period`, and up to `burst` at once after a pause.
  ///
  /// Traps on numbers below 1 and on periods below a nanosecond.
  public convenience init(_ tokens: Int, per period: Duration = .seconds(1), burst: Int = 1) {
    if burst < 1 {
      misuse("A RateLimiter cannot have a burst of \(burst): with less than 1 nothing would ever happen.")
    }
    self.init(Supply(tokens, period, at: Carrier.localTime), burst)
  }

  private init(_ supply: Supply, _ burst: Int) {
    (self.supply, self.burst) = (supply, burst)
    _ = PermitsRef(&storage, at: gate)
  }

  deinit { gate.letFinish(self) }

  /// The limiter of the calling code's clock: itself, but for a simulated world.
  private var here: RateLimiter {
    clock.standIn(for: self) {
      let copy = RateLimiter(lock.withLock { supply.restarted(at: Carrier.localTime) }, burst)
      if let name = ObjectNames.name(of: self) { copy.gate.setName(name, of: copy) }
      return copy
    }
  }

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
    try Self.check(count, burst)
    if count > 0 { try here.acquire(count, carrier, job) }
  }

  private func acquire(_ count: Int, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    if take(count, orElse: { owed += Int128(count) }) { return }
    do {
      if !gate.takeAtOnce(1) { try gate.wait(1, .permits, of: self, carrier, job) }
    } catch {
      lock.withLock { owed -= Int128(count) }
      throw error
    }
    defer { _ = gate.give(1) }
    lock.withLock {
      owed -= Int128(count)
      first = occupy(earliest(count, Carrier.localTime), count)
    }
    do {
      while try !hasTurn(count) {}
    } catch {
      lock.withLock {
        if let first { free(first) }
        first = nil
      }
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
    if count < 0 { Self.refuse(count) }
    return count == 0 || count <= burst && here.take(count, orElse: {})
  }

  /// The number of tokens that are available at this moment; negative if more are reserved than have been added.
  ///
  /// It may be above zero while coroutines wait: the first of them wants more. Any thread; does not suspend.
  public var tokens: Int {
    let limiter = here
    return limiter.lock.withLock { limiter.count(at: Carrier.localTime) }
  }

  private func count(at time: UInt64) -> Int {
    let now = supply.position(time)
    var used = max(0, end - now) - (first?.length ?? 0)
    for hole in holes { used -= max(0, hole.upperBound - max(hole.lowerBound, now)) }
    // Rounded down: a part of a token is none.
    let (whole, rest) = used.quotientAndRemainder(dividingBy: Self.unit)
    return Int(clamping: min(Int128(burst), Int128(burst) - whole - (rest > 0 ? 1 : 0)))
  }

  /// Gives out `tokens` tokens in each `period` from now on.
  ///
  /// The tokens that are in the bucket stay, as do the burst and the times of earlier reservations: those of `reserve`,
  /// and of selects that wait. Coroutines that wait in `acquire` wait for their tokens at the new rate. In a simulated
  /// world the rate of that world changes. Never suspends; any thread. Traps as ``init(_:per:burst:)`` does.
  public func setRate(_ tokens: Int, per period: Duration = .seconds(1)) {
    let limiter = here
    var changed = Supply(tokens, period, at: 0)
    limiter.lock.lock()
    let now = Carrier.localTime
    changed = changed.restarted(at: now)
    changed.supplied = limiter.supply.position(now)
    limiter.supply = changed
    limiter.wakeSleeperAndUnlock()
  }

  fileprivate static func check(_ count: Int, _ burst: Int) throws {
    if count < 0 { refuse(count) }
    if count > burst { throw CoroutineError.wouldDeadlock(because: .tokens(count, burst: burst)) }
  }

  fileprivate static func refuse(_ count: Int) -> Never {
    misuse("A RateLimiter cannot give out \(count) tokens: ask for 0 or more.")
  }
}

// MARK: - Places; all but `take` are called under the lock

extension RateLimiter {
  /// Takes the tokens if they are available and nothing waits; else calls `other`, under the lock.
  private func take(_ count: Int, orElse other: () -> Void) -> Bool {
    lock.withLock {
      let now = Carrier.localTime
      let start = earliest(count, now)
      let isTaken = owed == 0 && first == nil && instant(start, count) <= now
      if isTaken { _ = occupy(start, count) } else { other() }
      return isTaken
    }
  }

  /// The begin of the first free place that a grant may have from `time` on.
  private func earliest(_ count: Int, _ time: UInt64) -> Int128 {
    let (now, length) = (supply.position(time), Int128(count) * Self.unit)
    holes.removeAll { $0.upperBound <= now }
    end = max(end, now)
    for hole in holes {
      let start = max(hole.lowerBound, now)
      if hole.upperBound - start >= length { return start }
    }
    return end
  }

  /// The time from which the tokens of a place may be used; a time that has passed means at once.
  private func instant(_ start: Int128, _ count: Int) -> UInt64 {
    supply.time(of: start - Int128(burst - count) * Self.unit)
  }

  /// Gives a free place away.
  private func occupy(_ start: Int128, _ count: Int) -> Range<Int128> {
    // Beyond `most` places are not told apart: no clock gets there.
    let start = min(start, Supply.most)
    let span = start..<start + Int128(count) * Self.unit
    if start >= end {
      if start > end { holes.append(end..<start) }
      end = span.upperBound
    } else if let index = holes.firstIndex(where: { $0.lowerBound <= start && $0.upperBound >= span.upperBound }) {
      let hole = holes[index]
      let rest = [hole.lowerBound..<start, span.upperBound..<hole.upperBound].filter { !$0.isEmpty }
      holes.replaceSubrange(index...index, with: rest)
    }
    return span
  }

  /// Takes a place back.
  private func free(_ span: Range<Int128>) {
    var (lower, upper) = (span.lowerBound, span.upperBound)
    var index = holes.firstIndex { $0.lowerBound >= upper } ?? holes.endIndex
    if index < holes.endIndex, holes[index].lowerBound == upper { upper = holes.remove(at: index).upperBound }
    if index > 0, holes[index - 1].upperBound == lower {
      index -= 1
      lower = holes.remove(at: index).lowerBound
    }
    if upper == end { end = lower } else { holes.insert(lower..<upper, at: index) }
  }

  /// Lets the sleeping coroutine, which is the caller, move up.
  ///
  /// Returns true if its time has come, and it has the tokens; else false, after a sleep.
  private func hasTurn(_ count: Int) throws -> Bool {
    let (carrier, job) = try Carrier.beginWaiting()
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    return try scheduler._withUnsafeGuaranteedRef { scheduler in
      lock.lock()
      let now = Carrier.localTime
      // A place whose time has come stays as it is, to the part of a nanosecond, also if the coroutine comes late.
      if let old = first, instant(old.lowerBound, count) > now {
        free(old)
        first = occupy(min(earliest(count, now), old.lowerBound), count)
      }
      let time = first.map { instant($0.lowerBound, count) } ?? now
      if time <= now {
        first = nil
        lock.unlock()
        return true
      }
      let start = scheduler.clock
      var node = TimerNode(deadline: scheduler.deadline(Int64(clamping: time - now), after: start), job)
      defer { lock.withLock { sleeper = nil } }
      try withUnsafeMutablePointer(to: &node) { node in
        let reason = try WaitQueue.park(carrier, job, .permits, for: self) { epoch in
          sleeper = (job, epoch)
          lock.unlock()
          // After the lock: from here on the wait may be claimed.
          scheduler.add(node, waking: epoch, now: start)
        } withdraw: {
          scheduler.remove(node)
        }
        if reason != WakeReason.timer { scheduler.remove(node) }
      }
      return false
    }
  }

  /// Leaves the lock, and makes the sleeping coroutine look for its place again.
  private func wakeSleeperAndUnlock() {
    let woken = sleeper.flatMap { $0.job.claim($0.epoch, WakeReason.delivered) ? $0.job : nil }
    lock.unlock()
    if let woken { Carrier.makeReady(woken) }
  }
}

extension Range<Int128> {
  fileprivate var length: Int128 { upperBound - lowerBound }
}

/// How many tokens have been supplied at a time: a line, from the last change of the rate on.
private struct Supply {
  /// What has been supplied at the time `since`.
  var supplied: Int128 = 0
  private let since: UInt64
  private let unitsPerPeriod: UInt128
  private let period: UInt128

  static var most: Int128 { 1 << 125 }

  init(_ tokens: Int, _ period: Duration, at time: UInt64) {
    if tokens < 1 { misuse("A RateLimiter cannot give out \(tokens) tokens in a period: give it 1 or more.") }
    if period < .nanoseconds(1) {
      misuse("A RateLimiter cannot have a period of \(period): give it a nanosecond or more.")
    }
    since = time
    unitsPerPeriod = UInt128(tokens) * UInt128(RateLimiter.unit)
    self.period = UInt128(period.nanoseconds)
  }

  private init(_ other: Supply, at time: UInt64) {
    (since, unitsPerPeriod, period) = (time, other.unitsPerPeriod, other.period)
  }

  /// The same rate, from another time on.
  func restarted(at time: UInt64) -> Supply { Supply(self, at: time) }

  /// S, rounded down by less than a unit.
  func position(_ time: UInt64) -> Int128 {
    let passed = UInt128(time > since ? time - since : 0)
    return min(Self.most, supplied + Self.scaled(passed, by: unitsPerPeriod, of: period, roundsUp: false))
  }

  /// The first time at which so many units have been supplied.
  func time(of position: Int128) -> UInt64 {
    if position <= supplied { return 0 }
    let length = Self.scaled(UInt128(position - supplied), by: period, of: unitsPerPeriod, roundsUp: true)
    return UInt64(clamping: Int128(since) + length)
  }

  /// `number` · `factor` / `divisor`, or `most`.
  private static func scaled(_ number: UInt128, by factor: UInt128, of divisor: UInt128, roundsUp: Bool) -> Int128 {
    let product = number.multipliedFullWidth(by: factor)
    guard product.high < divisor else { return most }
    let (quotient, rest) = divisor.dividingFullWidth(product)
    return quotient >= UInt128(most) ? most : Int128(quotient) + (roundsUp && rest > 0 ? 1 : 0)
  }
}

// MARK: - Reservations

extension RateLimiter {
  /// Tokens that were taken in advance; see ``RateLimiter/reserve(_:)``.
  public final class Reservation: @unchecked Sendable {
    // Sound because `isValid` is accessed under the limiter's lock.

    /// The number of tokens.
    public let count: Int
    /// When they may be used.
    public let instant: CoroutineClock.Instant
    private let limiter: RateLimiter
    private let start: Int128
    @exclusivity(unchecked) private var isValid = true

    fileprivate init(_ limiter: RateLimiter, _ count: Int, _ start: Int128, _ instant: CoroutineClock.Instant) {
      (self.limiter, self.count, self.start, self.instant) = (limiter, count, start, instant)
    }

    /// The time until the tokens may be used; zero if that has come.
    ///
    /// Any thread; does not suspend.
    public var timeLeft: Duration { max(.zero, co_now.duration(to: instant)) }

    /// Gives the tokens back: those who wait behind the reservation move up.
    ///
    /// Returns false, and has no effect, if the time of the reservation has come, or if it was cancelled before. The
    /// times of other reservations do not change. Never suspends; any thread.
    @discardableResult
    public func cancel() -> Bool {
      limiter.lock.lock()
      guard isValid, co_now < instant else {
        limiter.lock.unlock()
        return false
      }
      isValid = false
      limiter.giveBackAndUnlock(start, count)
      return true
    }
  }

  /// Takes `count` tokens now, if need be from the future, and says when they may be used.
  ///
  /// For an action that begins later, or that another thread does:
  ///
  /// ```swift
  /// let reservation = try limiter.reserve()
  /// try co_delay(until: reservation.instant)
  /// ```
  ///
  /// A reservation is behind the coroutines that wait, and before those that come later. If one of them gives up, the
  /// time of the reservation stays, though it could be earlier. Never suspends; any thread, coroutine or not. A
  /// negative number traps.
  /// - Throws: ``CoroutineError/wouldDeadlock`` if `count` is above the burst.
  public func reserve(_ count: Int = 1) throws -> Reservation {
    try Self.check(count, burst)
    let limiter = here
    let (start, now, time) = limiter.takeInAdvance(count)
    let instant = CoroutineClock.Instant(nanoseconds: Int64(clamping: max(now, time)))
    return Reservation(limiter, count, start, instant)
  }

  /// Takes a place, and returns where it begins, the present time, and the time of the place.
  private func takeInAdvance(_ count: Int) -> (start: Int128, now: UInt64, time: UInt64) {
    lock.withLock {
      let now = Carrier.localTime
      if count == 0 { return (0, now, 0) }
      var start = earliest(count, now)
      if owed > 0 || first != nil {
        // Beyond any number of tokens that a clock will see.
        start = owed > Int128(Int.max) ? Supply.most : end + owed * Self.unit
      }
      start = occupy(start, count).lowerBound
      return (start, now, instant(start, count))
    }
  }

  /// Takes a reservation back; called under the lock, and leaves it.
  fileprivate func giveBackAndUnlock(_ start: Int128, _ count: Int) {
    free(start..<start + Int128(count) * Self.unit)
    wakeSleeperAndUnlock()
  }

  /// Creates a case of ``co_select(biased:_:)`` that takes `count` tokens.
  ///
  /// Ready when they are available: the select reserves them, and waits until they may be used, as for an `onTimeout`;
  /// of several timeouts in one select, the earliest counts. If another case is chosen, the reservation is cancelled.
  /// If `count` is above the burst, co_select throws ``CoroutineError/wouldDeadlock``; a negative number traps.
  public func onAcquire<R>(_ count: Int = 1, _ body: @escaping () throws -> R) -> SelectCase<R> {
    if count < 0 { Self.refuse(count) }
    // The case is a timeout whose length is known when the select begins. While tokens are reserved, `words[1]` is 1,
    // and the next two are where their place begins.
    var source = SelectSource(.timeout, SelectBody(plain: body)) { [self] step, waiter, result in
      switch step {
      case .prepare, .prepareToDecide:
        waiter.pointee.words[0] = 0
        waiter.pointee.words[1] = 0
        if count == 0 || count > burst { break }
        let (start, now, time) = here.takeInAdvance(count)
        waiter.pointee.words[0] = UInt(time > now ? time - now : 0)
        waiter.pointee.words[1] = 1
        waiter.pointee.words[2] = UInt(truncatingIfNeeded: start)
        waiter.pointee.words[3] = UInt(truncatingIfNeeded: start >> 64)
      case .dispose:
        if waiter.pointee.words[1] == 0 { break }
        let limiter = here
        let (low, high) = (Int128(waiter.pointee.words[2]), Int128(Int(bitPattern: waiter.pointee.words[3])))
        limiter.lock.lock()
        limiter.giveBackAndUnlock(high << 64 | low, count)
      case .finish:
        try Self.check(count, burst)
        waiter.pointee.words[1] = 0
        result.assumingMemoryBound(to: R.self).initialize(to: try body())
      case .attempt, .makeRoom: break
      }
      return .yes
    }
    source.words[0] = 1
    source.needsPreparation = true
    return SelectCase(source)
  }
}

// MARK: - Dumps

extension RateLimiter: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { gate.lockAddress }
  func inspect(_ names: JobNames) -> String { identity }
  func verb(of queue: UInt?) -> String { "acquire" }
}
