import Synchronization

/// A door that opens once, when it has been counted down to zero, and stays open.
///
/// ```swift
/// let ready = Latch(workers.count)      // each worker: ready.countDown()
/// try ready.wait()
/// ```
///
/// Unlike a ``WaitGroup`` it cannot be counted up, so whoever comes late finds it open.
public final class Latch: @unchecked Sendable {
  // Sound because the storage guards itself; it is used by its address alone, as the first property.
  //
  // The states and the races are in Countdown.swift; the count only falls.
  @exclusivity(unchecked) private var storage: Countdown

  private var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a latch that opens after `count` counts; with 0 it is open.
  ///
  /// A negative number traps.
  public init(_ count: Int) {
    if count < 0 { misuse("A Latch cannot be counted down from \(count): give it 0 or more.") }
    if count > Countdown.most { misuse("A Latch cannot be counted down from \(count): at most Int.max / 2.") }
    storage = Countdown(UInt(count))
    checkAddress(countdown, of: &storage)
  }

  /// Counts down; the last count opens the latch for everyone who waits.
  ///
  /// Never suspends; anywhere. Below zero, or by a negative number, it ends the process.
  public func countDown(_ count: Int = 1) {
    if count < 0 { misuse("A Latch cannot count down by \(count): give it 0 or more.") }
    if !countdown.lower(by: UInt(count)) {
      misuse("A Latch was counted down by \(count), but not so many were left: its count would be negative.")
    }
  }

  /// Whether the latch is open; what was done before its last count is seen then.
  public var isOpen: Bool { countdown.count == 0 }

  /// Suspends until the latch is open; at once where it is.
  ///
  /// What was done before the last count is seen after it. Cancelled, before or while it waits, it throws. Off a
  /// coroutine ``CoroutineError/notInCoroutine``.
  public func wait() throws { try countdown.wait() }
}
