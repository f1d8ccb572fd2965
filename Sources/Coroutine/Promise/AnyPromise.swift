import Synchronization

// A promise settles once. Its phases before that:
//
//                    link (then, recover ...)            the upstream settles, a handler is wanted
//   PENDING, free ---------------------------> WAITING ------------------------------------------> POSTED
//        |    |        follow                     |  the upstream settles, no handler is wanted:       | the queue runs
//        |    +---------------------------------> |  the outcome is copied                             v
//        |                                        v                                                 RUNNING
//        +------- fulfill, reject, cancel ----> SETTLED <--- the handler returns or throws ------------+
//                                                 ^                                                    |
//                                                 +---- WAITING for the promise that it returned <-----+
//
// Ownership. A waiting promise is linked into its upstream's waiter queue. A combinator is linked into the queue of
// every member.
// - The queue owns one reference to each waiting promise, unless that is passive. A waiting promise does not own its
//   upstream.
// - A passive promise only passes outcomes on, and leaves its upstreams in its deinit. It owns a reference to itself
//   while others wait for it (Promise+Passive.swift).
// - If the last reference to a pending upstream goes away, its deinit rejects all waiting promises with `abandoned`.
// - A link that follows another promise beside its upstream has that promise as a member (PromiseMembers.swift).
//
// Fields. The completion's lock covers every mutable field, except:
// - `runner`, `launchSite`, and in `node` `kind`, `isPassive`, `scheduler` and a combinator's members, which are set
//   before the promise is known to any other thread, or under the lock by a promise that begins to follow;
// - the link fields, which belong to the queue that the promise is in;
// - `source` and the user's closure, which belong to the thread that runs the handler, once;
// - `hold`, which belongs to that thread, and to the deinit.
//
// Invariants
//  1. `upstream` is set if and only if the waiter is in the upstream's queue, or the upstream's settling thread has
//     taken the waiter out and will call upstreamSettled, or a thread that has a reference to the upstream links the
//     waiter now. Promise+Graph.swift says what may be done with it. The call is left out if this promise is passive
//     and in its deinit.
//  2. Waiting promises never form a cycle (Promise+Follow.swift). Locks are taken from the waiting promise to its
//     upstream, never in the other direction: a settling promise leaves its lock before it calls its waiters.
//  3. A settled promise has no onCancel and no run, and the thread that settles it takes its edges out before it calls
//     the waiters. Under a lock, no foreign code is called and nothing is released.
//
// Races
// - settle against settle: `state` leaves PENDING under the lock, once.
// - settle against register: the releasing thread calls a waiter that was added before the waiters are released. The
//   adding thread calls a waiter that it adds later (Completion.swift).
// - settle against cancel, and two cancellations: Promise+Cancel.swift.
// - settle against the deinit of a passive promise: the settling thread takes the waiter out of the queue and a
//   reference to the promise under the upstream's lock. If there is none to take, it drops the waiter. The deinit
//   takes the same lock before the promise's memory goes.
// - settle against follow: `isLocked` is set under the lock that settling takes.
// - any operation against release: Promise+Graph.swift protects an upstream, and a reference protects every other
//   pointer. Queues, the settle list and a running handler own one reference each.

