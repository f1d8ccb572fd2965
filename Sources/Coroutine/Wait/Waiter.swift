public import Synchronization

// One suspension of one job ends exactly once.
//
// The word `JobRecord.wait` is an epoch and a state:   (epoch << 8) | state
//
//      beginWait (own carrier)           claim (any thread, one compare-and-swap)
//   0 RUNNING ------------> 1 WAITING ----------------------------------------> r CLAIMED, r >= 2 is the reason
//      ^   epoch + 1                                                                  |
//      +------------------------------------------------------------------------------+
//                       endWait (own carrier, after the job has been resumed)
//
// A yield stays in RUNNING, with the next epoch (Carrier.giveWay).
//
// Invariants
//  1. The WaitEpoch that beginWait returns is the word's WAITING value. Epochs never repeat, so it identifies one
//     suspension for ever, and a claim with an old epoch fails instead of ending a later wait.
//  2. A claim changes WAITING to CLAIMED by compare-and-swap. Of all racing threads (value, close, timer, cancellation,
//     another select case) exactly one wins. The others keep their value and do not access the job again. If a
//     cancellation loses to a value, it changes nothing (JobRecord.swift): `WaitQueue.park` returns the value's reason,
//     the caller has the value, and the next suspension point throws.
//  3. The winner, and only the winner, makes the job ready, once.
//  4. A Waiter is on the waiting job's stack. It is linked and unlinked under its source's lock, a claim through it is
//     made under that lock, and the job takes the lock to unlink it before its frame ends. So a thread that sees a
//     waiter under the lock sees live memory, and the waiter's job has not finished.
//
// Why a job may be woken before it has parked. A wake-up adds the job to its scheduler's ready queue (on that
// scheduler's own carrier) or inbox (from elsewhere). Only the scheduler reads both, between two switches, and until
// the job's switch is complete, the scheduler runs the job itself. Two cases differ, and have their own argument: other
// workers may steal from a worker's ready queue (jobs enter it only after their switch, Carrier.leaving), and an
// immediate start runs a job outside its scheduler (JobRecord.swift).

/// The reason for which a wait ended.
///
/// A select uses the values from `firstCase` on for its cases.
@usableFromInline
enum WakeReason {
  /// The waiter belongs to a promise that the queue does not own (AnyPromise.swift), and no job waits.
  @usableFromInline static let unowned: UInt8 = 1
  @usableFromInline static let delivered: UInt8 = 2
  @usableFromInline static let cancelled: UInt8 = 3
  @usableFromInline static let timer: UInt8 = 4
  @usableFromInline static let firstCase: UInt8 = 8
}

/// Identifies one suspension of one job.
@usableFromInline
struct WaitEpoch: Equatable {
  @usableFromInline let word: UInt64
  @inlinable init(word: UInt64) { self.word = word }

  /// The epoch of no suspension.
  @inlinable static var none: WaitEpoch { WaitEpoch(word: 0) }
  /// Whether it differs from `none`.
  @inlinable var isNamed: Bool { word != 0 }
}

