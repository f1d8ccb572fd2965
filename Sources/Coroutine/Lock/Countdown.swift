public import Synchronization

// A count that coroutines wait for to become zero: what a wait group and a latch are made of.
//
//   word = count << 1 | AWAITED
//
//   AWAITED clear   nobody is queued; the count changes by compare-and-swap only
//   AWAITED set     somebody may be queued; the count changes under `lock` only
//
//   clear --a waiter finds the count above zero, under the lock--> set
//   set --the count becomes zero, or the last waiter gives up, under the lock--> clear
//
// Invariants
//  1. Waiters are queued only while the count is above zero: queueing happens under the lock after AWAITED was set by a
//     compare-and-swap from a word with a count above zero, and from then on the count changes under the lock.
//  2. Whoever brings the count to zero empties the queue in the same critical section, so exactly those who waited at that
//     moment are released: a count that rises again at once holds nobody who had waited before, and lets nobody through who
//     came after.
//
// Who wins a race
//   zero against cancellation    The claim of the wait decides. A claim that fails, or is refused because the waiter is
//                                cancelled, costs nothing: there is nothing to hand over.
//   zero against a new waiter    The waiter sets AWAITED by a compare-and-swap from the word in which it saw a count. Zero came
//                                before: it fails, and the waiter sees zero. Zero comes after: it needs the lock, and finds it.

@usableFromInline
struct Countdown: ~Copyable {
  /// ThreadSanitizer notes an inout access to any field at the address of the whole, where nothing else must be used.
  @usableFromInline let unused: UInt = 0
  @usableFromInline let word: Atomic<UInt>
  @usableFromInline let lock = SpinLock()
  /// Under the lock.
  @usableFromInline var waiters = WaitQueue()

  static var most: UInt { UInt.max >> 2 }

  init(_ count: UInt) { word = Atomic(count << 1) }
}

/// Used through its address only, one field at a time (see ``CompletionRef``).
@usableFromInline typealias CountdownRef = UnsafeMutablePointer<Countdown>

extension UnsafeMutablePointer where Pointee == Countdown {
  @inlinable var count: UInt { pointee.word.load(ordering: .acquiring) >> 1 }

  /// Adds to the count.
  ///
  /// False: too many, nothing has changed. Any thread.
  @usableFromInline
  func raise(by difference: UInt) -> Bool {
    change { difference > Countdown.most &- $0 ? nil : $0 &+ difference }
  }

  /// Takes from the count, and at zero wakes everyone who waits.
  ///
  /// False: there are not so many, nothing has changed. Any thread.
  @usableFromInline
  func lower(by difference: UInt) -> Bool {
    change { difference > $0 ? nil : $0 &- difference }
  }

  @inline(__always)
  private func change(_ next: (UInt) -> UInt?) -> Bool {
    var word = pointee.word.load(ordering: .relaxed)
    while true {
      if word & 1 != 0 {
        pointee.lock.lock()
        word = pointee.word.load(ordering: .relaxed)
        if word & 1 != 0 { return changeAwaited(next(word >> 1)) }
        pointee.lock.unlock()
      }
      guard let count = next(word >> 1) else { return false }
      // Releasing: what was done before is seen by who finds zero. Acquiring: it is passed on by who lowers further.
      let (isChanged, seen) = pointee.word.compareExchange(
        expected: word,
        desired: count << 1,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .relaxed
      )
      if isChanged { return true }
      word = seen
    }
  }

  /// Under the lock, which it leaves.
  private func changeAwaited(_ count: UInt?) -> Bool {
    var woken = JobQueue()
    if let count {
      if count == 0 {
        while let waiter = pointee.waiters.popFirst() {
          if let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
        }
      }
      pointee.word.store(count == 0 ? 0 : count << 1 | 1, ordering: .releasing)
    }
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
    return count != nil
  }

  /// Suspends the running job until the count is zero.
  ///
  /// Throws what cancellation throws.
  @usableFromInline
  func wait() throws {
    let (carrier, job) = try Carrier.beginWaiting()
    if count == 0 { return }
    pointee.lock.lock()
    guard isAwaited() else { return pointee.lock.unlock() }
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .group) { epoch in
        pointee.waiters.append(waiter, epoch)
        pointee.lock.unlock()
      } withdraw: {
        withdraw(waiter)
      }
    }
  }

  /// Under the lock: sets AWAITED.
  ///
  /// False: the count is zero.
  private func isAwaited() -> Bool {
    var word = pointee.word.load(ordering: .acquiring)
    while word > 1 {
      if word & 1 != 0 { return true }
      let (isSet, seen) = pointee.word.compareExchange(expected: word, desired: word | 1, ordering: .acquiring)
      if isSet { return true }
      word = seen
    }
    return false
  }

  private func withdraw(_ waiter: UnsafeMutablePointer<Waiter>) {
    pointee.lock.lock()
    pointee.waiters.remove(waiter)
    let word = pointee.word.load(ordering: .relaxed)
    if word & 1 != 0, pointee.waiters.first == nil { pointee.word.store(word & ~1, ordering: .releasing) }
    pointee.lock.unlock()
  }
}
