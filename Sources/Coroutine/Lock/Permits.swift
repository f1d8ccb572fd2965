public import Synchronization

// A number of permits that are granted strictly first come, first served. Every lock of this folder is made of it: a
// mutex has one permit, a semaphore as many as its limit; a reader of a read-write lock takes one, a writer all.
//
//   word = available << 1 | CONTENDED
//
//                       wait, under the lock: not enough permits, or waiters ahead
//   CONTENDED clear  ------------------------------------------------------->  CONTENDED set
//   word changes by       <----------------------------------------------       word changes under the lock only
//   compare-and-swap        give or withdraw, under the lock, with an empty queue afterwards
//
// Invariants
//  1. While CONTENDED is clear, no waiter is queued, and the word changes by compare-and-swap only: a take and a give
//     are one each.
//  2. While CONTENDED is set, the word changes under `lock` only. Every path without the lock checks the bit in the
//     same compare-and-swap by which it changes the word, so nothing overtakes the queued waiters.
//  3. While the lock is free, the first waiter, if its wait can still be claimed, wants more than is available: a
//     thread that adds permits, or unlinks a waiter, grants what can be had before it leaves the lock. A select unlinks
//     its own waiters, and grants right afterwards (Lock+Select.swift).
//  4. All waiters are ValueWaiters; the storage is a UInt, the number of permits wanted.
//  5. 0 <= available <= total. If no permit is given that was not taken, available + held = total; a semaphore for
//     signalling starts with fewer than total. A give that would exceed total is refused, so no count overflows.
//
// Races
//   grant against cancellation   The claim of the wait decides (Waiter.swift), and permits leave `available` only after
//                                a successful claim. Cancellation first: the claim fails, or is refused because the job
//                                is cancelled already (docs/evolution/0003); the granting thread has lost nothing and
//                                tries the next waiter. Grant first: the waiter owns the permits and returns with them;
//                                its next suspension throws the cancellation error.
//   cancelled waiter against     A waiter that withdraws may have been ahead of waiters that want less. It unlinks
//   those behind it              itself and grants, in one critical section, so the waiters behind it advance (3).
//   give against a new waiter    A new waiter sets CONTENDED by a compare-and-swap from the word in which it saw too
//                                little. An earlier give has changed the word, so the waiter tries again; a later give
//                                fails its compare-and-swap and takes the lock, under which it finds the waiter queued.

@usableFromInline
struct Permits: ~Copyable {
  /// ThreadSanitizer records an inout access to any field at the address of the struct, so no field in use may be
  /// there.
  @usableFromInline let unused: UInt = 0
  @usableFromInline let word: Shared<Atomic<UInt>>
  // Not shared: every way to the lock leads over the word.
  @usableFromInline let lock = SpinLock()
  // Not shared: only deinits and dumps read it. It takes a byte that the alignment of the next field leaves unused.
  let isNamed = Atomic(false)
  /// Whether the object that contains the permits is the mutex of a Once.
  var isOfOnce = false
  /// Accessed under the lock.
  @usableFromInline var waiters = WaitQueue()
  /// The address of `waiters`, for selects: taking the address is an access, which only the holder of the lock may
  /// make.
  var queue: UnsafeMutablePointer<WaitQueue>?
  @usableFromInline let total: UInt

  @usableFromInline
  init(_ total: UInt) { self.init(total, limit: total) }

  /// Creates `available` permits, with `limit` as the maximum.
  init(_ available: UInt, limit: UInt) {
    word = Shared(Atomic(available << 1))
    total = limit
  }
}

/// Accessed through its address only, one field at a time (see ``CompletionRef``).
@usableFromInline typealias PermitsRef = UnsafeMutablePointer<Permits>

extension UnsafeMutablePointer where Pointee == Permits {
  /// Prepares permits that are stored in an object, once, at its creation.
  ///
  /// `address` is the address at which the object accesses them.
  init(_ storage: inout Permits, at address: PermitsRef) {
    self = withUnsafeMutablePointer(to: &storage) { $0 }
    checkAddress(address, of: &storage)
    pointee.queue = withUnsafeMutablePointer(to: &pointee.waiters) { $0 }
  }