// Operations on a record are methods of its pointer, and access one field at a time. A `mutating` method would access
// the whole record for its duration, while other threads use other fields.
extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Begins a suspension.
  ///
  /// Called on the job's own carrier. Releasing, for the interrupt that reads the word without a lock: a thread that
  /// sees the job waiting also sees the scheduler that it waits on.
  ///
  /// `source`: what dumps may report (JobRecord.waitSource). Stored first, and releasing: a thread that reads it, and
  /// then reads an older word again, would have seen that the older wait has ended.
  @inlinable @inline(__always)
  func beginWait(_ kind: WaitKind, for source: UInt = 0) -> WaitEpoch {
    let word = ((pointee.wait.load(ordering: .relaxed) | 0xFF) &+ 1) | 1
    pointee.waitSource.store(source, ordering: .releasing)
    pointee.waitKind.store(kind.rawValue, ordering: .relaxed)
    pointee.wait.store(word, ordering: .releasing)
    return WaitEpoch(word: word)
  }

  /// Ends a suspension for `reason`.
  ///
  /// Returns true if the caller has won and must wake the job. Any thread; the caller ensures that the job does not
  /// finish meanwhile, usually by the source's lock.
  ///
  /// A job that was cancelled before the delivery does not get the value, even if its interrupt has not arrived yet:
  /// the interrupt will claim the wait. So if one thread cancels and then delivers, the cancellation wins.
  @inlinable @inline(__always)
  func claim(_ epoch: WaitEpoch, _ reason: UInt8) -> Bool {
    let flags = pointee.flags.load(ordering: .relaxed)
    if flags & (JobFlags.cancelled | JobFlags.shielded) == JobFlags.cancelled, reason != WakeReason.cancelled {
      return false
    }
    return pointee.wait.compareExchange(
      expected: epoch.word,
      desired: (epoch.word & ~0xFF) | UInt64(reason),
      successOrdering: .acquiringAndReleasing,
      failureOrdering: .relaxed
    ).exchanged
  }

  /// Whether a `claim` for a value would succeed now; called under the lock that claims take.
  func isWaiting(_ epoch: WaitEpoch) -> Bool {
    let flags = pointee.flags.load(ordering: .relaxed)
    return flags & (JobFlags.cancelled | JobFlags.shielded) != JobFlags.cancelled
      && pointee.wait.load(ordering: .relaxed) == epoch.word
  }

  /// Begins a suspension whose source is an object.
  @inlinable @inline(__always)
  func beginWait(_ kind: WaitKind, for source: AnyObject) -> WaitEpoch {
    beginWait(kind, for: UInt(bitPattern: Unmanaged.passUnretained(source).toOpaque()))
  }

  /// Ends the wait on the job's own carrier, and returns the reason.
  @inlinable @inline(__always)
  func endWait() -> UInt8 {
    let word = pointee.wait.load(ordering: .acquiring)
    pointee.wait.store(word & ~0xFF, ordering: .relaxed)
    return UInt8(truncatingIfNeeded: word)
  }
}

/// One entry in a wait queue: one suspension, or one callback.
@usableFromInline
struct Waiter {
  @usableFromInline var next: UnsafeMutablePointer<Waiter>?
  @usableFromInline var previous: UnsafeMutablePointer<Waiter>?
  @usableFromInline var isLinked = false
  @usableFromInline var reason = WakeReason.delivered
  /// The number that `notify` gets.
  ///
  /// It lies in bytes that the alignment of the next field would leave unused.
  @usableFromInline var index: Int32 = 0
  @usableFromInline var epoch = WaitEpoch(word: 0)
  /// The waiting job; nil if a callback waits or `notify` is set.
  @usableFromInline var job: JobRef?
  /// The function that the settling thread calls with `context`, outside every lock.
  @usableFromInline var notify: Notification?
  /// The argument of `notify`; in a callback's waiter the callback object; in a job's waiter data of the source.
  @usableFromInline var context: UnsafeMutableRawPointer?

  /// Receives the waiter's context, and its index, the waiter's number among the waiters with that context.
  @usableFromInline typealias Notification = @convention(c) (_ context: UnsafeMutableRawPointer, _ index: Int) -> Void

  /// Creates the waiter of a job whose wait has not begun; queueing sets the epoch.
  @inlinable
  init(job: JobRef) { self.job = job }

  @inlinable
  init(callback: Unmanaged<WaitCallback>) { context = callback.toOpaque() }

  /// The waiting callback of a waiter that has neither a job nor `notify`.
  @inlinable var callback: Unmanaged<WaitCallback> { .fromOpaque(context.unsafelyUnwrapped) }

  /// The waiting callback; nil if a job or a promise waits.
  var callbackIfAny: WaitCallback? { job == nil && notify == nil ? callback.takeUnretainedValue() : nil }

  /// Creates a waiter that notifies a function; the context is set before the waiter is linked.
  init(notify: @escaping Notification, context: UnsafeMutableRawPointer?, index: Int) {
    self.notify = notify
    self.context = context
    self.index = Int32(index)
  }

