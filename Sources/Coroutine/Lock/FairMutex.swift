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
  // writes that number (LockOwner). Races for the permit: see Permits.swift.
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

// MARK: - Dumps and deadlocks

// Only an owner writes its number, and a lock that is being handed over has none. So a number that is read names a
// coroutine that has locked and not unlocked since, if that coroutine has waited for something else meanwhile.

extension FairMutex: Owned {
  var ownerInDump: UInt { owner.load(ordering: .relaxed) }
  var waitLock: UnsafePointer<SpinLock> { permit.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = ownerInDump
    if permit.pointee.isOfOnce {
      let once = identity(as: "Once")
      return word == 0 ? "\(once), about to end" : "\(once), run by \(names.owner(word))"
    }
    return word == 0 ? "\(identity), about to change its owner" : "\(identity), held by \(names.owner(word))"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairMutex: OwnedSource {
  func owners(awaitedBy job: JobRef) -> [UInt]? { Self.known(owner.load(ordering: .relaxed)) }

  static func known(_ owner: UInt) -> [UInt]? {
    owner == LockOwner.none ? nil : [owner]
  }
}

// MARK: - Owners of locks

// The owner of a lock: a coroutine, or a thread outside any coroutine. Each is a number that no other owner ever has
// (Job/Locals.swift), so a lock cannot be taken for one's own because an address was used again.
//
// What a coroutine locks in the body of a generator that it steps, the coroutine owns. The body must have unlocked it
// when it yields, because the next step may be another coroutine's. So there the lock is counted
// (Generator+Delegation.swift).
//
// Fast path. A coroutine that has never stepped a generator runs in no body. After its first step its number has a flag
// (OwnerNumber.mayStep), which no lock ever stores: so one comparison with the word of a lock says "mine, and not in a
// body" or "look".

@usableFromInline
enum LockOwner {
  @inlinable static var none: UInt { 0 }

  /// The number under which a running job has taken a lock.
  @inlinable @inline(__always)
  static func taking(_ job: JobRef) -> UInt {
    let owner = job.pointee.owner.load(ordering: .relaxed)
    return owner & OwnerNumber.mayStep == 0 ? owner : job.takesWhileStepping()
  }

  /// The number under which the calling code has taken a lock.
  @inline(__always)
  static func taking() -> UInt {
    if let job = Carrier.current?.pointee.job { return taking(job) }
    return OwnerNumber.ofThread & ~OwnerNumber.mayStep
  }

  /// Whether `owner` is the caller.
  @inlinable @inline(__always)
  static func isCaller(_ owner: UInt) -> Bool {
    guard let job = Carrier.current?.pointee.job else { return isThread(owner) }
    return job.pointee.owner.load(ordering: .relaxed) & ~OwnerNumber.mayStep == owner
  }

  /// Whether `owner` is the caller, which unlocks.
  @inlinable @inline(__always)
  static func isUnlocking(_ owner: UInt) -> Bool {
    guard let job = Carrier.current?.pointee.job else { return isThread(owner) }
    return job.pointee.owner.load(ordering: .relaxed) == owner || job.unlocksWhileStepping(owner)
  }

  @usableFromInline @inline(never)
  static func isThread(_ owner: UInt) -> Bool { owner != none && OwnerNumber.ofThread & ~OwnerNumber.mayStep == owner }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The job's number, after a lock was taken; counts the lock if the caller runs in a body.
  @usableFromInline @inline(never)
  func takesWhileStepping() -> UInt {
    if !isOnOwnStack { GeneratorRecord.noteLocked(self) }
    return ownerNumber
  }

  /// Whether `owner` is the job, which unlocks; the lock is counted no more if the caller runs in a body.
  @usableFromInline @inline(never)
  func unlocksWhileStepping(_ owner: UInt) -> Bool {
    guard ownerNumber == owner else { return false }
    if !isOnOwnStack { GeneratorRecord.noteUnlocked(self) }
    return true
  }
}
