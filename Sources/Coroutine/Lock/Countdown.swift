public import Synchronization

// A count that coroutines wait on until it is zero. Wait groups and latches are made of it.
//
//   word = count << 1 | AWAITED
//
//   AWAITED clear   no waiter is queued; the count changes by compare-and-swap only
//   AWAITED set     waiters may be queued; the count changes under `lock` only
//
//   clear --a waiter finds the count above zero, under the lock--> set
//   set --the count becomes zero, or the last waiter withdraws, under the lock--> clear
//
// Invariants
//  1. Waiters are queued only while the count is above zero: queueing happens under the lock, after AWAITED was set by
//     a compare-and-swap from a word with a count above zero, and from then on the count changes under the lock.
//  2. The thread that brings the count to zero empties the queue in the same critical section. So exactly the waiters
//     of that moment are released: a count that rises again at once keeps none of them, and releases no later waiter.
//
// Races
//   zero against cancellation    The claim of the wait decides. A claim that fails, or is refused because the waiter is
//                                cancelled, costs nothing: there is nothing to hand over.
//   zero against a new waiter    The waiter sets AWAITED by a compare-and-swap from the word in which it saw a count.
//                                If zero came before, it fails, and the waiter sees zero. If zero comes after, it needs
//                                the lock, under which it finds the waiter.

@usableFromInline
struct Countdown: ~Copyable {
  /// ThreadSanitizer records an inout access to any field at the address of the struct, so no field in use may be
  /// there.
  @usableFromInline let unused: UInt = 0
  @usableFromInline let word: Shared<Atomic<UInt>>
  // Not shared: every way to the lock leads over the word.
  @usableFromInline let lock = SpinLock()
  // Not shared: only deinits and dumps read it. It takes a byte that the alignment of the next field leaves unused.
  let isNamed = Atomic(false)
  /// Accessed under the lock.
  @usableFromInline var waiters = WaitQueue()

  static var most: UInt { UInt.max >> 2 }

  init(_ count: UInt) { word = Shared(Atomic(count << 1)) }
}

/// Accessed through its address only, one field at a time (see ``CompletionRef``).
@usableFromInline typealias CountdownRef = UnsafeMutablePointer<Countdown>

extension UnsafeMutablePointer where Pointee == Countdown {
  @inlinable var count: UInt { pointee.word.touched.load(ordering: .acquiring) >> 1 }

  /// Adds to the count.
  ///
  /// Returns false, and changes nothing, if the count would be too large. Any thread.
  @usableFromInline
  func raise(by difference: UInt) -> Bool {
    change { difference > Countdown.most &- $0 ? nil : $0 &+ difference }
  }

  /// Subtracts from the count, and at zero wakes all waiters.
  ///
  /// Returns false, and changes nothing, if the count would be negative. Any thread.
  @usableFromInline
  func lower(by difference: UInt) -> Bool {
    change { difference > $0 ? nil : $0 &- difference }
  }

  @inline(__always)
  private func change(_ next: (UInt) -> UInt?) -> Bool {
    var word = pointee.word.touched.load(ordering: .relaxed)
    while true {
      if word & 1 != 0 {
        pointee.lock.lock()
        word = pointee.word.known.load(ordering: .relaxed)
        if word & 1 != 0 { return changeAwaited(next(word >> 1)) }
        pointee.lock.unlock()
      }
      guard let count = next(word >> 1) else { return false }
      // Releasing: a thread that finds zero sees all work done before. Acquiring: a thread that lowers further passes
      // that on.
      let (isChanged, seen) = pointee.word.known.compareExchange(
        expected: word,
        desired: count << 1,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .relaxed
      )
      if isChanged { return true }
      word = seen
    }
  }

  /// Changes the count under the lock, and leaves the lock.
  private func changeAwaited(_ count: UInt?) -> Bool {
    var woken = JobQueue()
    if let count {
      if count == 0 { pointee.waiters.claimAll(into: &woken) }
      pointee.word.known.store(count == 0 ? 0 : count << 1 | 1, ordering: .releasing)
    }
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
    return count != nil
  }

  /// The count, for a dump.
  var countInDump: UInt { pointee.word.known.load(ordering: .relaxed) >> 1 }
  var lockAddress: UnsafePointer<SpinLock> { withUnsafePointer(to: pointee.lock) { $0 } }

  /// Gives the object that contains the count a name for dumps.
  func setName(_ name: String, of object: AnyObject) {
    ObjectNames.set(name, of: object)
    pointee.isNamed.store(true, ordering: .relaxed)
  }

  /// The first action of the deinit of the object that contains the count.
  func letFinish(_ object: AnyObject) {
    Inspection.letFinish(object)
    if pointee.isNamed.load(ordering: .relaxed) { ObjectNames.remove(object) }
  }

