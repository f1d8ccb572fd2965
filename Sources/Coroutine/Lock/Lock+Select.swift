import Synchronization

// The select cases of locks and semaphores. A selected case has done exactly what `lock` or `acquire` does: the lock is
// held when the body runs, and afterwards.
//
// A select's waiter is queued in Permits like any other; the granting thread does not see the difference. The end
// differs: a select unlinks the waiters of its unselected cases itself, and knows nothing of permits. Such a waiter may
// have been queued ahead of waiters that want less, so `dispose`, which runs after the unlinking, grants what they can
// have. A mutex does not need this: a waiter for one permit gets it as soon as there is one, even past waiters that
// cannot be claimed.

extension FairMutex {
  /// Creates a case of ``co_select(biased:_:)`` that locks the mutex.
  ///
  /// Ready when the mutex is free and has no waiters; until then the select is queued like other waiters. `body` runs
  /// with the lock held, and it stays held: ``unlock()`` it in `body` or later. If the caller is the owner, co_select
  /// throws ``CoroutineError/wouldDeadlock``.
  public func onLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      MutexLocking.self,
      target: self,
      lock: permit.lockAddress,
      queue: permit.queueAddress,
      words: [1, 0, 0, 0, 0],
      needsPreparation: true,
      body
    )
  }
}

extension FairSemaphore {
  /// Creates a case of ``co_select(biased:_:)`` that acquires `permits` permits.
  ///
  /// Ready when they are available and nothing waits; until then the select is queued like other waiters. The permits
  /// are acquired when `body` runs: ``release(_:)`` them in `body` or later. If `permits` is above the semaphore's
  /// limit, co_select throws ``CoroutineError/wouldDeadlock``; a negative number traps.
  public func onAcquire<R>(_ permits: Int = 1, _ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      Acquiring.self,
      target: self,
      lock: self.permits.lockAddress,
      queue: self.permits.queueAddress,
      words: [Self.checked(permits, "acquire"), 0, 0, 0, 0],
      needsPreparation: true,
      body
    )
  }
}

extension FairReadWriteLock {
  /// Creates a case of ``co_select(biased:_:)`` that locks for reading.
  ///
  /// Ready when there is no writer and no waiter; until then the select is queued like other waiters. `body` runs with
  /// the lock held, and it stays held: ``unlockRead()`` it in `body` or later. If the caller is the writer, co_select
  /// throws ``CoroutineError/wouldDeadlock``.
  public func onReadLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onLock(1, body) }

  /// Creates a case of ``co_select(biased:_:)`` that locks for writing.
  ///
  /// Ready when the lock is free and has no waiters; until then the select is queued like other waiters. `body` runs
  /// with the lock held, and it stays held: ``unlockWrite()`` it in `body` or later. If the caller is the writer,
  /// co_select throws ``CoroutineError/wouldDeadlock``.
  public func onWriteLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onLock(Self.everyone, body) }

  private func onLock<R>(_ count: UInt, _ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      ReadWriteLocking.self,
      target: self,
      lock: permits.lockAddress,
      queue: permits.queueAddress,
      words: [count, 0, 0, 0, 0],
      needsPreparation: true,
      body
    )
  }
}

/// The select operation that locks a mutex.
private enum MutexLocking: SelectOperation {
  static func prepare(_ mutex: FairMutex, _ waiter: SelectWaiterRef) { waiter.noteOwn(mutex.owner) }

  static func attempt(_ mutex: FairMutex, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.attempt(mutex.permit, isImpossible: waiter.isOwn(mutex.owner))
  }

  static func finish(_ mutex: FairMutex, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.holdsMutex)
    // The unlock does not tell a world any more.
    mutex.permit.pointee.word.touch()
    mutex.owner.store(LockOwner.taking(), ordering: .relaxed)
  }
}

/// The select operation that acquires permits of a semaphore.
private enum Acquiring: SelectOperation {
  static func attempt(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) -> SelectAnswer {
    if waiter.wanted == 0 { return .yes }
    return waiter.attempt(semaphore.permits, isImpossible: semaphore.isBeyond(waiter.wanted))
  }

  static func finish(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.permits(waiter.wanted, limit: semaphore.permits.pointee.total))
    semaphore.permits.pointee.word.touch()
  }

  static func dispose(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) { semaphore.permits.grant() }
}

/// The select operation that locks a read-write lock: by one permit for reading, by all for writing.
private enum ReadWriteLocking: SelectOperation {
  static func prepare(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) { waiter.noteOwn(lock.writer) }

  static func attempt(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.attempt(lock.permits, isImpossible: waiter.isOwn(lock.writer))
  }

  static func finish(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.holdsWriteLock)
    lock.permits.pointee.word.touch()
    if waiter.wanted > 1 { lock.writer.store(LockOwner.taking(), ordering: .relaxed) }
  }

  static func dispose(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) { lock.permits.grant() }
}

extension SelectWaiterRef {
  fileprivate var wanted: UInt { pointee.words[0] }

  /// Stores the holder of a lock if it counts as the caller.
  ///
  /// Called before the locks are taken, under which nothing is looked up. No other flow of control makes the caller a
  /// holder, or unlocks what it holds.
  fileprivate func noteOwn(_ owner: borrowing Atomic<UInt>) {
    let holder = owner.load(ordering: .relaxed)
    pointee.words[1] = LockOwner.isCaller(holder) ? holder : LockOwner.none
  }

  fileprivate func isOwn(_ owner: borrowing Atomic<UInt>) -> Bool {
    pointee.words[1] != LockOwner.none && owner.load(ordering: .relaxed) == pointee.words[1]
  }

  /// Attempts to take the permits, under the lock.
  ///
  /// An impossible request counts as ready, so that it throws instead of waiting for ever.
  fileprivate func attempt(_ permits: PermitsRef, isImpossible: Bool) -> SelectAnswer {
    if isImpossible { pointee.valueWaiter.isClosed = true }
    return isImpossible || permits.takeOrContend(wanted) ? .yes : .no
  }

  fileprivate func throwIfImpossible(_ reason: @autoclosure () -> CoroutineError.Deadlock) throws {
    if pointee.valueWaiter.isClosed { throw CoroutineError.wouldDeadlock(because: reason()) }
  }
}

extension UnsafeMutablePointer where Pointee == Permits {
  var lockAddress: UnsafePointer<SpinLock> { withUnsafePointer(to: pointee.lock) { $0 } }
  fileprivate var queueAddress: UnsafeMutablePointer<WaitQueue> { pointee.queue.unsafelyUnwrapped }

  /// Grants the waiters what they can have, after a waiter was unlinked.
  fileprivate func grant() {
    pointee.lock.lock()
    leaveLock(granting: 0)
  }
}
