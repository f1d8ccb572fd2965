import Synchronization

/// A one-time barrier: it opens when it has been counted down to zero, and stays open.
///
/// ```swift
/// let ready = Latch(workers.count)      // each worker: ready.countDown()
/// try ready.wait()
/// ```
///
/// Unlike a ``WaitGroup`` it cannot be counted up, so a late waiter finds it open.
public final class Latch: @unchecked Sendable {
  // Sound because the storage guards itself; it is accessed through its address only, as the first property.
  //
  // States and races: see Countdown.swift; the count only falls.
  @exclusivity(unchecked) private var storage: Countdown

  var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a latch that opens after `count` counts; with 0 it is open at once.
  ///
  /// A negative number traps.
  public init(_ count: Int) {
    if count < 0 { misuse("A Latch cannot be counted down from \(count): give it 0 or more.") }
    if count > Countdown.most { misuse("A Latch cannot be counted down from \(count): at most Int.max / 2.") }
    storage = Countdown(UInt(count))
    checkAddress(countdown, of: &storage)
  }

  deinit { countdown.letFinish(self) }

  /// Gives the latch a name, which dumps show: `Latch "workers ready" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The latch.
  @discardableResult
  public func named(_ name: String) -> Latch {
    countdown.setName(name, of: self)
    return self
  }

  /// Counts down; the last count opens the latch and wakes all waiters.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if the count would be negative, or if `count` is negative.
  public func countDown(_ count: Int = 1) {
    if count < 0 { misuse("A Latch cannot count down by \(count): give it 0 or more.") }
    if !countdown.lower(by: UInt(count)) {
      misuse("A Latch was counted down by \(count), but not so many were left: its count would be negative.")
    }
  }

  /// Whether the latch is open; everything done before its last count is then visible.
  public var isOpen: Bool { countdown.count == 0 }

  /// Waits until the latch is open; returns at once if it is.
  ///
  /// Everything done before the last count is visible afterwards. If the coroutine is cancelled, before or during the
  /// wait, it throws.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func wait() throws { try countdown.wait(of: self) }
}
