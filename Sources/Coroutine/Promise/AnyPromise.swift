public import CCoroutineRuntime
public import Dispatch
public import Synchronization

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
//   while others wait for it (PromiseGraph.swift).
// - If the last reference to a pending upstream goes away, its deinit rejects all waiting promises with `abandoned`.
// - A link that follows another promise beside its upstream has that promise as a member (Promise+Combine.swift).
//
// Fields. The completion's lock covers every mutable field, except:
// - `runner`, `launchSite`, and in `node` `kind`, `isPassive`, `scheduler` and a combinator's members, which are set
//   before the promise is known to any other thread, or under the lock by a promise that begins to follow;
// - the link fields, which belong to the queue that the promise is in;
// - `source`, `locals` and the user's closure, which belong to the thread that runs the handler, or that finds that it
//   will never run, once; to the deinit before and after that;
// - `hold`, which belongs to that thread, and to the deinit.
//
// Invariants
//  1. `upstream` is set if and only if the waiter is in the upstream's queue, or the upstream's settling thread has
//     taken the waiter out and will call upstreamSettled, or a thread that has a reference to the upstream links the
//     waiter now. PromiseGraph.swift says what may be done with it. The call is left out if this promise is passive
//     and in its deinit.
//  2. Waiting promises never form a cycle (PromiseGraph.swift). Locks are taken from the waiting promise to its
//     upstream, never in the other direction: a settling promise leaves its lock before it calls its waiters.
//  3. A settled promise has no onCancel and no run, and the thread that settles it takes its edges out before it calls
//     the waiters. Under a lock, no foreign code is called and nothing is released.
//
// Races
// - settle against settle: `state` leaves PENDING under the lock, once.
// - settle against register: the releasing thread calls a waiter that was added before the waiters are released. The
//   adding thread calls a waiter that it adds later (Completion.swift).
// - settle against cancel, and two cancellations: PromiseGraph.swift.
// - settle against the deinit of a passive promise: the settling thread takes the waiter out of the queue and a
//   reference to the promise under the upstream's lock. If there is none to take, it drops the waiter. The deinit
//   takes the same lock before the promise's memory goes.
// - settle against follow: `isLocked` is set under the lock that settling takes.
// - any operation against release: PromiseGraph.swift protects an upstream, and a reference protects every other
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
  /// The bindings that the handler sees: those of the code that has attached it.
  ///
  /// The object has 320 bytes, for which glibc takes 336. With 312 glibc takes 320, five cache lines exactly, and long
  /// chains took 22 % longer on an AMD EPYC (docs/evolution/0044).
  @exclusivity(unchecked) private final var locals: Unmanaged<LocalBinding>?

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
    locals?.release()
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

  fileprivate final func releaseHandler() {
    releaseBody()
    locals.take()?.release()
  }
}

/// Holds a promise whose handler will not run, for `ReleasedBodies`.
private final class HeldHandler {
  private let promise: AnyPromise
  init(of promise: AnyPromise) { self.promise = promise }
  deinit { promise.releaseHandler() }
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

// MARK: - Links

// How a promise is linked to its upstream, and what happens when the upstream settles. A link is the derived promise
// itself: its waiter is in the upstream's queue, and its work item is in the handler queue. Nothing else is allocated.
// (A closure in an Optional is unwrapped by `!` here: any function of Optional would wrap it in a thunk, on the heap.)

extension AnyPromise {
  /// Makes a new promise a link of `upstream`.
  ///
  /// No other thread knows this promise yet.
  @usableFromInline
  final func link(
    to upstream: AnyPromise,
    on queue: DispatchQueue?,
    _ kind: HandlerKind,
    _ runner: @escaping PromiseRunner
  ) {
    node.pointee.kind = kind
    self.runner = runner
    let worker = kind.isEmpty ? nil : bind(to: queue, upstream)
    if !kind.isEmpty { locals = LocalBinding.inheritedByHandler() }
    node.pointee.upstream = upstream.ref
    if isPassive {
      waiter.pointee.isUnowned = true
      cco_retain_memory(upstream.ref.address)
    }
    node.pointee.phase = .waiting
    join(upstream, worker)
  }

  /// Chooses where the handler runs: `queue`, else the queue of the linking coroutine or handler, else a global queue.
  ///
  /// If the caller runs on a worker, that worker's scheduler is returned, and `join` decides.
  private final func bind(to queue: DispatchQueue?, _ upstream: AnyPromise) -> Unmanaged<Scheduler>? {
    if let queue {
      pin(Unmanaged.passUnretained(QueueHost.scheduler(for: queue)), queue)
    } else if let carrier = Carrier.current, let scheduler = carrier.callerScheduler {
      if scheduler._withUnsafeGuaranteedRef({ $0.handlers != nil }) { return scheduler }
      // A carrier whose scheduler is not the job's runs an immediate start, outside the job's queue.
      guard carrier.pointee.scheduler?.toOpaque() == scheduler.toOpaque() else {
        pin(scheduler, nil)
        return nil
      }
      scheduler._withUnsafeGuaranteedRef { $0.bindHandler() }
      (node.pointee.scheduler, hold) = (scheduler, .bound)
    } else {
      node.pointee.ordered = upstream.completion.orderedHandlers()
    }
    return nil
  }

