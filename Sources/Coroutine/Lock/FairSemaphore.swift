import Synchronization

/// A number of permits that coroutines take and give back; who asks for more than there are waits, in the order of asking.
///
/// ```swift
/// let connections = FairSemaphore(10)
/// try connections.acquire()
/// defer { connections.release() }
/// ```
///
/// Strictly first come, first served, whatever the amounts: a coroutine that wants many is not overtaken for ever by those that
/// want one, though one permit is there. A waiter that is cancelled has taken nothing, and those behind it move up.
///
/// Permits belong to nobody: one coroutine may acquire and another, or a thread, release. But there are never more than the
/// semaphore was made with; to release more ends the process.
public final class FairSemaphore: @unchecked Sendable {
  // Sound because the storage guards itself; it is used by its address alone, as the first property.
  //
  // All there is to it, the states and the races, is in Permits.swift.
  @exclusivity(unchecked) private var storage: Permits

  @inlinable var permits: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates a semaphore with `permits` permits, all available.
  ///
  /// A negative number traps. With none it lets nobody through: who acquires waits until cancelled.
  public init(_ permits: Int) {
    if permits < 0 { misuse("A FairSemaphore cannot have \(permits) permits: give it 0 or more.") }
    if permits > Int.max / 2 { misuse("A FairSemaphore cannot have \(permits) permits: at most Int.max / 2.") }
    storage = Permits(UInt(permits))
    _ = PermitsRef(&storage, at: self.permits)
  }

  /// Takes `permits` permits, all at once.
  ///
  /// Suspends until they are there and everyone who has asked before has been served. Cancelled, before or while it waits, it
  /// throws and has taken none. To ask for none never waits. To ask for more than the semaphore was made with throws
  /// ``CoroutineError/wouldDeadlock``; a negative number traps. Off a coroutine ``CoroutineError/notInCoroutine``.
  @inlinable
  public func acquire(_ permits: Int = 1) throws {
    let (turn, job) = try Turn.requireJob()
    try job.checkCancelled()
    let count = Self.checked(permits, "acquire")
    if !self.permits.takeAtOnce(count) { try acquireContended(count, turn, job) }
  }

  @usableFromInline
  func acquireContended(_ count: UInt, _ turn: UnsafeMutablePointer<Turn>, _ job: JobRef) throws {
    if count == 0 { return }
    if isBeyond(count) { throw CoroutineError.wouldDeadlock }
    try permits.wait(count, .permits, turn, job)
  }

  /// Whether nobody will ever have so many.
  ///
  /// Nobody will have one of none either, but such a semaphore is a closed gate.
  func isBeyond(_ count: UInt) -> Bool { count > permits.pointee.total && permits.pointee.total > 0 }

  /// Takes `permits` permits if they are there and nobody waits.
  ///
  /// Never suspends; anywhere. A negative number traps.
  @inlinable
  public func tryAcquire(_ permits: Int = 1) -> Bool {
    let count = Self.checked(permits, "acquire")
    return count == 0 || self.permits.take(count)
  }

  /// Gives `permits` permits back, to those who wait first.
  ///
  /// Never suspends; anywhere. More than are taken, or a negative number, ends the process.
  @inlinable
  public func release(_ permits: Int = 1) {
    if !self.permits.give(Self.checked(permits, "release")) { refuse(permits) }
  }

  /// How many permits are free at this moment.
  ///
  /// Some may be free although coroutines wait: the first of them wants more.
  public var available: Int { Int(permits.available) }

  @inlinable @inline(__always)
  static func checked(_ permits: Int, _ verb: StaticString) -> UInt {
    if permits < 0 { misuse("A FairSemaphore cannot \(verb) \(permits) permits: ask for 0 or more.") }
    return UInt(permits)
  }

  @usableFromInline @inline(never)
  func refuse(_ permits: Int) -> Never {
    misuse(
      "A FairSemaphore got \(permits) permits released of which it had not given so many away: release what was acquired, once."
    )
  }
}
