import Synchronization

/// Counts work that is under way, and lets coroutines wait until none is.
///
/// ```swift
/// let group = WaitGroup()
/// for page in pages {
///   group.add()
///   co_launch { defer { group.done() }; try fetch(page) }
/// }
/// try group.join()
/// ```
///
/// Any number may wait; when the count becomes zero all of them go on, in the order in which they came. The count may rise
/// again afterwards. Add before you launch: a group whose work has not been added yet is a group without work. Where the work
/// can fail, or should be cancelled with the one who waits, `co_scope` says more in less.
public final class WaitGroup: @unchecked Sendable {
  // Sound because the storage guards itself; it is used by its address alone, as the first property.
  //
  // The states and the races are in Countdown.swift.
  @exclusivity(unchecked) private var storage = Countdown(0)

  private var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a group without work.
  public init() { checkAddress(countdown, of: &storage) }

  /// Adds `count` pieces of work.
  ///
  /// Never suspends; anywhere. A negative number traps.
  public func add(_ count: Int = 1) {
    if count < 0 { misuse("A WaitGroup cannot add \(count): call done() for each piece of work that has ended.") }
    if !countdown.raise(by: UInt(count)) { misuse("A WaitGroup cannot count \(count) pieces of work more.") }
  }

  /// One piece of work has ended; the last lets everyone go on who waits.
  ///
  /// Never suspends; anywhere. Once too often ends the process.
  public func done() {
    if !countdown.lower(by: 1) { misuse("A WaitGroup got more done() than add(): its count would be negative.") }
  }

  /// Suspends until no work is under way; at once where none is.
  ///
  /// What was done before the last `done()` is seen after it. Cancelled, before or while it waits, it throws and leaves
  /// the work alone. Off a coroutine ``CoroutineError/notInCoroutine``.
  public func join() throws { try countdown.wait() }
}