/// The base class of all promises: everything that does not depend on the type of the value.
public class AnyPromise: @unchecked Sendable {
  // Sound because the comment above names the guard of each field.
  // The first four properties are used by their addresses alone, as in AnyJob.
  @exclusivity(unchecked) private final var completionStorage: Completion
  @exclusivity(unchecked) private final var waiterStorage: Waiter
  /// Queues the promise on the scheduler where its handler runs.
  @exclusivity(unchecked) private final var workStorage = WorkItem { item in
    AnyPromise.runHandler(AnyPromise.holding(item))
  }
  @exclusivity(unchecked) private final var nodeStorage = PromiseNode()
  /// The settled upstream, retained for the handler that gets its value.
  @exclusivity(unchecked) final var source: Unmanaged<AnyPromise>?
  /// Copies the upstream's outcome into this promise, or runs the handler with it.
  ///
  /// Created by specialised code, where it captures nothing but in `ensureThen`: there it holds the first outcome.
  @exclusivity(unchecked) @usableFromInline final var runner: PromiseRunner?
  @exclusivity(unchecked) final var hold = Hold.none
  /// The link of the settle list: the promises that this thread has settled and whose waiters are still to be called.
  @exclusivity(unchecked) final var settleLink: Unmanaged<AnyPromise>?
  /// Whether an edge has ever led to this promise.
  ///
  /// Set by a thread that holds a reference to this promise, before another thread can find the edge.
  // Not shared: only the deinit reads it.
  let wasAwaited = Atomic(false)
  // Not shared: only the deinit reads it.
  private let isNamed = Atomic(false)
  /// Whether the promise follows another one: calls from outside do not settle it any more.
  @exclusivity(unchecked) @usableFromInline final var isLocked = false
  @usableFromInline final let launchSite: LaunchSite
  /// Nothing uses it: it keeps the object at 320 bytes, for which glibc takes 336.
  ///
  /// With 312 bytes glibc takes 320, five cache lines exactly, and long chains took 22 % longer on an AMD EPYC
  /// (docs/evolution/0044).
  private final let padding: UInt = 0

  /// From `posted` on, the thread that runs the handler does not change the phase before the handler has returned.
  enum Phase: UInt8 { case free, waiting, posted }

  /// The hold on the scheduler: a pin, or its count of handlers; given up after the handler has run, or in the deinit.
  enum Hold: UInt8 { case none, pinned, bound }

  @usableFromInline
  init(_ completion: consuming Completion, _ launchSite: LaunchSite) {
    self.launchSite = launchSite
    completionStorage = completion
    // The object has no address before all of its properties have values.
    waiterStorage = Waiter(promise: nil, memberIndex: -1)
    checkAddress(self.completion, of: &completionStorage)
    checkAddress(self.completion.waiterAddress, of: &completionStorage.waiters)
    checkAddress(waiter, of: &waiterStorage)
    checkAddress(work, of: &workStorage)
    checkAddress(node, of: &nodeStorage)
    waiter.pointee.context = Unmanaged.passUnretained(self).toOpaque()
  }

  final func setName(_ name: String) {
    ObjectNames.set(name, of: self)
    isNamed.store(true, ordering: .relaxed)
  }

  @inlinable final var completion: CompletionRef {
    @inline(__always) get { propertyAddress(in: self, at: 0, as: Completion.self) }
  }
  final var waiter: UnsafeMutablePointer<Waiter> {
    propertyAddress(in: self, at: Self.waiterOffset, as: Waiter.self)
  }
  final var work: UnsafeMutablePointer<WorkItem> {
    propertyAddress(in: self, at: Self.workOffset, as: WorkItem.self)
  }
  /// What walks use of this promise.
  final var node: UnsafeMutablePointer<PromiseNode> {
    propertyAddress(in: self, at: Self.nodeOffset, as: PromiseNode.self)
  }
  final var ref: PromiseRef { PromiseRef(self) }
  static var waiterOffset: Int { MemoryLayout<Completion>.stride }
  private static var workOffset: Int { waiterOffset + MemoryLayout<Waiter>.stride }
  static var nodeOffset: Int { workOffset + MemoryLayout<WorkItem>.stride }

  final var onCancel: (@Sendable () -> Void)? {
    get { node.pointee.onCancel }
    set { node.pointee.onCancel = newValue }
  }
  @usableFromInline final var isPassive: Bool {
    get { node.pointee.isPassive }
    set { node.pointee.isPassive = newValue }
  }

