public import Synchronization

// A number of permits that are handed out strictly in the order of asking: what every lock of this folder is made of. A mutex
// has one, a semaphore as many as its limit says; of a read-write lock a reader takes one and a writer all.
//
//   word = available << 1 | CONTENDED
//
//                       wait, under the lock: nothing for me here and now
//   CONTENDED clear  ------------------------------------------------------->  CONTENDED set
//   word changes by       <----------------------------------------------       word changes under the lock only
//   compare-and-swap        give or withdraw, under the lock, with an empty queue afterwards
//
// Invariants
//  1. While CONTENDED is clear nobody is queued, and the word changes by compare-and-swap only: taking and giving are one each.
//  2. While CONTENDED is set the word changes under `lock` only. Every way around the lock looks at the bit in the very
//     compare-and-swap by which it would change the word, so nobody overtakes those who are queued.
//  3. At rest (the lock is free) the first in the queue, if its wait can still be claimed, wants more than is available: whoever
//     adds permits, or takes a node out, hands out what can be had before it leaves the lock. A select, which unlinks its own
//     nodes, does so right afterwards (Lock+Select.swift).
//  4. All nodes are SlotNodes; the slot is a UInt, how many permits are wanted.
//  5. 0 <= available <= total. Where nothing is given that was not taken, available + what is held = total; a semaphore
//     that signals begins with fewer than total. Give refuses what would exceed total, so no count overflows.
//
// Who wins a race
//   grant against cancellation   The claim of the wait decides (Waiter.swift), and permits leave `available` only after a claim
//                                has succeeded. Cancellation first: the claim fails, or is refused because the job is cancelled
//                                already (docs/evolution/0003); the granter has lost nothing and goes on to the next in the
//                                queue. Grant first: the waiter owns the permits and returns with them, and the cancellation is
//                                seen at its next suspension.
//   cancelled waiter against     A waiter that gives up may have stood in front of others who want less. It unlinks itself and
//   those behind it              grants, in one critical section, so those behind it advance (3).
//   give against a new waiter    A new waiter sets CONTENDED by a compare-and-swap from the word in which it saw too little. A
//                                give that came in between has changed the word, and the waiter looks again; a give that comes
//                                later fails its compare-and-swap and takes the lock, under which it finds the waiter queued.

@usableFromInline
struct Permits: ~Copyable {
  /// ThreadSanitizer notes an inout access to any field at the address of the whole, where nothing else must be used.
  @usableFromInline let unused: UInt = 0
  @usableFromInline let word: Atomic<UInt>
  @usableFromInline let lock = SpinLock()
  /// Under the lock.
  @usableFromInline var waiters = WaitQueue()
  /// Where `waiters` lies, for selects: to take its address is an access to it, which only who has the lock may make.
  var queue: UnsafeMutablePointer<WaitQueue>?
  @usableFromInline let total: UInt

  @usableFromInline
  init(_ total: UInt) { self.init(total, limit: total) }

  /// `available` permits at first, and `limit` at most.
  init(_ available: UInt, limit: UInt) {
    word = Atomic(available << 1)
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

  @inlinable var available: UInt { pointee.word.load(ordering: .acquiring) >> 1 }

  /// Takes `count` permits if they are there and nobody waits.
  ///
  /// One compare-and-swap.
  @inlinable @inline(__always)
  func takeAtOnce(_ count: UInt) -> Bool {
    var word = pointee.word.load(ordering: .relaxed)
    while word & 1 == 0, word >> 1 >= count {
      let (isTaken, seen) = pointee.word.compareExchange(
        expected: word,
        desired: word &- count << 1,
        successOrdering: .acquiring,
        failureOrdering: .relaxed
      )
      if isTaken { return true }
      word = seen
    }
    return false
  }

  /// As takeAtOnce, also where CONTENDED is left over from a waiter that has gone.
  ///
  /// Any thread.
  @usableFromInline
  func take(_ count: UInt) -> Bool {
    if takeAtOnce(count) { return true }
    guard pointee.word.load(ordering: .relaxed) & 1 != 0 else { return false }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    return pointee.waiters.first == nil && takeOrContend(count)
  }

  /// Under the lock: takes, or sets CONTENDED, so that the word stays as it is until the lock is left.
  @usableFromInline
  func takeOrContend(_ count: UInt) -> Bool {
    var word = pointee.word.load(ordering: .relaxed)
    while true {
      let canTake = pointee.waiters.first == nil && word >> 1 >= count
      if !canTake, word & 1 != 0 { return false }
      let desired = canTake ? (word & ~1) &- count << 1 : word | 1
      let (isDone, seen) = pointee.word.compareExchange(
        expected: word,
        desired: desired,
        successOrdering: .acquiring,
        failureOrdering: .relaxed
      )
      if isDone { return canTake }
      word = seen
    }
  }

  /// Gives `count` permits back, to those who wait first.
  ///
  /// Any thread. False: that would be more than there are in total, and nothing has changed.
  @inlinable @inline(__always)
  func give(_ count: UInt) -> Bool {
    var word = pointee.word.load(ordering: .relaxed)
    while word & 1 == 0 {
      guard count <= pointee.total &- word >> 1 else { return false }
      let (isGiven, seen) = pointee.word.compareExchange(
        expected: word,
        desired: word &+ count << 1,
        successOrdering: .releasing,
        failureOrdering: .relaxed
      )
      if isGiven { return true }
      word = seen
    }
    return giveContended(count)
  }
}
