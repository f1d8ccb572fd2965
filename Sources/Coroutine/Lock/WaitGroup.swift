import Synchronization

/// Counts pieces of work, and lets coroutines wait until all have ended.
///
/// ```swift
/// let group = WaitGroup()
/// for page in pages {
///   group.add()
///   co_launch { defer { group.done() }; try fetch(page) }
/// }
/// try group.wait()
/// ```
///
/// Any number of coroutines may wait; when the count becomes zero, all of them continue, in the order in which they
/// started to wait. The count may rise again afterwards. Add before you launch: a group to which no work was added yet
/// has no work. If the work can fail, or should be cancelled together with the waiting coroutine, prefer `co_scope`.
public final class WaitGroup: @unchecked Sendable {
  // Sound because the storage guards itself; it is accessed through its address only, as the first property.
  //
  // States and races: see Countdown.swift.
  @exclusivity(unchecked) private var storage = Countdown(0)

  var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a group without work.
  public init() { checkAddress(countdown, of: &storage) }

  deinit { countdown.letFinish(self) }

  /// Gives the group a name, which dumps show: `WaitGroup "pages" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The group.
  @discardableResult
  public func named(_ name: String) -> WaitGroup {
    countdown.setName(name, of: self)
    return self
  }

  /// Adds `count` pieces of work.
  ///
  /// Never suspends; any thread, coroutine or not. A negative number traps.
  public func add(_ count: Int = 1) {
    if count < 0 { misuse("A WaitGroup cannot add \(count): call done() for each piece of work that has ended.") }
    if !countdown.raise(by: UInt(count)) { misuse("A WaitGroup cannot count \(count) pieces of work more.") }
  }

  /// Ends one piece of work; the last one wakes all waiters.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if there is no work left.
  public func done() {
    if !countdown.lower(by: 1) { misuse("A WaitGroup got more done() than add(): its count would be negative.") }
  }

  /// Waits until no work is left; returns at once if there is none.
  ///
  /// Everything done before the last `done()` is visible afterwards. If the coroutine is cancelled, before or during
  /// the wait, it throws and does not affect the work.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func wait() throws { try countdown.wait(of: self) }
}
