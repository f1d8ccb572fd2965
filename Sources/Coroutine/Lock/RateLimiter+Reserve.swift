import Synchronization

extension RateLimiter {
  /// Tokens that were taken in advance; see ``RateLimiter/reserve(_:)``.
  public final class Reservation: Sendable {
    /// The number of tokens.
    public let count: Int
    /// When they may be used.
    public let instant: CoroutineClock.Instant
    private let limiter: RateLimiter
    // Not shared: the limiter's lock, which tells a world, is taken by every change.
    private let isValid = Atomic(true)

    fileprivate init(_ limiter: RateLimiter, _ count: Int, _ instant: CoroutineClock.Instant) {
      (self.limiter, self.count, self.instant) = (limiter, count, instant)
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
      guard co_now < instant, isValid.exchange(false, ordering: .acquiringAndReleasing) else { return false }
      limiter.cancel(count)
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
    if count < 0 { refuse(count) }
    if count > burst { throw CoroutineError.wouldDeadlock(because: .tokens(count, burst: burst)) }
    let (now, time) = take(inAdvance: count)
    let instant = CoroutineClock.Instant(nanoseconds: Int64(clamping: now))
    return Reservation(self, count, instant.advanced(by: .nanoseconds(Int64(clamping: time))))
  }

  /// Takes tokens, and returns the present time, and the time from then until they may be used, in nanoseconds.
  private func take(inAdvance count: Int) -> (now: UInt64, time: UInt64) {
    let now = Carrier.localTime
    lock.lock()
    defer { lock.unlock() }
    if count == 0 { return (now, 0) }
    refill(now)
    add(-count)
    reserved += count
    // Another thread may have added tokens for a time that is later than this one's.
    let late = asOf > now ? asOf - now : 0
    return (now, late + time(for: Int128(owed) * period - credit))
  }

  private func cancel(_ count: Int) {
    let now = Carrier.localTime
    lock.lock()
    refill(now)
    add(count)
    reserved -= count
    wakeSleeperAndUnlock()
  }

  /// Creates a case of ``co_select(biased:_:)`` that takes `count` tokens.
  ///
  /// Ready when they are available: the select reserves them, and waits until they may be used, as for an `onTimeout`;
  /// of several timeouts in one select, the earliest counts. If another case is chosen, the reservation is cancelled.
  /// If `count` is above the burst, co_select throws ``CoroutineError/wouldDeadlock``; a negative number traps.
  public func onAcquire<R>(_ count: Int = 1, _ body: @escaping () throws -> R) -> SelectCase<R> {
    if count < 0 { refuse(count) }
    // The case is a timeout whose length is known when the select begins. `words[1]` is 1 while tokens are reserved.
    var source = SelectSource(.timeout, SelectBody(plain: body)) { [self] step, waiter, result in
      switch step {
      case .prepare, .prepareToDecide:
        waiter.pointee.words[0] = count > burst ? 0 : UInt(clamping: take(inAdvance: count).time)
        waiter.pointee.words[1] = count > burst ? 0 : 1
      case .dispose:
        if waiter.pointee.words[1] == 1 { cancel(count) }
      case .finish:
        if count > burst { throw CoroutineError.wouldDeadlock(because: .tokens(count, burst: burst)) }
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