  /// Pins a scheduler: the scheduler then holds its queue, and the queue holds the scheduler.
  private final func pin(_ scheduler: Unmanaged<Scheduler>, _ queue: DispatchQueue?) {
    scheduler._withUnsafeGuaranteedRef { $0.pin(queue) }
    (node.pointee.scheduler, hold) = (scheduler, .pinned)
  }

  /// Puts this new promise into `upstream`'s queue, or handles the outcome of a settled one at once.
  ///
  /// The queue gets a reference, unless this promise is passive.
  /// `worker` is the scheduler of the worker that runs the caller, and that would run the handler.
  private final func join(_ upstream: AnyPromise, _ worker: Unmanaged<Scheduler>?) {
    let reference = Unmanaged.passUnretained(self)
    if !isPassive { cco_retain_unshared(reference.toOpaque()) }
    upstream.completion.lock()
    if let worker { node.pointee.scheduler = upstream.completion.workerOfHandlers(worker) }
    let isLinked = !upstream.completion.pointee.isReleased
    if isLinked { upstream.append(waiter) }
    upstream.completion.unlock()
    guard !isLinked else { return }
    if isPassive { cco_retain_unshared(reference.toOpaque()) }
    upstream.ignore()
    Self.upstreamSettled(reference, -1)
  }

  /// Adds a waiter; returns false if all waiters have been told already, and then the caller handles this one itself.
  @inline(__always)
  final func link(_ waiting: UnsafeMutablePointer<Waiter>) -> Bool {
    completion.lock()
    defer { completion.unlock() }
    if completion.pointee.isReleased { return false }
    append(waiting)
    return true
  }

  /// Appends a waiter, called under the lock by a thread that holds a reference to this promise.
  final func append(_ waiting: UnsafeMutablePointer<Waiter>) {
    wasAwaited.store(true, ordering: .relaxed)
    completion.pointee.waiters.append(waiting)
    if isPassive { holdWhileAwaited() }
  }

  /// Handles an upstream's outcome, once for each waiter that was in the upstream's queue, with the queue's reference.
  ///
  /// Called outside every lock, by the thread that settles the upstream or finds it settled, and so keeps it in memory.
  static func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    reference._withUnsafeGuaranteedRef { $0.upstreamSettled(reference, memberIndex) }
  }