  /// Suspends the running job until the count is zero.
  ///
  /// Throws the cancellation error. `source` is the object that contains the count.
  func wait(of source: some Inspectable) throws {
    let (carrier, job) = try Carrier.beginWaiting(for: pointee.word.id)
    if pointee.word.known.load(ordering: .acquiring) >> 1 == 0 { return }
    pointee.lock.lock()
    guard isAwaited() else { return pointee.lock.unlock() }
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .group, for: source) { epoch in
        pointee.waiters.append(waiter, epoch)
        pointee.lock.unlock()
      } withdraw: {
        withdraw(waiter)
      }
    }
  }

  /// Sets AWAITED, under the lock.
  ///
  /// Returns false if the count is zero.
  private func isAwaited() -> Bool {
    var word = pointee.word.known.load(ordering: .acquiring)
    while word > 1 {
      if word & 1 != 0 { return true }
      let (isSet, seen) = pointee.word.known.compareExchange(expected: word, desired: word | 1, ordering: .acquiring)
      if isSet { return true }
      word = seen
    }
    return false
  }

  private func withdraw(_ waiter: UnsafeMutablePointer<Waiter>) {
    pointee.lock.lock()
    pointee.waiters.remove(waiter)
    let word = pointee.word.known.load(ordering: .relaxed)
    if word & 1 != 0, pointee.waiters.first == nil { pointee.word.known.store(word & ~1, ordering: .releasing) }
    pointee.lock.unlock()
  }
}

// MARK: - Latch

/// A one-time barrier: it opens when it has been counted down to zero, and stays open.
///
/// ```swift
/// let ready = Latch(workers.count)      // each worker: ready.countDown()
/// try ready.wait()
/// ```
///
/// Unlike a ``WaitGroup`` it cannot be counted up, so a late waiter finds it open.
public final class Latch: @unchecked Sendable {
  // Sound because the storage guards itself; it is accessed through its address only, as the first property.
  //
  // States and races: see above; the count only falls.
  @exclusivity(unchecked) private var storage: Countdown

  var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a latch that opens after `count` counts; with 0 it is open at once.
  ///
  /// A negative number traps.
  public init(_ count: Int) {
    if count < 0 { misuse("A Latch cannot be counted down from \(count): give it 0 or more.") }
    if count > Countdown.most { misuse("A Latch cannot be counted down from \(count): at most Int.max / 2.") }
    storage = Countdown(UInt(count))
    checkAddress(countdown, of: &storage)
  }

  deinit { countdown.letFinish(self) }

  /// Gives the latch a name, which dumps show: `Latch "workers ready" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The latch.
  @discardableResult
  public func named(_ name: String) -> Latch {
    countdown.setName(name, of: self)
    return self
  }

  /// Counts down; the last count opens the latch and wakes all waiters.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if the count would be negative, or if `count` is negative.
  public func countDown(_ count: Int = 1) {
    if count < 0 { misuse("A Latch cannot count down by \(count): give it 0 or more.") }
    if !countdown.lower(by: UInt(count)) {
      misuse("A Latch was counted down by \(count), but not so many were left: its count would be negative.")
    }
  }

  /// Whether the latch is open; everything done before its last count is then visible.
  public var isOpen: Bool { countdown.count == 0 }

  /// Waits until the latch is open; returns at once if it is.
  ///
  /// Everything done before the last count is visible afterwards. If the coroutine is cancelled, before or during the
  /// wait, it throws.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func wait() throws { try countdown.wait(of: self) }
}

// MARK: - Dumps

extension Latch: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { countdown.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(countdown.countInDump) left" }
  func verb(of queue: UInt?) -> String { "wait for" }
}

// MARK: - WaitGroup

/// Counts pieces of work, and lets coroutines wait until all have ended.
///
/// ```swift
/// let group = WaitGroup()
/// for page in pages {
///   group.add()
///   co_launch { defer { group.done() }; try fetch(page) }
/// }
/// try group.wait()
/// ```
///
/// Any number of coroutines may wait; when the count becomes zero, all of them continue, in the order in which they
/// started to wait. The count may rise again afterwards. Add before you launch: a group to which no work was added yet
/// has no work. If the work can fail, or should be cancelled together with the waiting coroutine, prefer `co_scope`.
public final class WaitGroup: @unchecked Sendable {
  // Sound because the storage guards itself; it is accessed through its address only, as the first property.
  //
  // States and races: see above.
  @exclusivity(unchecked) private var storage = Countdown(0)

  var countdown: CountdownRef { propertyAddress(in: self, at: 0, as: Countdown.self) }

  /// Creates a group without work.
  public init() { checkAddress(countdown, of: &storage) }

  deinit { countdown.letFinish(self) }

  /// Gives the group a name, which dumps show: `WaitGroup "pages" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The group.
  @discardableResult
  public func named(_ name: String) -> WaitGroup {
    countdown.setName(name, of: self)
    return self
  }

  /// Adds `count` pieces of work.
  ///
  /// Never suspends; any thread, coroutine or not. A negative number traps.
  public func add(_ count: Int = 1) {
    if count < 0 { misuse("A WaitGroup cannot add \(count): call done() for each piece of work that has ended.") }
    if !countdown.raise(by: UInt(count)) { misuse("A WaitGroup cannot count \(count) pieces of work more.") }
  }

  /// Ends one piece of work; the last one wakes all waiters.
  ///
  /// Never suspends; any thread, coroutine or not. Traps if there is no work left.
  public func done() {
    if !countdown.lower(by: 1) { misuse("A WaitGroup got more done() than add(): its count would be negative.") }
  }

  /// Waits until no work is left; returns at once if there is none.
  ///
  /// Everything done before the last `done()` is visible afterwards. If the coroutine is cancelled, before or during
  /// the wait, it throws and does not affect the work.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func wait() throws { try countdown.wait(of: self) }
}

// MARK: - Dumps

extension WaitGroup: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { countdown.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), \(countdown.countInDump) left" }
  func verb(of queue: UInt?) -> String { "wait for" }
}