  /// Returns the promise that contains a work item.
  private static func holding(_ item: UnsafeMutableRawPointer) -> Unmanaged<AnyPromise> {
    object(holding: UnsafeRawPointer(item), at: workOffset)
  }

  deinit {
    Inspection.letFinish(self)
    if isNamed.load(ordering: .relaxed) { ObjectNames.remove(self) }
    if completion.known.isSettled {
      if hasFailed, !completion.pointee.isObserved.load(ordering: .acquiring) { reportUnseen() }
    } else if isPassive {
      leaveUnused()
    } else if wasAwaited.load(ordering: .relaxed) || completion.pointee.waiters.first != nil {
      abandon()
    }
    if hold != .none { letGoOfScheduler() }
    if wasAwaited.load(ordering: .relaxed) { PromiseGraph.letWalksEnd() }
  }

  /// Gives up the hold on the scheduler: the handler has run, or never will.
  final func letGoOfScheduler() {
    let how = hold
    hold = .none
    node.pointee.scheduler.unsafelyUnwrapped._withUnsafeGuaranteedRef { scheduler in
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
    report(error)
  }

  final func report(_ error: any Error) {
    UnhandledErrors.report(.init(error, in: "a promise (created at \(launchSite.description))", at: launchSite))
  }

  /// Whether the promise has an outcome.
  public final var isSettled: Bool { completion.isSettled }

  /// Whether the promise has no outcome yet.
  public final var isPending: Bool { !isSettled }

  /// Whether the promise has a value.
  public final var isFulfilled: Bool { completion.touched.state.load(ordering: .acquiring) == Completion.succeeded }

  /// Whether the promise has an error, including the error of `cancel`.
  public final var isRejected: Bool { completion.touched.state.load(ordering: .acquiring) == Completion.failed }

  /// The same, for a caller that knows that the promise is settled.
  @usableFromInline final var hasFailed: Bool {
    completion.known.state.load(ordering: .acquiring) == Completion.failed
  }

  /// The error that the promise was rejected with, or nil if it was not rejected.
  ///
  /// Reading the error is not handling it: a failure that is only read is still reported as unhandled.
  public final var error: (any Error)? { isRejected ? completion.pointee.failure : nil }

  /// Marks a failure of this promise as handled: it is not reported as unhandled.
  ///
  /// Changes nothing else. May be called on any thread, at any time.
  public final func ignore() { completion.pointee.isObserved.store(true, ordering: .relaxed) }

  /// The number (OwnerNumber) of the coroutine that will settle the promise; nil if it is not known, or none.
  var settlingOwner: UInt? {
    let upstreams = completion.known.lock.withLock { node.pointee.upstreams }
    return upstreams?.run?.runner
  }

  /// Releases the user's closure, which has run or never will.
  ///
  /// Overridden by the classes that store a closure.
  @usableFromInline func releaseBody() {}
}

/// Settles the first promise from `source`: through the user's handler, or with the same outcome if `handles` is false.
///
/// If `source` is nil, the failure is in the promise's own completion, and not yet published.
@usableFromInline typealias PromiseRunner = (_ promise: AnyPromise, _ source: AnyPromise?, _ handles: Bool) -> Void

/// The outcomes of the upstream for which a link's handler runs.
@usableFromInline
struct HandlerKind: OptionSet, Sendable {
  @usableFromInline let rawValue: UInt8
  @inlinable init(rawValue: UInt8) { self.rawValue = rawValue }
  @inlinable static var success: HandlerKind { HandlerKind(rawValue: 1) }
  @inlinable static var failure: HandlerKind { HandlerKind(rawValue: 2) }
  @inlinable static var either: HandlerKind { HandlerKind(rawValue: 3) }
  /// The handler runs even if the link itself was cancelled first.
  @inlinable static var always: HandlerKind { HandlerKind(rawValue: 7) }
  var runsWhenCancelled: Bool { rawValue & 4 != 0 }
}

extension AnyPromise: CompletionBacked {}
