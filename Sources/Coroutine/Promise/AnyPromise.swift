import Synchronization

// A promise settles once. Its phases before that:
//
//                    link (then, recover ...)            the upstream settles, a handler is wanted
//   PENDING, free ---------------------------> WAITING ------------------------------------------> POSTED
//        |    |        follow                     |  the upstream settles, no handler is wanted:       | the queue runs
//        it |    +---------------------------------> |  the outcome is copied                             v |
//        v                                                 RUNNING +------- fulfill, reject, cancel ----> SETTLED <---
//        the handler returns or throws ------------+
//                                                 ^                                                    |
//                                                 +---- WAITING for the promise that it returned <-----+
//
// Ownership. A waiting promise is linked into its upstream's waiter queue. A combinator is linked into the queue of
// every member.
// - The queue owns one reference to each waiting promise. A waiting promise does not own its upstream.
// - If the last reference to a pending upstream goes away, its deinit rejects all waiting promises with `abandoned`.
// - Any further promise that this one depends on (a retry's current attempt, a late `follow`) is stored in `members`
//   (PromiseMembers.swift).
//
// Fields. The completion's lock covers every mutable field, except:
// - `runner`, `kind`, `scheduler`, `launchSite` and a combinator's members, which are set before the promise is known
//   to any other thread;
// - the link fields, which belong to the queue that the promise is in;
// - `source` and the user's closure, which belong to the thread that runs the handler, once.
//
// Invariants
//  1. `upstream` is set if and only if the waiter is in the upstream's queue, or the upstream's settling thread has
//     taken the waiter out and will call upstreamSettled. That call takes this promise's lock. So while `upstream` is
//     set and the lock is held, the upstream's memory is live, even if the upstream is in its deinit.
//  2. Locks are taken from the waiting promise to its upstream, never in the other direction: a settling promise leaves
//     its lock before it calls its waiters. Waiting promises never form a cycle (Promise+Follow.swift), so the locks do
//     not form a cycle either.
//  3. A settled promise has no upstream, no members and no onCancel: settling takes them out. Under a lock, no foreign
//     code is called and nothing is released.
//
// Races
// - settle against settle: `state` leaves PENDING under the lock, once.
// - settle against register: the releasing thread calls a waiter that was added before the waiters are released. The
//   adding thread calls a waiter that it adds later (Completion.swift).
// - settle against the cancellation of a waiting promise: both take the waiting promise's lock. If the cancelling
//   thread finds the waiter linked, it takes the waiter out, with the queue's reference. If it finds the waiter taken
//   out, it leaves the reference to upstreamSettled, which finds the promise settled.
// - settle against follow: `isLocked` is set under the lock that settling takes.
// - any operation against release: rule 1 protects the upstream, and a reference protects every other pointer. Queues,
//   the settle list and a running handler own one reference each. Only a thread that takes a waiter out of a queue may
//   hold the lock of a promise that has no owner any more (Promise+Cancel.swift). So the deinit of a promise that
//   another promise has waited for takes the lock once. It need not if a thread that
//   holds a reference settled the promise: settling ends under the lock, and leaves no waiter that could be taken out.

/// What all promises have in common, whatever they promise.
public class AnyPromise: @unchecked Sendable {
  // Sound because the comment above says for each field who may touch it.
  // Used by their addresses alone, as in AnyJob; the first two properties.
  @exclusivity(unchecked) private final var completionStorage: Completion
  @exclusivity(unchecked) private final var waiterStorage: Waiter
  /// Queues the promise where its handler runs.
  @exclusivity(unchecked) private final var workStorage = WorkItem { item in AnyPromise.runHandler(AnyPromise.holding(item)) }
  /// Whom it waits for; a combinator: anyone of its members, see `members`.
  @exclusivity(unchecked) final var upstream: Unmanaged<AnyPromise>?
  /// The settled upstream, held for the handler that gets its value.
  @exclusivity(unchecked) final var source: Unmanaged<AnyPromise>?
  /// Brings the outcome of what it waited for into this promise.
  ///
  /// Made by specialised code, where it captures nothing.
  @exclusivity(unchecked) @usableFromInline final var runner: PromiseRunner?
  /// Where the handler runs, if not by `ordered`; alive while `hold` is not `none`, or for ever, if it is a worker.
  @exclusivity(unchecked) final var scheduler: Unmanaged<Scheduler>?
  @exclusivity(unchecked) final var hold = Hold.none
  @exclusivity(unchecked) final var ordered: OrderedHandlers?
  @exclusivity(unchecked) final var members: Members?
  /// Whether some of the members may still have it in their lists.
  @exclusivity(unchecked) final var hasMembers = false
  /// Its place among those that have settled on this thread and whose waiters wait to be called.
  @exclusivity(unchecked) final var settleLink: Unmanaged<AnyPromise>?
  @exclusivity(unchecked) @usableFromInline final var onCancel: (@Sendable () -> Void)?
  @exclusivity(unchecked) final var kind: HandlerKind = []
  @exclusivity(unchecked) final var phase = Phase.free
  /// Whether another promise has ever waited for this one.
  ///
  /// Set by whoever holds this one.
  @exclusivity(unchecked) final var wasAwaited = false
  /// It follows another: settling from outside counts no more.
  @exclusivity(unchecked) @usableFromInline final var isLocked = false
  /// Settled by `cancel`: a late resumer is then nobody's mistake.
  let wasCancelled = Atomic<Bool>(false)
  @usableFromInline final let launchSite: LaunchSite

