public import Synchronization

/// A lock that any number of readers hold together, or one writer alone.
///
/// ```swift
/// let lock = FairReadWriteLock()
/// let price = try lock.withReadLock { table[item] }
/// try lock.withWriteLock { table[item] = price + 1 }
/// ```
///
/// Nobody starves: readers and writers are served in the order of asking. Readers that come one after the other share the lock;
/// a reader that comes after a waiting writer waits behind it. One that is cancelled while it waits throws, has not got
/// the lock, and those behind it move up: readers behind a cancelled writer join those that read.
///
/// - A writer that asks again, to read or to write, gets ``CoroutineError/wouldDeadlock``. A reader must not ask again either: a
///   writer may have come to stand between, and then both wait for ever. There is no way up from reading to writing.
/// - To unlock for writing what somebody else has locked, or for reading what nobody reads, ends the process.
public final class FairReadWriteLock: @unchecked Sendable {
  // Sound because both are made of atomics and of what Permits guards; the storage is used by its address alone, as
  // the first property.
  //
  // As many permits as there can be readers. A reader takes one, a writer all of them; that is all.
  //
  //   FREE     all available
  //   READ     some taken, `writer` nobody
  //   WRITTEN  all taken, `writer` the holder: set by it when it has them, cleared by it before it gives them back
  //   HANDED   all taken, `writer` nobody: granted to a writer that has not run yet
  //
  // `writer` is written by writers only. Who compares it with itself can trust the answer. Order and races: Permits.swift.
  @exclusivity(unchecked) private var storage = Permits(FairReadWriteLock.everyone)
  @usableFromInline let writer = Atomic<UInt>(0)

  @usableFromInline static var everyone: UInt { UInt(Int32.max) }

  @inlinable var permits: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates a free lock.
  public init() { _ = PermitsRef(&storage, at: permits) }

  deinit { Inspection.letFinish(self) }

  // MARK: Reading

  /// Takes the lock together with others that read.
  ///
  /// Suspends while somebody writes, or has asked before to write. Cancelled, before or while it waits, it throws and has not
  /// got the lock. By the writer it throws ``CoroutineError/wouldDeadlock``; off a coroutine ``CoroutineError/notInCoroutine``.
  public func lockRead() throws { try lock(1) }

  /// Takes the lock for reading if nobody writes and nobody waits.
  ///
  /// Never suspends; anywhere.
  public func tryLockRead() -> Bool { permits.take(1) }

  /// One reader less; the last lets a waiting writer go on.
  ///
  /// Never suspends; anywhere. Without a reader it ends the process.
  public func unlockRead() {
    if writer.load(ordering: .relaxed) != 0 || !permits.give(1) {
      misuse(
        "A FairReadWriteLock was unlocked for reading although nobody reads: unlock once what lockRead has locked."
      )
    }
  }

  /// Runs `body` with the lock held for reading, and unlocks it however `body` ends.
  ///
  /// Waits, throws and is cancelled as ``lockRead()``; `body` may suspend.
  public func withReadLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lockRead()
    defer { unlockRead() }
    return try body()
  }

  // MARK: Writing

  /// Takes the lock alone.
  ///
  /// Suspends while anybody reads or writes, until it is this coroutine's turn in the order of asking. Cancelled, before or while
  /// it waits, it throws and has not got the lock. By the writer it throws ``CoroutineError/wouldDeadlock``; off a coroutine
  /// ``CoroutineError/notInCoroutine``.
  public func lockWrite() throws {
    let job = try lock(Self.everyone)
    writer.store(LockOwner(job).word, ordering: .relaxed)
  }

  /// Takes the lock for writing if it is free and nobody waits.
  ///
  /// Never suspends. Anywhere: off a coroutine it then belongs to the thread, which must be the one to unlock it.
  public func tryLockWrite() -> Bool {
    guard permits.take(Self.everyone) else { return false }
    writer.store(LockOwner.current.word, ordering: .relaxed)
    return true
  }

  /// Lets those go on who have waited longest: one writer, or readers up to the next writer.
  ///
  /// Never suspends. By anyone but the writer it ends the process.
  public func unlockWrite() {
    if !isWrittenByCaller {
      misuse("A FairReadWriteLock can be unlocked for writing only by who has locked it for writing.")
    }
    writer.store(0, ordering: .relaxed)
    _ = permits.give(Self.everyone)
  }

  /// Runs `body` with the lock held for writing, and unlocks it however `body` ends.
  ///
  /// Waits, throws and is cancelled as ``lockWrite()``; `body` may suspend.
  public func withWriteLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lockWrite()
    defer { unlockWrite() }
    return try body()
  }

  var isWrittenByCaller: Bool { writer.load(ordering: .relaxed) == LockOwner.current.word }

  /// Takes permits; answers who has them.
  @discardableResult
  private func lock(_ count: UInt) throws -> JobRef {
    let (carrier, job) = try Carrier.beginWaiting()
    if permits.takeAtOnce(count) { return job }
    if writer.load(ordering: .relaxed) == LockOwner(job).word {
      throw CoroutineError.wouldDeadlock(because: .holdsWriteLock)
    }
    try permits.wait(count, .lock, of: self, carrier, job)
    return job
  }
}