  @inlinable var available: UInt { pointee.word.touched.load(ordering: .acquiring) >> 1 }

  /// The same, for a dump.
  var availableInDump: UInt { pointee.word.known.load(ordering: .relaxed) >> 1 }

  /// Takes `count` permits if they are available and nothing waits; for a caller that has begun to wait for them.
  ///
  /// One compare-and-swap.
  @inlinable @inline(__always)
  func takeAtOnce(_ count: UInt) -> Bool {
    var word = pointee.word.known.load(ordering: .relaxed)
    while word & 1 == 0, word >> 1 >= count {
      let (isTaken, seen) = pointee.word.known.compareExchange(
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

  /// Takes all `total` permits if they are available and nothing waits.
  ///
  /// takeAtOnce without the load before it: the word is known. For a caller that has begun to wait for them.
  @inlinable @inline(__always)
  func takeAll(_ total: UInt) -> Bool {
    pointee.word.known.compareExchange(
      expected: total << 1,
      desired: 0,
      successOrdering: .acquiring,
      failureOrdering: .relaxed
    ).exchanged
  }

  /// Gives all `total` permits back, which the caller has taken; waiters get them first.
  ///
  /// A world knows the use: the caller has taken them.
  @inlinable @inline(__always)
  func giveAll(_ total: UInt) {
    let isGiven = pointee.word.known.compareExchange(
      expected: 0,
      desired: total << 1,
      successOrdering: .releasing,
      failureOrdering: .relaxed
    ).exchanged
    if !isGiven { _ = giveContended(total) }
  }

  /// Takes permits if they are available and nothing waits, also if CONTENDED is left over from a waiter that has gone.
  ///
  /// Any thread. Fails for no other reason: changes by other threads only make it try again.
  @usableFromInline
  func take(_ count: UInt) -> Bool {
    pointee.word.touch()
    while true {
      if takeAtOnce(count) { return true }
      let word = pointee.word.known.load(ordering: .relaxed)
      if word & 1 == 0 {
        // Another thread may have cleared the bit, or given permits, since takeAtOnce failed.
        if word >> 1 >= count { continue }
        return false
      }
      pointee.lock.lock()
      let isContended = pointee.word.known.load(ordering: .relaxed) & 1 != 0
      let isTaken = isContended && takeOrContend(count)
      pointee.lock.unlock()
      if isContended { return isTaken }
    }
  }

  /// Takes permits under the lock, or sets CONTENDED, so that the word does not change until the lock is left.
  @usableFromInline
  func takeOrContend(_ count: UInt) -> Bool {
    let hasWaiters = hasWaiters
    var word = pointee.word.known.load(ordering: .relaxed)
    while true {
      let canTake = !hasWaiters && word >> 1 >= count
      if !canTake, word & 1 != 0 { return false }
      let desired = canTake ? (word & ~1) &- count << 1 : word | 1
      let (isDone, seen) = pointee.word.known.compareExchange(
        expected: word,
        desired: desired,
        successOrdering: .acquiring,
        failureOrdering: .relaxed
      )
      if isDone { return canTake }
      word = seen
    }
  }

  /// Whether a coroutine waits; called under the lock.
  ///
  /// First unlinks the waiters at the front whose waits have ended for another reason, and that have not unlinked
  /// themselves yet: they wait no more. They still grant what those behind them can have, when they withdraw.
  private var hasWaiters: Bool {
    while let waiter = pointee.waiters.first {
      guard let job = waiter.pointee.job, !job.isWaiting(waiter.pointee.epoch) else { return true }
      pointee.waiters.remove(waiter)
    }
    return false
  }

  /// Gives `count` permits back; waiters get them first.
  ///
  /// Returns false, and changes nothing, if there would be more than the total. Any thread.
  @inlinable @inline(__always)
  func give(_ count: UInt) -> Bool {
    var word = pointee.word.touched.load(ordering: .relaxed)
    while word & 1 == 0 {
      guard count <= pointee.total &- word >> 1 else { return false }
      let (isGiven, seen) = pointee.word.known.compareExchange(
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

// MARK: - Waiting and granting

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
