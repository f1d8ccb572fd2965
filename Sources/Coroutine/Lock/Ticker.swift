import Synchronization

/// Returns a ticker, whose ticks are `interval` apart, the first one after `interval`.
///
/// ```swift
/// let ticker = co_ticker(every: .seconds(1))
/// while true {
///   try ticker.next()
///   report()
/// }
/// ```
///
/// The ticks are at the multiples of the interval from now. So a loop does not drift, whatever its body takes, where
/// one with `co_delay` does. Never suspends; anywhere. Traps if the interval is not positive.
public func co_ticker(every interval: Duration) -> Ticker {
  if interval <= .zero { misuse("A ticker cannot tick every \(interval): give an interval longer than nothing.") }
  return Ticker(every: interval)
}

/// Ticks at the multiples of an interval; see ``co_ticker(every:)``.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeFlowSnippets.swift -->
/// ```swift
/// let ticker = co_ticker(every: .seconds(60))
/// while !co_isStopping {
///   let ticks = try co_select {
///     ticker.onTick { $0 }
///     co_stopping.onAwait { _ in 0 }
///   }
///   if ticks > 0 { try work(ticks - 1) }
/// }
/// ```
///
/// Nothing runs between the ticks: a coroutine that waits reads the clock. Ticks that pass while nobody waits are not
/// queued: the next wait returns at once, and says how many there were. Several coroutines may share a ticker; each
/// tick goes to one of them. By another clock, in a simulated world for example, a ticker ticks from its first use on.
public final class Ticker: Sendable {
  // The time of the next tick, by the clock of the running code. A coroutine takes ticks by a compare-and-swap that
  // moves it on, over all that have passed. So each tick is counted once, and the time stays a multiple of the interval
  // after the start.
  private let due: Shared<Atomic<UInt64>>
  /// The time between two ticks.
  public let interval: Duration
  private let length: UInt64
  private let clock = LocalClockNumber()

  init(every interval: Duration) {
    self.interval = interval
    length = UInt64(max(1, interval.nanoseconds))
    due = Shared(Atomic(interval.deadline(after: Carrier.localTime)))
  }

  /// The ticker of the calling code's clock: itself, but for a simulated world.
  private var here: Ticker { clock.standIn(for: self) { Ticker(every: interval) } }

  /// Waits for the next tick, and takes it, with those that have passed before it.
  ///
  /// Suspends until the time of the tick, unless that has passed. If the coroutine is cancelled, it throws at once and
  /// no tick is taken.
  /// - Returns: The number of ticks since those that were taken last: 1 if the caller is on time.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @discardableResult
  @available(*, noasync, message: "use `CoroutineClock().sleep(until:)`")
  public func next() throws -> Int {
    let ticker = here
    while true {
      _ = try Carrier.beginWaiting(for: ticker.due.id)
      if let count = ticker.take() { return count }
      try co_delay(ticker.timeUntilTick)
    }
  }

  /// The time until the next tick; zero if it has passed and was not taken.
  ///
  /// Any thread; does not suspend.
  public var timeLeft: Duration { here.timeUntilTick }

  private var timeUntilTick: Duration {
    let (tick, now) = (due.touched.load(ordering: .relaxed), Carrier.localTime)
    return .nanoseconds(Int64(clamping: tick > now ? tick - now : 0))
  }

  /// Takes the ticks that have passed, if there are any.
  private func take() -> Int? {
    let now = Carrier.localTime
    var tick = due.touched.load(ordering: .relaxed)
    // A ticker of 292 years never ticks.
    while tick <= now {
      let count = (now - tick) / length + 1
      let (isTaken, seen) = due.known.compareExchange(
        expected: tick,
        desired: tick + count * length,
        ordering: .relaxed
      )
      if isTaken { return Int(count) }
      tick = seen
    }
    return nil
  }

  /// Creates a case of ``co_select(biased:_:)`` that is ready at the next tick, as an `onTimeout` until then.
  ///
  /// The tick is taken when `body` runs, with those that have passed before it; `body` gets their number. If another
  /// case is chosen, the tick is not taken. Of several timeouts and ticks in one select, the earliest counts. If
  /// another coroutine has taken the tick meanwhile, `body` gets 0.
  public func onTick<R>(_ body: @escaping (_ count: Int) throws -> R) -> SelectCase<R> {
    let ticker = here
    return .onTimeout(ticker.timeUntilTick) { try body(ticker.take() ?? 0) }
  }
}