  private final func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    if memberIndex >= 0 { return memberSettled(reference, memberIndex) }
    completion.lock()
    let known = node.pointee.upstream
    node.pointee.upstream = nil
    // The settling thread has the upstream: this is not the last reference to its memory.
    if let known, waiter.pointee.isUnowned {
      if !node.pointee.isUnused.load(ordering: .relaxed) {
        known.completion.pointee.isObserved.store(true, ordering: .relaxed)
      }
      cco_release_memory(known.address)
    }
    let kind = node.pointee.kind
    guard let upstream = known, !completion.known.isSettled else {
      // The promise was cancelled, or settled from outside, in the meantime.
      let isPosted = kind.runsWhenCancelled && node.pointee.phase == .waiting
      if isPosted { node.pointee.phase = .posted }
      completion.unlock()
      return isPosted ? Self.post(reference) : Self.giveUpLink(reference)
    }
    // Given up here, so that the promise settles as one that has nothing to take out.
    let heldItself = node.pointee.holdsItself
    node.pointee.holdsItself = false
    upstream.object._withUnsafeGuaranteedRef { upstream in
      if upstream.hasFailed {
        completion.pointee.failure = upstream.completion.pointee.failure
        if kind.contains(.failure) { return postLocked(reference) }
        node.pointee.phase = .free
        let hasHandler = !kind.isEmpty
        publish(Completion.failed)
        if hasHandler { releaseBodyWhileSettling() }
      } else {
        if kind.contains(.success) {
          source = Unmanaged.passRetained(upstream)
          return postLocked(reference)
        }
        node.pointee.phase = .free
        let hasHandler = !kind.isEmpty
        // The waiter is free now. A follow must not use it before the runner has settled the promise.
        isLocked = true
        completion.unlock()
        runner!(self, upstream, false)
        if hasHandler { releaseBodyWhileSettling() }
      }
      Self.giveUp(reference)
    }
    if heldItself { Self.giveUp(reference) }
  }

  /// Gives up the reference that an upstream's queue had to a settled promise whose handler, if any, will not run.
  ///
  /// The thread that has it releases the user's closure: the closure may hold the promise, and would keep it for ever.
  static func giveUpLink(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { if !$0.node.pointee.kind.isEmpty { $0.releaseBodyWhileSettling() } }
    giveUp(reference)
  }

  private final func releaseBodyWhileSettling() {
    let words = Self.leaveSettleList()
    // The handler may hold the resumer of a promise that has such a handler, and so on: from some depth on, each is
    // released after the one before and not inside of it. Only then it costs allocations. A release that waits and goes
    // on elsewhere leaves its count on the thread: that one takes the other way a level earlier from then on.
    let depth = cco_layer().pointee.releases
    if depth < 32 {
      cco_layer().pointee.releases = depth + 1
      releaseHandler()
      cco_layer().pointee.releases = depth
    } else {
      ReleasedBodies.release(.passRetained(HeldHandler(of: self)))
    }
    Self.enterSettleList(words)
  }

  /// Posts the handler; entered with the lock, left without.
  private final func postLocked(_ reference: Unmanaged<AnyPromise>) {
    node.pointee.phase = .posted
    completion.unlock()
    Self.post(reference)
  }

  /// Posts a link, with one reference, to the queue where its handler runs.
  static func post(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      if let scheduler = this.node.pointee.scheduler {
        scheduler._withUnsafeGuaranteedRef { $0.sendInOrder(.work(this.work)) }
      } else {
        this.node.pointee.ordered.unsafelyUnwrapped.deliver(.work(this.work))
      }
    }
  }

  /// Runs the handler of a posted link, on the handler's queue, and gives up the reference.
  static func runHandler(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      let source = this.source.take()?.takeRetainedValue()
      // A cancellation after this check comes too late to prevent the handler.
      if !this.completion.known.isSettled || this.node.pointee.kind.runsWhenCancelled {
        LocalBinding.bound(this.locals?.takeUnretainedValue()) { this.runner!(this, source, true) }
      }
      this.releaseHandler()
      if !this.completion.known.isSettled { this.handlerHasReturned() }
      if this.hold != .none { this.letGoOfScheduler() }
    }
    skipLevels(reference)
    reference.release()
  }

  /// Resets the phase of a pending promise: it follows the promise that the handler returned, or another one.
  private final func handlerHasReturned() {
    completion.known.lock.withLock { if node.pointee.phase == .posted { node.pointee.phase = .free } }
  }
}

/// Returns the queue for handlers that other handlers attach later for the caller: `queue`, else the caller's own.
func queueOfHandlers(_ queue: DispatchQueue?) -> DispatchQueue? {
  queue ?? Carrier.current?.callerScheduler?.takeUnretainedValue().currentQueue
}

extension Waiter {
  /// Creates a waiter of a promise: its own one has the index -1, and a combinator has one for each member.
  init(promise: Unmanaged<AnyPromise>?, memberIndex: Int) {
    self.init(
      notify: { AnyPromise.upstreamSettled(Unmanaged.fromOpaque($0), $1) },
      context: promise?.toOpaque(),
      index: memberIndex
    )
  }
}

// MARK: - Settling

// Settling a promise settles the promises that wait for it, then the promises that wait for those: a chain of any
// length in constant stack.
//
// A promise that has an outcome and waiters goes into the list of the outermost settle on its thread. That settle calls
// the waiters of one promise after the other. When all waiters have been called, it calls the callbacks. The thread's
// field `settling` points to the list. The field is nil while references and closures are released, and while an
// onCancel or a callback runs: that is foreign code, which may even suspend. So for foreign code every settle is an
// outermost one: when it returns, all waiters have been called.

@usableFromInline
struct SettleList {
  private var first: Unmanaged<AnyPromise>?
  private var last: Unmanaged<AnyPromise>?

  init() {}

  /// Appends a promise, with one reference to it.
  mutating func append(_ promise: Unmanaged<AnyPromise>) {
    promise._withUnsafeGuaranteedRef { $0.settleLink = nil }
    if let last { last._withUnsafeGuaranteedRef { $0.settleLink = promise } } else { first = promise }
    last = promise
  }

  mutating func popFirst() -> Unmanaged<AnyPromise>? {
    guard let promise = first else { return nil }
    first = promise._withUnsafeGuaranteedRef { $0.settleLink }
    if first == nil { last = nil }
    return promise
  }
}

extension AnyPromise {
  /// Publishes an outcome that has been stored, and leaves the lock.
  @inlinable @inline(__always)
  final func publish(_ outcome: UInt8) {
    cco_order_retains()
    completion.known.state.store(outcome, ordering: .releasing)
    if completion.pointee.waiters.first == nil, isUnattached {
      completion.pointee.isReleased = true
      completion.unlock()
    } else {
      publishSlowly()
    }
  }

