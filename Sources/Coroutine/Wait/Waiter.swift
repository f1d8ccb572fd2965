public import Synchronization

// One suspension of one job ends exactly once.
//
// The word `JobRecord.wait` is an epoch and a state:   (epoch << 8) | state
//
//      beginWait (own turn)              claim (anyone, one compare-and-swap)
//   0 RUNNING ------------> 1 WAITING ----------------------------------------> r CLAIMED, r >= 2 says by what
//      ^   epoch + 1                                                                  |
//      +------------------------------------------------------------------------------+
//                       endWait (own turn, after the job has run again)
//
// Invariants
//  1. The token that beginWait returns is the word's WAITING value; epochs never repeat, so a token names one suspension
//     for ever, and a claim with an old token fails instead of ending a later wait.
//  2. A claim moves WAITING to CLAIMED by compare-and-swap: of all that race (value, close, timer, cancellation, another
//     select case) one wins. Losers keep their value and touch the job no more.
//  3. The winner, and only the winner, makes the job ready, once.
//  4. A Waiter is on the waiting job's stack. It is linked and unlinked under its place's lock, a claim through it is made
//     under that lock, and the job takes the lock to unlink it before its frame goes: whoever sees a node under the lock
//     sees live memory, and the job behind it has not finished.
//
// Why a job that is woken before it has parked is harmless: waking means putting it into its scheduler's ready queue (on
// that scheduler's own turn) or inbox (from elsewhere). Both are looked at only between two switches of that scheduler,
// and until the job's switch is complete the scheduler's serial execution is the job itself. Two exceptions publish a job
// by other means and have their own argument: a worker's ready queue is open to thieves (jobs enter it only after their
// switch, AfterSwitch.requeue), and an immediate start runs a job outside of its scheduler (ImmediateStart.swift).

/// How a wait ended.
///
/// Select uses the values from `firstCase` on for its cases.
@usableFromInline
enum WakeReason {
  @usableFromInline static let delivered: UInt8 = 2
  @usableFromInline static let cancelled: UInt8 = 3
  @usableFromInline static let timer: UInt8 = 4
  @usableFromInline static let firstCase: UInt8 = 8
}

/// Names one suspension of one job.
@usableFromInline
struct WaitEpoch: Equatable {
  @usableFromInline let word: UInt64
  @inlinable init(word: UInt64) { self.word = word }
}

// Operations on a record are operations on its pointer, and touch one field at a time: a `mutating` method would claim the
// whole record for its length, while other threads use other fields of it.
extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Begins a suspension.
  ///
  /// Own turn. Releasing, for the interrupt that reads the word without a lock: who sees a job waiting sees it with the
  /// scheduler that it waits on.
  ///
  /// `source`: what dumps may know of it (JobRecord.waitSource). Stored first, and releasing: whoever reads it, and then reads
  /// an older word again, would have seen that the older wait has ended.
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
  /// Any thread; the caller holds whatever keeps the job from finishing. True: the caller won and must wake the job.
  ///
  /// A job that was cancelled before the value came loses the value, although its interrupt may still be on the way: it will
  /// arrive, and claim. So of a cancel and a delivery that one thread does in turn, the first wins.
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

  /// As beginWait, for a wait whose source is an object.
  @inlinable @inline(__always)
  func beginWait(_ kind: WaitKind, for source: AnyObject) -> WaitEpoch {
    beginWait(kind, for: UInt(bitPattern: Unmanaged.passUnretained(source).toOpaque()))
  }

  /// Back on its own turn after a suspension: why it ended.
  @inlinable @inline(__always)
  func endWait() -> UInt8 {
    let word = pointee.wait.load(ordering: .acquiring)
    pointee.wait.store(word & ~0xFF, ordering: .relaxed)
    return UInt8(truncatingIfNeeded: word)
  }
}

/// One place in which one suspension, or one callback, is queued.
@usableFromInline
struct Waiter {
  @usableFromInline var next: UnsafeMutablePointer<Waiter>?
  @usableFromInline var previous: UnsafeMutablePointer<Waiter>?
  @usableFromInline var isLinked = false
  @usableFromInline var reason = WakeReason.delivered
  @usableFromInline var epoch = WaitEpoch(word: 0)
  /// The waiting job, or nil if a callback waits or `notify` is set.
  @usableFromInline var job: JobRef?
  /// The settling thread calls it with `context`, outside of every lock.
  @usableFromInline var notify: Notification?
  /// What `notify` gets. Of a callback, which has no `notify`, the callback object.
  @usableFromInline var context: UnsafeMutableRawPointer?

  /// Gets the waiter's context, and its number among the waiters with that context.
  @usableFromInline typealias Notification = @convention(c) (_ context: UnsafeMutableRawPointer, _ index: Int) -> Void

  /// Of a job whose wait has not begun: it is queued with its epoch.
  @inlinable
  init(job: JobRef) { self.job = job }

  @inlinable
  init(callback: Unmanaged<WaitCallback>) { context = callback.toOpaque() }

  /// The callback that waits.
  ///
  /// Of a waiter that has neither a job nor `notify`.
  @inlinable var callback: Unmanaged<WaitCallback> { .fromOpaque(context.unsafelyUnwrapped) }

  /// It waits for no job, so the epoch's word is free to hold `index`.
  init(notify: @escaping Notification, context: UnsafeMutableRawPointer, index: Int) {
    self.notify = notify
    self.context = context
    epoch = WaitEpoch(word: UInt64(bitPattern: Int64(index)))
  }

  /// The number that the waiter was made with, for `notify`.
  var index: Int { Int(truncatingIfNeeded: epoch.word) }
}

/// What is queued in a place by anyone but a job: a handler, a continuation, a thread.
///
/// Owned by the place while linked.
@usableFromInline
class WaitCallback: @unchecked Sendable {
  // Sound because the node is touched only under the lock of the place that it is linked in.
  @usableFromInline let waiter: UnsafeMutablePointer<Waiter>
  /// Whether it sees the outcome, so that a failure is not reported as unhandled.
  ///
  /// Set before it is linked.
  @exclusivity(unchecked) final var observes = true

  @usableFromInline
  init() {
    waiter = .allocate(capacity: 1)
    waiter.initialize(to: Waiter(callback: Unmanaged.passUnretained(self)))
  }

  deinit { waiter.deallocate() }

  /// Called once, outside of every lock, when what was waited for has happened.
  @usableFromInline func fire() {}
}
