import Synchronization

// A promise settles once. What it may be doing before, and who brings it there:
//
//                    link (then, recover ...)            the upstream settles, a handler is wanted
//   PENDING, free ---------------------------> WAITING ------------------------------------------> POSTED
//        |    |        follow, adoption           |  the upstream settles, none is wanted:             | the queue runs it
//        |    +---------------------------------> |  the outcome is copied                             v
//        |                                        v                                                 RUNNING
//        +------- fulfill, reject, cancel ----> SETTLED <--- the handler returns or throws ------------+
//                                                 ^                                                    |
//                                                 +---- WAITING for the promise that it returned <-----+
//
// Graph. A promise that waits has a node in its upstream's list of waiters (a combinator one in the list of each member). The list owns
// one reference to the waiting promise; the waiting promise does not own its upstream, so an upstream that nobody can settle
// any more is released, and in its deinit rejects those who wait with `abandoned`. Whom a promise waits for besides, it has among its
// members, whatever else it waits for (PromiseMembers.swift).
//
// Who owns each field: everything mutable is under the completion's lock, except for what is set before the promise is known
// to anyone (runner, kind, scheduler, place, a combinator's members), the links (whoever's queue the promise is in), and what a handler
// takes (`source` and the user's closure: whoever runs it, once).
//
// Invariants
//  1. `upstream` is set while, and only while, the node is in the upstream's list or has been taken out by the upstream's
//     settle, which then calls upstreamSettled. That takes this promise's lock, so while `upstream` is set and the lock is
//     held, the upstream's memory is live, even if the upstream is in its deinit.
//  2. Locks are taken from the one who waits to the one who is waited for, never the other way: a settling promise leaves
//     its lock before it calls those who wait. No circle of waiting promises ever exists (Promise+Follow.swift), so there is no
//     circle of locks.
//  3. A settled promise has no upstream, no members, no onCancel: settling takes them out. Nothing foreign is called, and
//     nothing is released, under a lock.
//
// settle against settle: `state` leaves PENDING under the lock, once. settle against register: a node that is added before
// the waiters are released is called by the releaser, one that is added after is called by its adder (Completion.swift).
// settle against cancel of one who waits: both sides take the waiting promise's lock; the canceller finds the node linked and
// takes it out with the list's reference, or finds it taken out and leaves the reference to upstreamSettled, which finds the promise
// settled. settle against follow: `isLocked` is set under the lock that settling takes. Anything against release: 1 for the
// upstream, and a reference for every other pointer: lists, queues, the settling list and a running handler own one each. Only
// one who leaves a list may hold the lock of a promise that nobody owns any more (Promise+Cancel.swift): so the deinit of a promise
// that another has waited for takes the lock once, unless it was settled by one who held it: settling ends under the lock,
// with nobody in the list who could leave it.

/// What all promises have in common, whatever they promise.
public class AnyPromise: @unchecked Sendable {
  // Sound because the comment above says for each field who may touch it.
  // Used by their addresses alone, as in AnyJob; the first two properties.
  @exclusivity(unchecked) private final var completionStorage: Completion
  @exclusivity(unchecked) private final var nodeStorage: Waiter
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
  /// Its place in a work queue.
  @exclusivity(unchecked) final var workLink: UInt = 0
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
    nodeStorage = Waiter(promise: Unmanaged.fromOpaque(UnsafeRawPointer(bitPattern: 16).unsafelyUnwrapped), memberIndex: -1)
    checkAddress(self.completion, of: &completionStorage)
    checkAddress(self.completion.waiterAddress, of: &completionStorage.waiters)
    checkAddress(waiter, of: &nodeStorage)
    waiter.pointee.promise = Unmanaged.passUnretained(self)
  }

  @inlinable final var completion: CompletionRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Completion.self) }
  }
  final var waiter: UnsafeMutablePointer<Waiter> {
    propertyAddress(in: self, at: MemoryLayout<Completion>.stride, as: Waiter.self)
  }

  deinit {
    Inspection.letFinish()
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
    CoroutineRuntime.report(error, in: summary)
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
      if current.pointee.promise != nil { return true }
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
