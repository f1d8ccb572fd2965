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
/// Permits belong to nobody: one coroutine may acquire and another, or a thread, release.
///
/// A semaphore has a limit. By default that is the number of permits that it was made with: to release more ends the
/// process, because a permit was given back twice. A semaphore that signals begins with none and has no limit, as a
/// `DispatchSemaphore`:
///
/// ```swift
/// let arrived = FairSemaphore(0, limit: .unbounded)
/// source.onArrival { arrived.release() }   // on any thread
/// try arrived.acquire()                    // in a coroutine: suspends until one has arrived
/// ```
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
  /// It never has more. A negative number traps. With none it lets nobody through: a coroutine that acquires waits
  /// until it is cancelled. ``init(_:limit:)`` makes one that signals.
  public convenience init(_ permits: Int) { self.init(permits, limit: .permits(permits)) }

  /// How many permits a semaphore can have at most.
  public enum Limit: Sendable, Hashable {
    /// As many as can be counted, `Int.max / 2`: releasing adds permits, whether or not they were acquired before.
    case unbounded
    /// So many: releasing adds permits until that many are available.
    case permits(Int)
  }

  /// Creates a semaphore with `permits` available permits, to which releasing adds more, up to `limit`.
  ///
  /// A negative number and a limit below `permits` trap.
  public init(_ permits: Int, limit: Limit) {
    let most = if case .permits(let most) = limit { most } else { Self.mostPermits }
    if permits < 0 { misuse("A FairSemaphore cannot have \(permits) permits: give it 0 or more.") }
    if most > Self.mostPermits { misuse("A FairSemaphore cannot have \(most) permits: at most Int.max / 2.") }
    if permits > most {
      misuse(
        "A FairSemaphore cannot have \(permits) permits and a limit of \(most): make the limit \(permits) or more."
      )
    }
    storage = Permits(UInt(permits), limit: UInt(most))
    _ = PermitsRef(&storage, at: self.permits)
  }

  deinit { Inspection.letFinish(self) }

  /// Such that twice as many still fit into a word.
  private static var mostPermits: Int { Int.max / 2 }

  /// Takes `permits` permits, all at once.
  ///
  /// Suspends until they are there and everyone who has asked before has been served. Cancelled, before or while it waits, it
  /// throws and has taken none. To ask for none never waits. To ask for more than the limit throws
  /// ``CoroutineError/wouldDeadlock``; a negative number traps. Off a coroutine ``CoroutineError/notInCoroutine``.
  @inlinable
  public func acquire(_ permits: Int = 1) throws {
    let (carrier, job) = try Carrier.beginWaiting()
    let count = Self.checked(permits, "acquire")
    if !self.permits.takeAtOnce(count) { try acquireContended(count, carrier, job) }
  }

  @usableFromInline
  func acquireContended(_ count: UInt, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    if count == 0 { return }
    if isBeyond(count) {
      throw CoroutineError.wouldDeadlock(because: .permits(count, limit: permits.pointee.total))
    }
    try permits.wait(count, .permits, of: self, carrier, job)
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

  /// Gives `permits` permits back, or adds them, to those who wait first.
  ///
  /// Never suspends; anywhere. To have more than the limit, or a negative number, ends the process.
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
      "A FairSemaphore with a limit of \(self.permits.pointee.total) permits got \(permits) released, which is too many: "
        + "release what was acquired, once, or make it with limit: .unbounded."
    )
  }
}
