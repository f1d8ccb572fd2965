public import Synchronization

/// A lock that is held by any number of readers together, or by one writer alone.
///
/// ```swift
/// let lock = FairReadWriteLock()
/// let price = try lock.withReadLock { table[item] }
/// try lock.withWriteLock { table[item] = price + 1 }
/// ```
///
/// There is no starvation: readers and writers are served first come, first served. Consecutive readers share the lock;
/// a reader that comes after a waiting writer waits behind it. If a coroutine is cancelled while it waits, it throws
/// without the lock, and the waiters behind it move up: readers behind a cancelled writer join the current readers.
///
/// - A writer that locks again, for reading or writing, gets ``CoroutineError/wouldDeadlock``. A reader must not lock
///   again either: a writer may wait in between, and then both wait for ever. A read lock cannot be upgraded to a write
///   lock.
/// - Unlocking for writing by anyone but the writer, or for reading without a reader, traps.
/// - Reads have no owner: any coroutine or thread may end one. So a reader that locks for writing cannot be told from
///   one that has handed its read on, and is not detected: it waits until its read ends.
/// - The body of a ``Generator`` may hold the lock over its yields for reading. A yield while it holds the lock for
///   writing throws ``CoroutineError/yieldInsideScope``, as with a ``FairMutex``.
public final class FairReadWriteLock: @unchecked Sendable {
  // Sound because both properties consist of atomics and of what Permits guards; the storage is accessed through its
  // address only, as the first property.
  //
  // There are as many permits as there can be readers. A reader takes one, a writer takes all.
  //
  //   FREE     all available
  //   READ     some taken, no `writer`
  //   WRITTEN  all taken, `writer` is the holder: it sets it after taking them, and clears it before giving them back
  //   HANDED   all taken, no `writer`: granted to a writer that has not run yet
  //
  // Only writers write `writer`, so a caller that compares it with its own number can trust the result
  // (FairMutex.swift). Order and races: see Permits.swift.
  @exclusivity(unchecked) private var storage = Permits(FairReadWriteLock.everyone)
  // Not shared: a caller learns only whether it is the writer itself.
  @usableFromInline let writer = Atomic<UInt>(0)

  @usableFromInline static var everyone: UInt { UInt(Int32.max) }

  @inlinable var permits: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates an unlocked lock.
  public init() { _ = PermitsRef(&storage, at: permits) }

  deinit { permits.letFinish(self) }

  /// Gives the lock a name, which dumps show: `FairReadWriteLock "accounts" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The lock.
  @discardableResult
  public func named(_ name: String) -> FairReadWriteLock {
    permits.setName(name, of: self)
    return self
  }

  // MARK: Reading

  /// Locks for reading, together with other readers.
  ///
  /// Suspends while a writer holds the lock or waits ahead. If the coroutine is cancelled, before or during the wait,
  /// it throws and does not hold the lock.
  /// - Throws: The cancellation error; ``CoroutineError/wouldDeadlock`` if the caller is the writer;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func lockRead() throws {
    let (carrier, job) = try Carrier.beginWaiting(for: permits.pointee.word.id)
    if !permits.takeAtOnce(1) { try lockContended(1, carrier, job) }
  }

  /// Locks for reading if there is no writer and no waiter.
  ///
  /// Never suspends; any thread, coroutine or not.
  /// - Returns: Whether the caller now holds the lock.
  public func tryLockRead() -> Bool {
    return permits.take(1)
  }

  /// Ends one read; the last reader hands the lock over to a waiting writer.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if there is no reader.
  public func unlockRead() {
    if writer.load(ordering: .relaxed) != 0 || !permits.give(1) {
      misuse(
        "A FairReadWriteLock was unlocked for reading although it has no reader: unlock once for each lockRead."
      )
    }
  }

  /// Runs `body` with the lock held for reading, and unlocks when `body` returns or throws.
  ///
  /// Waits, throws and is cancelled as ``lockRead()``; `body` may suspend.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withReadLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lockRead()
    defer { unlockRead() }
    return try body()
  }

  // MARK: Writing

  /// Locks for writing, alone.
  ///
  /// Suspends while there are readers or a writer, until all earlier waiters have been served. If the coroutine is
  /// cancelled, before or during the wait, it throws and does not hold the lock.
  /// - Throws: The cancellation error; ``CoroutineError/wouldDeadlock`` if the caller is the writer;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func lockWrite() throws {
    let (carrier, job) = try Carrier.beginWaiting(for: permits.pointee.word.id)
    if !permits.takeAll(Self.everyone) { try lockContended(Self.everyone, carrier, job) }
    writer.store(LockOwner.taking(job), ordering: .relaxed)
  }

  /// Locks for writing if the lock is free and has no waiters.
  ///
  /// Never suspends; any thread. Outside a coroutine the thread becomes the writer, and must be the one to unlock.
  /// - Returns: Whether the caller now holds the lock.
  public func tryLockWrite() -> Bool {
    guard permits.take(Self.everyone) else { return false }
    writer.store(LockOwner.taking(), ordering: .relaxed)
    return true
  }

  /// Unlocks after writing, and hands the lock over to the first waiters: one writer, or all readers up to the next
  /// writer.
  ///
  /// Never suspends. Traps if the caller is not the writer.
  public func unlockWrite() {
    if !LockOwner.isUnlocking(writer.load(ordering: .relaxed)) {
      misuse("A FairReadWriteLock can be unlocked for writing only by who has locked it for writing.")
    }
    writer.store(LockOwner.none, ordering: .relaxed)
    permits.giveAll(Self.everyone)
  }

  /// Runs `body` with the lock held for writing, and unlocks when `body` returns or throws.
  ///
  /// Waits, throws and is cancelled as ``lockWrite()``; `body` may suspend.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withWriteLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lockWrite()
    defer { unlockWrite() }
    return try body()
  }

  var isWrittenByCaller: Bool { LockOwner.isCaller(writer.load(ordering: .relaxed)) }

  private func lockContended(_ count: UInt, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    if isWrittenByCaller { throw CoroutineError.wouldDeadlock(because: .holdsWriteLock) }
    try permits.wait(count, .lock, of: self, carrier, job)
  }
}

// MARK: - Dumps and deadlocks

extension FairReadWriteLock: Owned {
  var ownerInDump: UInt { writer.load(ordering: .relaxed) }
  var waitLock: UnsafePointer<SpinLock> { permits.lockAddress }

  func inspect(_ names: JobNames) -> String {
    let word = ownerInDump
    if word != 0 { return "\(identity), held for writing by \(names.owner(word))" }
    let readers = Self.everyone &- permits.availableInDump
    if readers == Self.everyone { return "\(identity), about to change its owner" }
    return "\(identity), held by \(readers) reader\(readers == 1 ? "" : "s")"
  }

  func verb(of queue: UInt?) -> String { "lock" }
}

extension FairReadWriteLock: OwnedSource {
  /// The writer; the lock does not know its readers.
  func owners(awaitedBy job: JobRef) -> [UInt]? { FairMutex.known(writer.load(ordering: .relaxed)) }
}
