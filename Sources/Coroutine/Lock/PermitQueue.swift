import Synchronization

// The part of Permits that has to do with the queue: waiting, granting, giving up. The argument is in Permits.swift.

extension UnsafeMutablePointer where Pointee == Permits {
  /// Suspends the running job until it has `count` permits.
  ///
  /// Throws what cancellation throws, and then has taken none. `source`: the object whose permits these are.
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
      var waiting = ValueWaiter(Waiter(job: job), slot: wanted)
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

  /// As give, while others may wait.
  @usableFromInline @inline(never)
  func giveContended(_ count: UInt) -> Bool {
    pointee.lock.lock()
    let word = pointee.word.load(ordering: .relaxed)
    guard word & 1 != 0 else {
      // The last waiter has just gone: it is a plain give after all.
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

  /// Under the lock, which it leaves: adds `count` permits, hands out what those who wait can have, then wakes them, in their
  /// order.
  func leaveLock(granting count: UInt) {
    let word = pointee.word.load(ordering: .relaxed)
    guard word & 1 != 0 else { return pointee.lock.unlock() }
    var available = word >> 1 &+ count
    var woken = JobQueue()
    while let waiter = pointee.waiters.first {
      let wanted = waiter.valueWaiter.pointee.slot.load(as: UInt.self)
      // Who is first waits for enough, however little those behind it want: or it might wait for ever.
      guard wanted <= available else { break }
      pointee.waiters.remove(waiter)
      // Refused: it is cancelled, or has been woken by something else. The next one is first now.
      guard let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) else { continue }
      available &-= wanted
      woken.append(job)
    }
    pointee.word.store(available << 1 | (pointee.waiters.first == nil ? 0 : 1), ordering: .releasing)
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }
}
