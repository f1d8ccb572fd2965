import Synchronization

// The queue of Permits: waiting, granting, withdrawing. The argument is in Permits.swift.

extension UnsafeMutablePointer where Pointee == Permits {
  /// Suspends the running job until it has `count` permits.
  ///
  /// Throws the cancellation error, and then has taken no permit. `source` is the object that contains the permits.
  @inline(never)
  func wait(
    _ count: UInt,
    _ kind: WaitKind,
    of source: some Inspectable,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) throws {
    pointee.lock.lock()
    if takeOrContend(count) {
      pointee.lock.unlock()
      return
    }
    var wanted = count
    try withUnsafeMutablePointer(to: &wanted) { wanted in
      var waiting = ValueWaiter(Waiter(job: job), storage: wanted)
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        _ = try WaitQueue.park(carrier, job, kind, for: source) { epoch in
          pointee.waiters.append(waiting.waiter, epoch)
          pointee.lock.unlock()
        } withdraw: {
          pointee.lock.lock()
          pointee.waiters.remove(waiting.waiter)
          leaveLock(granting: 0)
        }
      }
    }
  }

  /// Gives permits back while there may be waiters.
  @usableFromInline @inline(never)
  func giveContended(_ count: UInt) -> Bool {
    pointee.lock.lock()
    let word = pointee.word.known.load(ordering: .relaxed)
    guard word & 1 != 0 else {
      // The last waiter has just gone, so this is an uncontended give.
      pointee.lock.unlock()
      return give(count)
    }
    guard count <= pointee.total &- word >> 1 else {
      pointee.lock.unlock()
      return false
    }
    leaveLock(granting: count)
    return true
  }

  /// Adds `count` permits, grants what the waiters can have, leaves the lock, then wakes the granted waiters in their
  /// order.
  ///
  /// Called under the lock.
  func leaveLock(granting count: UInt) {
    let word = pointee.word.known.load(ordering: .relaxed)
    guard word & 1 != 0 else { return pointee.lock.unlock() }
    var available = word >> 1 &+ count
    var woken = JobQueue()
    while let waiter = pointee.waiters.first {
      let wanted = waiter.valueWaiter.pointee.storage.load(as: UInt.self)
      // The first waiter waits until there are enough, even if a later one wants less: otherwise it might wait for
      // ever.
      guard wanted <= available else { break }
      pointee.waiters.remove(waiter)
      // A refused waiter is cancelled, or has been woken by another source. The next waiter is the first now.
      guard let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) else { continue }
      available &-= wanted
      woken.append(job)
    }
    pointee.word.known.store(available << 1 | (pointee.waiters.first == nil ? 0 : 1), ordering: .releasing)
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }
}
