import Synchronization

// The cases of locks and semaphores in a select. A case that wins has done what `lock` and `acquire` do, no more: the lock is held
// when the body runs, and afterwards.
//
// A select's node stands in the queue of Permits like any other; who grants does not see that it is a select's. What is different
// is its end. A select unlinks the nodes of the cases that lost by itself, and knows nothing of permits. Such a node may have stood
// in front of waiters that want less, so `dispose`, which comes after the unlinking, grants what they can have. A mutex does not
// need it: whoever waits for one permit is granted it as soon as there is one, also past nodes that cannot be claimed.

extension FairMutex {
  /// For ``co_select(biased:_:)``: takes the lock.
  ///
  /// Ready when it is free and nobody waits; waiting, the select has its place in the queue. `body` runs with the lock held, and
  /// it stays held: ``unlock()`` it, there or later. By its owner, co_select throws ``CoroutineError/wouldDeadlock``.
  public func onLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      MutexLocking.self,
      place: self,
      lock: permit.lockAddress,
      queue: permit.queueAddress,
      words: [1, 0, 0, 0, 0],
      body
    )
  }
}

extension FairSemaphore {
  /// For ``co_select(biased:_:)``: takes `permits` permits.
  ///
  /// Ready when they are there and nobody waits; waiting, the select has its place in the queue. They are taken when `body` runs:
  /// ``release(_:)`` them, there or later. For more than the semaphore's limit, co_select throws
  /// ``CoroutineError/wouldDeadlock``; a negative number traps.
  public func onAcquire<R>(_ permits: Int = 1, _ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      Acquiring.self,
      place: self,
      lock: self.permits.lockAddress,
      queue: self.permits.queueAddress,
      words: [Self.checked(permits, "acquire"), 0, 0, 0, 0],
      needsPreparation: true,
      body
    )
  }
}

extension FairReadWriteLock {
  /// For ``co_select(biased:_:)``: takes the lock for reading.
  ///
  /// Ready when nobody writes and nobody waits; waiting, the select has its place in the queue. `body` runs with the lock held,
  /// and it stays held: ``unlockRead()`` it, there or later. By the writer, co_select throws ``CoroutineError/wouldDeadlock``.
  public func onReadLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onLock(1, body) }

  /// For ``co_select(biased:_:)``: takes the lock for writing.
  ///
  /// Ready when it is free and nobody waits; waiting, the select has its place in the queue. `body` runs with the lock held, and
  /// it stays held: ``unlockWrite()`` it, there or later. By the writer, co_select throws ``CoroutineError/wouldDeadlock``.
  public func onWriteLock<R>(_ body: @escaping () throws -> R) -> SelectCase<R> { onLock(Self.everyone, body) }

  private func onLock<R>(_ count: UInt, _ body: @escaping () throws -> R) -> SelectCase<R> {
    SelectCase(
      ReadWriteLocking.self,
      place: self,
      lock: permits.lockAddress,
      queue: permits.queueAddress,
      words: [count, 0, 0, 0, 0],
      needsPreparation: true,
      body
    )
  }
}

/// Taking a mutex, as a select's operation.
private enum MutexLocking: SelectOperation {
  static func attempt(_ mutex: FairMutex, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.attempt(mutex.permit, isImpossible: mutex.isHeldByCaller)
  }

  static func finish(_ mutex: FairMutex, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.holdsMutex)
    mutex.owner.store(LockOwner.current.word, ordering: .relaxed)
  }
}

/// Taking permits of a semaphore, as a select's operation.
private enum Acquiring: SelectOperation {
  static func attempt(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) -> SelectAnswer {
    if waiter.wanted == 0 { return .yes }
    return waiter.attempt(semaphore.permits, isImpossible: semaphore.isBeyond(waiter.wanted))
  }

  static func finish(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.permits(waiter.wanted, limit: semaphore.permits.pointee.total))
  }

  static func dispose(_ semaphore: FairSemaphore, _ waiter: SelectWaiterRef) { semaphore.permits.grant() }
}

/// Taking a read-write lock, for reading by one permit or for writing by all, as a select's operation.
private enum ReadWriteLocking: SelectOperation {
  static func attempt(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.attempt(lock.permits, isImpossible: lock.isWrittenByCaller)
  }

  static func finish(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) throws {
    try waiter.throwIfImpossible(.holdsWriteLock)
    if waiter.wanted > 1 { lock.writer.store(LockOwner.current.word, ordering: .relaxed) }
  }

  static func dispose(_ lock: FairReadWriteLock, _ waiter: SelectWaiterRef) { lock.permits.grant() }
}

extension SelectWaiterRef {
  fileprivate var wanted: UInt { pointee.words[0] }

  /// Under the lock.
  ///
  /// What can never be had is ready, so that it throws instead of waiting for ever.
  fileprivate func attempt(_ permits: PermitsRef, isImpossible: Bool) -> SelectAnswer {
    if isImpossible { pointee.slotted.isClosed = true }
    return isImpossible || permits.takeOrContend(wanted) ? .yes : .no
  }

  fileprivate func throwIfImpossible(_ reason: @autoclosure () -> CoroutineError.Deadlock) throws {
    if pointee.slotted.isClosed { throw CoroutineError.wouldDeadlock(because: reason()) }
  }
}

extension UnsafeMutablePointer where Pointee == Permits {
  var lockAddress: UnsafePointer<SpinLock> { withUnsafePointer(to: pointee.lock) { $0 } }
  fileprivate var queueAddress: UnsafeMutablePointer<WaitQueue> { pointee.queue.unsafelyUnwrapped }

  /// Hands out what those who wait can have, after somebody has left the queue.
  fileprivate func grant() {
    pointee.lock.lock()
    leaveLock(granting: 0)
  }
}
