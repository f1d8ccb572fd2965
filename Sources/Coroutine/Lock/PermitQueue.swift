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
    _ turn: UnsafeMutablePointer<Turn>,
    _ job: JobRef
  ) throws {
    let hold = pointee.lock.lock(as: turn.pointee.lockKey)
    if takeLocked(count) { return pointee.lock.unlock(hold) }
    var wanted = count
    try withUnsafeMutablePointer(to: &wanted) { wanted in
      let token = job.beginWait(kind, for: source)
      var waiting = SlotNode(WaitNode(job: job, token: token), slot: wanted)
      try withUnsafeMutablePointer(to: &waiting) { waiting in
        // It comes first.
        let node = UnsafeMutableRawPointer(waiting).assumingMemoryBound(to: WaitNode.self)
        pointee.waiters.append(node)
        pointee.lock.unlock(hold)
        if Turn.park(turn, job) == WakeReason.delivered { return }
        let hold = pointee.lock.lock(as: .current)
        pointee.waiters.remove(node)
        leaveLock(hold, granting: 0)
        throw job.cancellation() ?? CancellationError()
      }
    }
  }

  /// Under the lock, which it leaves: adds `count` permits, hands out what those who wait can have, then wakes them, in their
  /// order.
  @usableFromInline @inline(never)
  func leaveLock(_ hold: LockHold, granting count: UInt) {
    var available = available &+ count
    var woken = RunQueue()
    while let node = pointee.waiters.first {
      let wanted = node.slotNode.pointee.slot.load(as: UInt.self)
      // Who is first waits for enough, however little those behind it want: or it might wait for ever.
      guard wanted <= available else { break }
      pointee.waiters.remove(node)
      // Refused: it is cancelled, or has been woken by something else. The next one is first now.
      guard let job = node.pointee.job, job.claim(node.pointee.token, node.pointee.reason) else { continue }
      available &-= wanted
      woken.append(job)
    }
    pointee.free.store(available, ordering: .relaxed)
    pointee.lock.unlock(hold)
    while let job = woken.popFirst() { Turn.makeReady(job) }
  }
}