  /// From `posted` on, whoever runs the handler leaves the phase alone until it has returned.
  enum Phase: UInt8 { case free, waiting, posted }

  /// What keeps the scheduler: a pin, or its count of handlers; given up when the handler has run, or the promise goes.
  enum Hold: UInt8 { case none, pinned, bound }

  @usableFromInline
  init(_ completion: consuming Completion, _ launchSite: LaunchSite) {
    self.launchSite = launchSite
    completionStorage = completion
    waiterStorage = Waiter(promise: Unmanaged.fromOpaque(UnsafeRawPointer(bitPattern: 16).unsafelyUnwrapped), memberIndex: -1)
    checkAddress(self.completion, of: &completionStorage)
    checkAddress(self.completion.waiterAddress, of: &completionStorage.waiters)
    checkAddress(waiter, of: &waiterStorage)
    checkAddress(work, of: &workStorage)
    waiter.pointee.context = Unmanaged.passUnretained(self).toOpaque()
  }

  @inlinable final var completion: CompletionRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Completion.self) }
  }
  final var waiter: UnsafeMutablePointer<Waiter> {
    propertyAddress(in: self, at: MemoryLayout<Completion>.stride, as: Waiter.self)
  }
  final var work: UnsafeMutablePointer<WorkItem> {
    propertyAddress(in: self, at: Self.workOffset, as: WorkItem.self)
  }
  private static var workOffset: Int { MemoryLayout<Completion>.stride + MemoryLayout<Waiter>.stride }

  /// The promise that a work item lies in.
  private static func holding(_ item: UnsafeMutableRawPointer) -> Unmanaged<AnyPromise> {
    object(holding: UnsafeRawPointer(item), at: workOffset)
  }

  deinit {
    Inspection.letFinish(self)
    if completion.isSettled {
      if wasCancelled.load(ordering: .relaxed) { completion.pointee.lock.withLock {} }
      if isRejected, !completion.pointee.isObserved.load(ordering: .acquiring) { reportUnseen() }
    } else if wasAwaited || completion.pointee.waiters.first != nil {
      abandon()
    }
    if hold != .none { letGoOfScheduler() }
  }

  /// The handler has run, or never will.
  final func letGoOfScheduler() {
    let how = hold
    hold = .none
    scheduler.unsafelyUnwrapped._withUnsafeGuaranteedRef { scheduler in
      switch how {
      case .none: break
      case .pinned: scheduler.unpin()
      case .bound: scheduler.unbindHandler()
      }
    }
  }

  private final func reportUnseen() {
    let error = completion.pointee.failure.unsafelyUnwrapped
    if error is CancellationError { return }
    UnhandledErrors.report(error, in: summary)
  }

  final var summary: String { "a promise (created at \(launchSite.description))" }

  /// Whether it has an outcome.
  public final var isSettled: Bool { completion.isSettled }

  /// Whether it has none yet.
  public final var isPending: Bool { !completion.isSettled }

  /// Whether it has a value.
  public final var isFulfilled: Bool {
    completion.pointee.state.load(ordering: .acquiring) == Completion.succeeded
  }

  /// Whether it has an error, be it that of `cancel`.
  public final var isRejected: Bool { completion.pointee.state.load(ordering: .acquiring) == Completion.failed }

  /// What it was rejected with; nil: it was not.
  ///
  /// Looking is not handling: a failure that is only looked at is still reported as unhandled.
  public final var error: (any Error)? { isRejected ? completion.pointee.failure : nil }

  /// Says that nobody needs to see a failure of this promise: it is not reported as unhandled.
  ///
  /// Changes nothing else. Any thread, at any time.
  public final func ignore() { completion.pointee.isObserved.store(true, ordering: .relaxed) }

  /// Releases the user's closure, which has run or never will.
  ///
  /// Overridden where that closure is.
  @usableFromInline func releaseBody() {}

  final var isWaitedForByPromises: Bool {
    var waiter = completion.pointee.waiters.first
    while let current = waiter {
      if current.pointee.notify != nil { return true }
      waiter = current.pointee.next
    }
    return false
  }
}

/// Brings the outcome of `source` into the first promise: through the user's handler, or, where it is false, as it is.
///
/// `source` nil: the failure is in the promise's own completion, not yet published.
@usableFromInline typealias PromiseRunner = (_ promise: AnyPromise, _ source: AnyPromise?, _ handles: Bool) -> Void

/// Which outcomes of its upstream a link's handler wants.
@usableFromInline
struct HandlerKind: OptionSet, Sendable {
  @usableFromInline let rawValue: UInt8
  @inlinable init(rawValue: UInt8) { self.rawValue = rawValue }
  @inlinable static var success: HandlerKind { HandlerKind(rawValue: 1) }
  @inlinable static var failure: HandlerKind { HandlerKind(rawValue: 2) }
  @inlinable static var either: HandlerKind { HandlerKind(rawValue: 3) }
  /// Runs also when the link itself was cancelled first.
  @inlinable static var always: HandlerKind { HandlerKind(rawValue: 7) }
  var runsWhenCancelled: Bool { rawValue & 4 != 0 }
}

extension AnyPromise: CompletionBacked {}
