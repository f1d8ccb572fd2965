import Synchronization

/// A number of permits that coroutines acquire and release; a coroutine that wants more than are available waits, first
/// come, first served.
///
/// ```swift
/// let connections = FairSemaphore(10)
/// try connections.acquire()
/// defer { connections.release() }
/// ```
///
/// The order is strict, whatever the amounts: a coroutine that wants many permits is not overtaken by coroutines that
/// want one, even if one permit is available. A cancelled waiter has taken nothing, and the waiters behind it move up.
///
/// Permits have no owner: one coroutine may acquire, and another, or a thread, release. So a coroutine that has
/// permits, or the body of a ``Generator`` whose stepper has them, cannot be told from one that has handed them on. If
/// it acquires more than are left, that is not detected: it waits until somebody releases.
///
/// A semaphore has a limit. By default this is the initial number of permits: releasing more traps, because a permit
/// was released twice. A semaphore for signalling starts with none and has no limit, like a `DispatchSemaphore`:
///
/// ```swift
/// let arrived = FairSemaphore(0, limit: .unbounded)
/// source.onArrival { arrived.release() }   // on any thread
/// try arrived.acquire()                    // in a coroutine: suspends until one has arrived
/// ```
public final class FairSemaphore: @unchecked Sendable {
  // Sound because the storage guards itself; it is accessed through its address only, as the first property.
  //
  // States and races: see Permits.swift.
  @exclusivity(unchecked) private var storage: Permits

  @inlinable var permits: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates a semaphore with `permits` permits, all available.
  ///
  /// The number of permits never exceeds the initial one. A negative number traps. With 0 permits, an acquiring
  /// coroutine waits until it is cancelled; use ``init(_:limit:)`` for signalling.
  public convenience init(_ permits: Int) { self.init(permits, limit: .permits(permits)) }

  /// The largest number of permits of a semaphore.
  public enum Limit: Sendable, Hashable {
    /// The largest countable number, `Int.max / 2`: releasing adds permits, whether or not they were acquired before.
    case unbounded
    /// This number: releasing adds permits until this many are available.
    case permits(Int)
  }

  /// Creates a semaphore with `permits` available permits; releasing adds more, up to `limit`.
  ///
  /// A negative number traps, and so does a limit below `permits`.
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

  deinit { permits.letFinish(self) }

  /// Gives the semaphore a name, which dumps show: `FairSemaphore "accounts" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The semaphore.
  @discardableResult
  public func named(_ name: String) -> FairSemaphore {
    permits.setName(name, of: self)
    return self
  }

  /// Twice this number still fits into a word.
  private static var mostPermits: Int { Int.max / 2 }

  /// Acquires `permits` permits, all at once.
  ///
  /// Suspends until they are available and all earlier waiters have been served. Acquiring 0 never waits. If the
  /// coroutine is cancelled, before or during the wait, it throws and has taken none. A negative number traps.
  /// - Throws: The cancellation error; ``CoroutineError/wouldDeadlock`` if `permits` is above the limit;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func acquire(_ permits: Int = 1) throws {
    let (carrier, job) = try Carrier.beginWaiting(for: self.permits.pointee.word.id)
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

  /// Whether `count` permits can never be available.
  ///
  /// A semaphore with a limit of 0 is an exception: it is a closed gate, and waiting for it is permitted.
  func isBeyond(_ count: UInt) -> Bool { count > permits.pointee.total && permits.pointee.total > 0 }

  /// Acquires `permits` permits if they are available and nothing waits.
  ///
  /// Never suspends; any thread, coroutine or not. A negative number traps.
  /// - Returns: Whether the caller now has the permits.
  @inlinable
  public func tryAcquire(_ permits: Int = 1) -> Bool {
    let count = Self.checked(permits, "acquire")
    return count == 0 || self.permits.take(count)
  }

  /// Releases or adds `permits` permits; waiting coroutines get them first.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if the limit would be exceeded, or if the number is negative.
  @inlinable
  public func release(_ permits: Int = 1) {
    if !self.permits.give(Self.checked(permits, "release")) { refuse(permits) }
  }

  /// Runs `body` with `permits` permits, which are released at its end, also if it throws.
  ///
  /// Suspends until the permits are available, and throws, as ``acquire(_:)`` does; then `body` has not run. `body` may
  /// wait.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withPermit<Output>(_ permits: Int = 1, _ body: () throws -> Output) throws -> Output {
    try acquire(permits)
    defer { release(permits) }
    return try body()
  }

  /// The number of available permits at this moment.
  ///
  /// It may be above zero while coroutines wait: the first of them wants more.
  public var available: Int { Int(permits.available) }

  @inlinable @inline(__always)
  static func checked(_ permits: Int, _ verb: StaticString) -> UInt {
    if permits < 0 { misuse("A FairSemaphore cannot \(verb) \(permits) permits: ask for 0 or more.") }
    return UInt(permits)
  }

  @usableFromInline @inline(never)
  func refuse(_ permits: Int) -> Never {
    if self.permits.pointee.total == UInt(Self.mostPermits) {
      misuse("An unbounded FairSemaphore got \(permits) released, beyond Int.max / 2 permits: release fewer.")
    }
    misuse(
      "A FairSemaphore with a limit of \(self.permits.pointee.total) permits got \(permits) released, which is too many: "
        + "release what was acquired, once, or make it with limit: .unbounded."
    )
  }
}

// MARK: - Dumps

extension FairSemaphore: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(permits.availableInDump) permits available" }
  func verb(of queue: UInt?) -> String { "acquire" }
}

// MARK: - Names of what contains permits

extension UnsafeMutablePointer where Pointee == Permits {
  /// Gives the object that contains the permits a name for dumps.
  func setName(_ name: String, of object: AnyObject) {
    ObjectNames.set(name, of: object)
    pointee.isNamed.store(true, ordering: .relaxed)
  }

  /// The first action of the deinit of the object that contains the permits.
  func letFinish(_ object: AnyObject) {
    Inspection.letFinish(object)
    if pointee.isNamed.load(ordering: .relaxed) { ObjectNames.remove(object) }
  }
}
