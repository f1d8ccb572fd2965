public import Synchronization

/// A mutual exclusion lock for coroutines: a waiting coroutine suspends, its thread does not block, and the lock is
/// handed over first come, first served.
///
/// ```swift
/// let lock = FairMutex()
/// try lock.withLock {
///   let balance = try accounts.read(number)     // may suspend: the lock belongs to the coroutine
///   try accounts.write(number, balance + 1)
/// }
/// ```
///
/// On one serial queue the code between two suspensions is atomic by itself. A mutex is for critical sections that
/// suspend, and for coroutines of several queues.
///
/// - A waiting coroutine releases its thread. If it is cancelled while it waits, it throws at once without the lock,
///   and the waiters behind it move up.
/// - The lock is handed over to the first waiter, even if the unlocking coroutine locks again at once: there is no
///   starvation.
/// - It is not reentrant. A second `lock()` by the owner throws ``CoroutineError/wouldDeadlock``.
/// - Unlocking by anyone but the owner traps.
/// - What the body of a ``Generator`` locks belongs to the coroutine that makes the step. A yield while the body holds
///   the lock throws ``CoroutineError/yieldInsideScope``: the next step may be another coroutine's.
/// - A coroutine that ends with the lock held leaves it locked for ever.
public final class FairMutex: @unchecked Sendable {
  // Sound because both properties consist of atomics and of what Permits guards; the storage is accessed through its
  // address only, as the first property.
  //
  // One permit, and its holder.
  //
  //   FREE      permit available, no owner
  //   HELD      permit taken, owner is the holder: set by it after taking, cleared by it before giving the permit
  //   HANDED    permit taken, no owner: granted to a waiter that has not run yet; an unlock is refused
  //
  //   FREE --lock, tryLock--> HELD --unlock, no waiter--> FREE
  //                           HELD --unlock, a waiter--> HANDED --the waiter runs--> HELD
  //
  // Only holders write `owner`. A caller that compares it with its own number can trust the result: no other caller
  // writes that number (LockOwner.swift). Races for the permit: see Permits.swift.
  @exclusivity(unchecked) private var storage = Permits(1)
  // Not shared: a caller learns only whether it is the owner itself.
  @usableFromInline let owner = Atomic<UInt>(0)

  @inlinable var permit: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates an unlocked mutex.
  public init() { _ = PermitsRef(&storage, at: permit) }

  deinit { permit.letFinish(self) }

  /// Gives the mutex a name, which dumps show: `FairMutex "accounts" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The mutex.
  @discardableResult
  public func named(_ name: String) -> FairMutex {
    permit.setName(name, of: self)
    return self
  }

  /// Locks the mutex.
  ///
  /// Suspends while it is locked, until all earlier waiters have been served. If the coroutine is cancelled, before or
  /// during the wait, it throws and does not hold the lock.
  /// - Throws: The cancellation error; ``CoroutineError/wouldDeadlock`` if the caller is the owner;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func lock() throws {
    let (carrier, job) = try Carrier.beginWaiting(for: permit.pointee.word.id)
    if !permit.takeAll(1) { try lockContended(carrier, job) }
    owner.store(LockOwner.taking(job), ordering: .relaxed)
  }

  @usableFromInline
  func lockContended(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    if isHeldByCaller {
      throw CoroutineError.wouldDeadlock(because: .holdsMutex)
    }
    try permit.wait(1, .lock, of: self, carrier, job)
  }

  /// Locks the mutex if it is free and has no waiters.
  ///
  /// Never suspends; any thread. Outside a coroutine the thread becomes the owner, and must be the one to unlock.
  /// - Returns: Whether the caller now holds the lock.
  public func tryLock() -> Bool {
    guard permit.take(1) else { return false }
    owner.store(LockOwner.taking(), ordering: .relaxed)
    return true
  }

  /// Unlocks the mutex, and hands it over to the coroutine that has waited longest, if any.
  ///
  /// Never suspends; the woken coroutine is enqueued on its own queue. Traps if the caller is not the owner.
  @inlinable
  public func unlock() {
    if !LockOwner.isUnlocking(owner.load(ordering: .relaxed)) { refuse() }
    giveAway()
  }

  @inlinable @inline(__always)
  func giveAway() {
    owner.store(LockOwner.none, ordering: .relaxed)
    permit.giveAll(1)
  }

  /// Runs `body` with the lock held, and unlocks when `body` returns or throws.
  ///
  /// Waits, throws and is cancelled as ``lock()``; `body` may suspend.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lock()
    defer { unlock() }
    return try body()
  }

  @inlinable var isHeldByCaller: Bool {
    @inline(__always) get { LockOwner.isCaller(owner.load(ordering: .relaxed)) }
  }

  @usableFromInline @inline(never)
  func refuse() -> Never {
    misuse("A FairMutex can be unlocked only by the coroutine, or off coroutines the thread, that has locked it.")
  }

  /// Locks again after `giveAway` inside a critical section, even if the job is cancelled.
  ///
  /// In a generator's body the lock is counted as held all the time: it comes back before a yield can be.
  func takeBack(for holder: UInt) {
    if !permit.take(1) {
      do {
        try co_shield {
          let (carrier, job) = try Carrier.beginWaiting(for: permit.pointee.word.id)
          if !permit.takeAll(1) { try permit.wait(1, .lock, of: self, carrier, job) }
        }
      } catch {
        misuse("A coroutine that gave its FairMutex away to wait could not take it back: \(error)")
      }
    }
    owner.store(holder, ordering: .relaxed)
  }
}