  /// Whether settling has nothing to take out.
  @usableFromInline final var isUnattached: Bool {
    // Not `== nil`, for which the unoptimised code allocates, under the lock.
    guard case .none = node.pointee.onCancel else { return false }
    return node.pointee.upstream == nil && node.pointee.upstreams == nil && !node.pointee.holdsItself
  }

  @usableFromInline
  final func publishSlowly() {
    guard isUnattached else { return leaveAndTell(isCancelled: false) }
    // One waiting coroutine is the frequent case, and needs no list.
    let first = completion.pointee.waiters.first.unsafelyUnwrapped
    if first.pointee.job != nil, first.pointee.next == nil {
      _ = completion.tellWaiters()
      return
    }
    callWaitersUnlocking()
  }

  /// Rejects the promise if it is pending.
  @usableFromInline @discardableResult
  final func fail(_ error: any Error, fromOutside: Bool = false) -> Bool {
    completion.lock()
    guard !completion.known.isSettled, !(fromOutside && isLocked) else {
      completion.unlock()
      return false
    }
    let staged = completion.pointee.failure
    completion.pointee.failure = error
    publish(Completion.failed)
    _ = consume staged
    return true
  }

  /// Calls the waiters of a promise that has its outcome.
  ///
  /// The caller holds the promise, and no lock.
  final func callWaiters() {
    completion.known.lock.lock()
    callWaitersUnlocking()
  }

  /// Does the same, entered with the lock.
  private final func callWaitersUnlocking() {
    if let words = cco_layer().pointee.settling {
      completion.unlock()
      words.assumingMemoryBound(to: SettleList.self).pointee.append(Unmanaged.passRetained(self))
    } else {
      settleAll()
    }
  }

  /// Calls the waiters of this promise, then the waiters of each promise that this settles; last, the callbacks.
  ///
  /// Entered with the lock, left without. This thread has no settle list yet.
  @inline(__always)
  private final func settleAll() {
    var (list, called) = (SettleList(), SettleList())
    let hasCallbacks = withUnsafeMutablePointer(to: &list) { list in
      cco_layer().pointee.settling = UnsafeMutableRawPointer(list)
      let hasCallbacks = completion.tellWaiters()
      while let next = list.pointee.popFirst() {
        let isCalled = next._withUnsafeGuaranteedRef { promise in
          promise.completion.known.lock.lock()
          return promise.completion.tellWaiters()
        }
        if isCalled {
          called.append(next)
          continue
        }
        cco_layer().pointee.settling = nil
        next.release()
        cco_layer().pointee.settling = UnsafeMutableRawPointer(list)
      }
      cco_layer().pointee.settling = nil
      return hasCallbacks
    }
    if hasCallbacks { completion.callBack() }
    while let next = called.popFirst() {
      next._withUnsafeGuaranteedRef { _ = $0.completion.callBack() }
      next.release()
    }
  }

  /// Gives up a reference during settling.
  ///
  /// The release may run foreign code.
  static func giveUp(_ promise: Unmanaged<AnyPromise>) {
    let words = leaveSettleList()
    promise.release()
    enterSettleList(words)
  }

  /// Detaches the settle list before foreign code runs during settling: closures, and the code that their release runs.
  ///
  /// Foreign code may suspend. A promise that another job settles on this thread meanwhile must not wait for a parked
  /// stack.
  static func leaveSettleList() -> UnsafeMutableRawPointer? {
    let words = cco_layer().pointee.settling
    cco_layer().pointee.settling = nil
    return words
  }

  /// Attaches the list that `leaveSettleList` returned.
  ///
  /// The foreign code may have moved to another thread.
  static func enterSettleList(_ words: UnsafeMutableRawPointer?) { cco_layer().pointee.settling = words }

  /// One object, so that none is allocated under a lock.
  static let abandoned: any Error = CoroutineError.abandoned

  /// Rejects a pending promise in its deinit: its waiters learn that nothing can settle it any more.
  ///
  /// A reference to the promise must not be taken any more.
  final func abandon() {
    let error = Self.abandoned
    completion.lock()
    guard !completion.known.isSettled, completion.pointee.waiters.first != nil else {
      completion.unlock()
      return
    }
    completion.pointee.failure = error
    cco_order_retains()
    completion.known.state.store(Completion.failed, ordering: .releasing)
    guard cco_layer().pointee.settling != nil else { return settleAll() }
    guard completion.tellWaiters() else { return }
    let words = Self.leaveSettleList()
    completion.callBack()
    Self.enterSettleList(words)
  }
}

// MARK: - Names

extension Promise {
  /// Gives the promise a name, which dumps show: `Promise<Int> "login" 0x7f…`.
  ///
  /// A second name replaces the first; promises that handlers return have none. Any thread; does not suspend.
  /// - Returns: The promise.
  @discardableResult
  public func named(_ name: String) -> Promise {
    setName(name)
    return self
  }
}
