public import Synchronization

// A number of permits that are handed out strictly in the order of asking: what every lock of this folder is made of. A mutex
// has one, a semaphore as many as its limit says; of a read-write lock a reader takes one and a writer all.
//
// Everything changes under `lock`. On the one scheduler that uses it, that costs no atomic read-modify-write (SpinLock.swift), so
// there is no second way around the lock for permits that are there.
//
// Invariants
//  1. While anybody is queued nobody takes permits but those who are queued, in their order: nobody overtakes.
//  2. At rest (the lock is free) the first in the queue, if its wait can still be claimed, wants more than is available: whoever
//     adds permits, or takes a node out, hands out what can be had before it leaves the lock. A select, which unlinks its own
//     nodes, does so right afterwards (LockSelect.swift).
//  3. All nodes are SlotNodes; the slot is a UInt, how many permits are wanted.
//  4. 0 <= available <= total. Where nothing is given that was not taken, available + what is held = total; a semaphore
//     that signals begins with fewer than total. Give refuses what would exceed total, so no count overflows.
//
// Who wins a race
//   grant against cancellation   The claim of the wait decides (Waiter.swift), and permits leave `available` only after a claim
//                                has succeeded. Cancellation first: the claim fails, or is refused because the job is cancelled
//                                already (docs/evolution/0003); the granter has lost nothing and goes on to the next in the
//                                queue. Grant first: the waiter owns the permits and returns with them, and the cancellation is
//                                seen at its next suspension.
//   cancelled waiter against     A waiter that gives up may have stood in front of others who want less. It unlinks itself and
//   those behind it              grants, in one critical section, so those behind it advance (2).
//   give against a new waiter    The lock orders them. The waiter first: the give finds it queued. The give first: the waiter, which
//                                looks again under the lock before it queues, finds the permits.

@usableFromInline
struct Permits: ~Copyable {
  /// ThreadSanitizer notes an inout access to any field at the address of the whole, where nothing else must be used.
  @usableFromInline let unused: UInt = 0
  /// Written under the lock; who reads it without one has a hint.
  @usableFromInline let free: Atomic<UInt>
  @usableFromInline let lock = SpinLock()
  /// Under the lock.
  @usableFromInline var waiters = WaitList()
  /// Where `waiters` lies, for selects: to take its address is an access to it, which only who has the lock may make.
  var queue: UnsafeMutablePointer<WaitList>?
  @usableFromInline let total: UInt

  @usableFromInline
  init(_ total: UInt) { self.init(total, limit: total) }

  /// `available` permits at first, and `limit` at most.
  init(_ available: UInt, limit: UInt) {
    free = Atomic(available)
    total = limit
  }
}

/// Permits are used through their address only, one field at a time (see ``CompletionRef``).
@usableFromInline typealias PermitsRef = UnsafeMutablePointer<Permits>

extension UnsafeMutablePointer where Pointee == Permits {
  /// Gets permits ready that lie in an object, once, at its creation.
  ///
  /// `place` is where the object says that they are.
  init(_ storage: inout Permits, at place: PermitsRef) {
    self = withUnsafeMutablePointer(to: &storage) { $0 }
    checkAddress(place, of: &storage)
    pointee.queue = withUnsafeMutablePointer(to: &pointee.waiters) { $0 }
  }

  @inlinable var available: UInt { pointee.free.load(ordering: .relaxed) }

  /// Takes `count` permits if they are there and nobody waits.
  ///
  /// Any thread; `key` is the caller's. Does not touch the lock where there are not enough.
  @inlinable @inline(__always)
  func take(_ count: UInt, as key: LockKey) -> Bool {
    guard available >= count else { return false }
    guard pointee.lock.enterBiased(key) else { return takeUnbiased(count, key) }
    let isTaken = takeLocked(count)
    pointee.lock.leaveBiased()
    return isTaken
  }

  @usableFromInline @inline(never)
  func takeUnbiased(_ count: UInt, _ key: LockKey) -> Bool {
    pointee.lock.withLock(as: key) { takeLocked(count) }
  }

  /// As take, under the lock.
  @inlinable @inline(__always)
  func takeLocked(_ count: UInt) -> Bool {
    let available = available
    guard available >= count, pointee.waiters.first == nil else { return false }
    pointee.free.store(available &- count, ordering: .relaxed)
    return true
  }

  /// Gives `count` permits back, to those who wait first.
  ///
  /// Any thread; `key` is the caller's. False: that would be more than there are in total, and nothing has changed.
  @inlinable @inline(__always)
  func give(_ count: UInt, as key: LockKey) -> Bool {
    guard pointee.lock.enterBiased(key) else { return giveLocked(count, pointee.lock.lockUnbiased(key)) }
    let available = available
    guard pointee.waiters.first == nil, count <= pointee.total &- available else { return giveLocked(count, .biased) }
    pointee.free.store(available &+ count, ordering: .relaxed)
    pointee.lock.leaveBiased()
    return true
  }

  /// As give, under the lock, which it leaves.
  @usableFromInline @inline(never)
  func giveLocked(_ count: UInt, _ hold: LockHold) -> Bool {
    let isRight = count <= pointee.total &- available
    if isRight, pointee.waiters.first != nil {
      leaveLock(hold, granting: count)
    } else {
      if isRight { pointee.free.store(available &+ count, ordering: .relaxed) }
      pointee.lock.unlock(hold)
    }
    return isRight
  }
}