  /// Whether the queue owns no reference to the context, a promise.
  ///
  /// Set before the waiter is linked.
  var isUnowned: Bool {
    get { reason == WakeReason.unowned }
    set { reason = newValue ? WakeReason.unowned : WakeReason.delivered }
  }
}

/// A queued waiter that is not a job: a handler, a continuation, a thread.
///
/// The source owns it while it is linked.
@usableFromInline
class WaitCallback: @unchecked Sendable {
  // Sound because the waiter is accessed only under the lock of the source that it is linked in.
  @usableFromInline let waiter: UnsafeMutablePointer<Waiter>
  /// Whether it observes the outcome, so that a failure is not reported as unhandled; or its `fire` marks the outcome
  /// as observed, because its consumer may be gone.
  @usableFromInline enum Observes { case no, yes, byItself }
  /// Set before it is linked.
  @exclusivity(unchecked) final var observes = Observes.yes

  @usableFromInline
  init() {
    waiter = .allocate(capacity: 1)
    waiter.initialize(to: Waiter(callback: Unmanaged.passUnretained(self)))
  }

  deinit { waiter.deallocate() }

  /// Called once, outside every lock, when the awaited event has happened.
  @usableFromInline func fire() {}

  /// Whether `fire` runs code of users, or settles something that does.
  var isForeign: Bool { false }

  /// Whether `jobWillBeDropped` is to be called.
  var preparesDrop: Bool { false }

  /// Called outside every lock, perhaps twice, before a job that never runs is settled.
  ///
  /// It runs no code of users, and returns the part that does.
  func jobWillBeDropped() -> (@Sendable () -> Void)? { nil }
}

extension UnsafeMutablePointer<Waiter> {
  /// Wakes the waiting job, or calls the callback.
  ///
  /// The caller has claimed the wait and holds no lock.
  @inlinable @inline(__always)
  func wake() {
    if let job = pointee.job { Carrier.makeReady(job) } else { fireCallback() }
  }

  @usableFromInline @inline(never)
  func fireCallback() { pointee.callback.takeRetainedValue().fire() }
}

// MARK: - A waiter with room for a value

/// A waiter with the address of a value: an awaited or offered `Element?` in a channel, a number in a queue of permits.
///
/// The waiter comes first, so that a pointer to it is a pointer to the whole. Waiter and value are on the waiting
/// stack; a large value of a select is in memory of its own. Access:
///
///   waiter, isClosed   under the source's lock, or by the thread that has claimed the wait and not yet woken the job
///   storage            by its own job until the waiter is linked and after the job is woken; in between by the thread
///                      that has claimed the wait, and for reading by the holder of the lock
@usableFromInline
struct ValueWaiter {
  @usableFromInline var waiter: Waiter
  @usableFromInline var storage: UnsafeMutableRawPointer
  /// Whether a close has ended the wait, and not a value.
  @usableFromInline var isClosed = false

  @inlinable @inline(__always)
  init(_ waiter: Waiter, storage: UnsafeMutableRawPointer) {
    self.waiter = waiter
    self.storage = storage
  }
}

extension UnsafeMutablePointer<ValueWaiter> {
  /// The waiter, which is the first field.
  @inlinable
  var waiter: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }
}

extension UnsafeMutablePointer<Waiter> {
  /// The ValueWaiter of a waiter that a job has queued in a source whose waiters all have storage.
  @inlinable
  var valueWaiter: UnsafeMutablePointer<ValueWaiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: ValueWaiter.self) }
  }
}

// MARK: - The queue of a source, and the park

/// A queue of the waiters for one source, first in, first out.
///
/// All operations take constant time, and are called under the source's lock.
@usableFromInline
struct WaitQueue {
  @usableFromInline var first: UnsafeMutablePointer<Waiter>?
  @usableFromInline var last: UnsafeMutablePointer<Waiter>?

  @inlinable init() {}

  @inlinable @inline(__always)
  mutating func append(_ waiter: UnsafeMutablePointer<Waiter>) {
    waiter.pointee.isLinked = true
    waiter.pointee.next = nil
    waiter.pointee.previous = last
    if let last { last.pointee.next = waiter } else { first = waiter }
    last = waiter
  }

