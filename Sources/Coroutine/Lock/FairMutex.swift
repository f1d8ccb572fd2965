public import Synchronization

/// A mutual exclusion lock for coroutines: suspends the coroutine that waits, never its thread, and goes to those who wait in
/// the order in which they came.
///
/// ```swift
/// let lock = FairMutex()
/// try lock.withLock {
///   let balance = try accounts.read(number)     // may suspend: the lock belongs to the coroutine
///   try accounts.write(number, balance + 1)
/// }
/// ```
///
/// On one serial queue code between two suspensions is atomic by itself; a mutex is for critical sections that suspend, and for
/// coroutines of several queues.
///
/// - A coroutine that waits gives its thread to others. One that is cancelled while it waits throws at once and has not
///   got the lock; whoever stood behind it moves up.
/// - Handed over, the lock goes to the first in the queue, though the one that unlocks may want it again at once: nobody starves.
/// - It is not reentrant. The owner's second `lock()` throws ``CoroutineError/wouldDeadlock``.
/// - Unlocking what somebody else has locked ends the process.
public final class FairMutex: @unchecked Sendable {
  // Sound because both are made of atomics and of what Permits guards; the storage is used by its address alone, as
  // the first property.
  //
  // One permit, and who has it.
  //
  //   FREE      permit available, owner nobody
  //   HELD      permit taken, owner the holder: set by the holder when it has the permit, cleared by it before it gives it
  //   HANDED    permit taken, owner nobody: granted to a waiter that has not run yet; nobody can unlock
  //
  //   FREE --lock, tryLock--> HELD --unlock, nobody waits--> FREE
  //                           HELD --unlock, somebody waits--> HANDED --the waiter runs--> HELD
  //
  // `owner` is written by holders only. Who compares it with itself can trust the answer: nobody else writes my word in it.
  // Races for the permit: Permits.swift.
  @exclusivity(unchecked) private var storage = Permits(1)
  @usableFromInline let owner = Atomic<UInt>(0)

  @inlinable var permit: PermitsRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Permits.self) }
  }

  /// Creates a free mutex.
  public init() { _ = PermitsRef(&storage, at: permit) }

  deinit { Inspection.letFinish(self) }

  /// Takes the lock.
  ///
  /// Suspends while somebody else holds it, until it is this coroutine's turn in the order of asking. Cancelled, before or while
  /// it waits, it throws and has not got the lock. By its owner it throws ``CoroutineError/wouldDeadlock``; off a coroutine
  /// ``CoroutineError/notInCoroutine``.
  @inlinable
  public func lock() throws {
    let (carrier, job) = try Carrier.beginWaiting()
    if !permit.takeAtOnce(1) { try lockContended(carrier, job) }
    owner.store(LockOwner(job).word, ordering: .relaxed)
  }

  @usableFromInline
  func lockContended(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    if owner.load(ordering: .relaxed) == LockOwner(job).word {
      throw CoroutineError.wouldDeadlock(because: .holdsMutex)
    }
    try permit.wait(1, .lock, of: self, carrier, job)
  }

  /// Takes the lock if it is free and nobody waits for it.
  ///
  /// Never suspends. Anywhere: off a coroutine the lock then belongs to the thread, which must be the one to unlock it.
  public func tryLock() -> Bool {
    guard permit.take(1) else { return false }
    owner.store(LockOwner.current.word, ordering: .relaxed)
    return true
  }

  /// Gives the lock to the coroutine that has waited longest, if any.
  ///
  /// Never suspends; that coroutine runs when its queue comes to it. By anyone but the owner it ends the process.
  @inlinable
  public func unlock() {
    if !isHeldByCaller { refuse() }
    owner.store(0, ordering: .relaxed)
    _ = permit.give(1)
  }

  /// Runs `body` with the lock held, and unlocks it however `body` ends.
  ///
  /// Waits, throws and is cancelled as ``lock()``; `body` may suspend.
  @inlinable
  public func withLock<Output>(_ body: () throws -> Output) throws -> Output {
    try lock()
    defer { unlock() }
    return try body()
  }

  @inlinable var isHeldByCaller: Bool {
    @inline(__always) get { owner.load(ordering: .relaxed) == LockOwner.current.word }
  }

  @usableFromInline @inline(never)
  func refuse() -> Never {
    misuse("A FairMutex can be unlocked only by the coroutine, or off coroutines the thread, that has locked it.")
  }

  /// Takes the lock back for somebody who has given it away inside of a critical section: also when cancelled.
  func relock() {
    if tryLock() { return }
    do {
      try co_shield { try lock() }
    } catch {
      misuse("A coroutine that gave its FairMutex away to wait could not take it back: \(error)")
    }
  }
}