  /// Queues a job's waiter for the wait that has just begun.
  @inlinable @inline(__always)
  mutating func append(_ waiter: UnsafeMutablePointer<Waiter>, _ epoch: WaitEpoch) {
    waiter.pointee.epoch = epoch
    append(waiter)
  }

  @inlinable @inline(__always)
  mutating func remove(_ waiter: UnsafeMutablePointer<Waiter>) {
    guard waiter.pointee.isLinked else { return }
    waiter.pointee.isLinked = false
    if let previous = waiter.pointee.previous {
      previous.pointee.next = waiter.pointee.next
    } else {
      first = waiter.pointee.next
    }
    if let next = waiter.pointee.next {
      next.pointee.previous = waiter.pointee.previous
    } else {
      last = waiter.pointee.previous
    }
  }

  @inlinable @inline(__always)
  mutating func popFirst() -> UnsafeMutablePointer<Waiter>? {
    guard let waiter = first else { return nil }
    remove(waiter)
    return waiter
  }

  /// The first waiter for which `isWanted` is true, which stays in the queue.
  func first(where isWanted: (UnsafeMutablePointer<Waiter>) -> Bool) -> UnsafeMutablePointer<Waiter>? {
    var waiter = first
    while let current = waiter, !isWanted(current) { waiter = current.pointee.next }
    return waiter
  }
}

extension WaitQueue {
  /// Takes the first waiter whose wait can still be claimed, and claims it.
  ///
  /// Also unlinks waiters whose wait has ended for another reason, and that have not unlinked themselves yet.
  /// Called under the source's lock.
  @inlinable @inline(__always)
  mutating func claimFirst() -> UnsafeMutablePointer<Waiter>? {
    while let waiter = popFirst() {
      guard let job = waiter.pointee.job else {
        // A callback's waiter is linked as long as it waits. Reason 0 marks that it waits no longer.
        waiter.pointee.reason = 0
        return waiter
      }
      if job.claim(waiter.pointee.epoch, waiter.pointee.reason) { return waiter }
    }
    return nil
  }

  /// Takes the waiters, which are jobs, and appends those whose waits it has claimed.
  ///
  /// Called under the source's lock.
  mutating func claimAll(into woken: inout JobQueue) {
    while let job = claimFirst()?.pointee.job { woken.append(job) }
  }
}

extension WaitQueue {
  /// Suspends the running job until its wait ends.
  ///
  /// Every wait uses this function. A wait has these steps, in this order:
  ///
  ///  1. The caller takes the source's lock and checks the source. If it is ready already, no wait begins.
  ///  2. The wait begins. The epoch that `publish` gets names it.
  ///  3. `publish` makes the epoch known under the lock, usually in a waiter in a queue, and leaves the lock. From here
  ///     on any thread may claim the wait, even before the job has left its stack. The head of the file says why that
  ///     is harmless.
  ///  4. The job parks. It is resumed on its own scheduler, perhaps on another thread.
  ///  5. If a cancellation has claimed the wait, `withdraw` takes the lock and unlinks what `publish` has linked,
  ///     because no other thread has unlinked it. Then this function throws the cancellation's reason. In every other
  ///     case the thread that claimed the wait has unlinked it.
  ///
  /// - Returns: The reason for which the wait ended. It is never `cancelled`.
  ///
  /// It is inlined, as both closures are: each frame between the caller and the switch costs a mispredicted return.
  @inlinable @inline(__always) @discardableResult
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ kind: WaitKind,
    for source: UInt = 0,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    publish(job.beginWait(kind, for: source))
    let reason = Carrier.park(carrier, job)
    if reason != WakeReason.cancelled { return reason }
    withdraw()
    throw job.cancellation() ?? CancellationError()
  }
  /// Suspends the running job in a wait whose source is an object, as `park` above.
  @inlinable @inline(__always) @discardableResult
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ kind: WaitKind,
    for source: AnyObject,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    let address = UInt(bitPattern: Unmanaged.passUnretained(source).toOpaque())
    return try park(carrier, job, kind, for: address, publish: publish, withdraw: withdraw)
  }
}
