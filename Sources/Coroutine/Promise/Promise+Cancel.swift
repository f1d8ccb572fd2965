internal import CCoroutine
import Synchronization

// Cancellation goes upstream: from the cancelled promise to the promises that it waits for, as long as no other waiter
// needs them.
//
// It begins with a call of `cancel`, or with a consumer that is cancelled while it waits: a coroutine or a Task. Such a
// consumer first takes its waiter out of the queue. Then it cancels the promise if the queue is empty and the promise
// has work to cancel: an `onCancel`, an upstream, or members. A promise without work, which other code will fulfil, is
// left pending; here as well as further upstream.
// - Several consumers that leave at once: each looks at the queue after it has left, under the lock. So the last one to
//   leave finds the queue empty.
// - A consumer that arrives while the last one leaves: if its waiter is linked first, the queue is not empty, and the
//   promise goes on. Otherwise it finds a promise that is cancelled, as if it had arrived later.
// - Settling meanwhile: it and the cancellation change `state` under the lock, so one of them comes first. The consumer
//   throws its own cancellation in both cases.
//
// Locking. Cancellation locks hand over hand: it leaves the lock of the waiting promise only while it holds the lock of
// the upstream. That lock keeps the upstream in memory (AnyPromise.swift, 1). On the way nothing foreign is called and
// nothing is released. Such work is recorded in a `Removed`, and performed at the end, outside every lock, in constant
// stack. The lists of a `Removed` grow under the lock of one promise, because no moment of the walk is without a lock
// (`LockCheck.allowAllocations`).
//
// References. Swift may retain the object that a method is called on, and release it again, under that object's lock.
// If the other owners release it in between, this release is the last one, and the deinit takes the lock that its own
// caller holds. Therefore a thread that locks a promise without owning it retains it first. The exception is a promise
// that is in its deinit already: there, one reference more or less changes nothing.
//
// A passive promise that is left by the last one that waited for it, and has no reference but the one to itself, is
// of no use any more. The walk settles it as abandoned, and goes on with its upstreams. So a chain of such promises
// ends in constant stack, and not by one deinit inside another.
//
// Why no waiter of an upstream needs to be woken: cancellation settles an upstream only if its waiter queue is empty.
// For the same reason it needs no reference to the upstream, and could not take one if the upstream were in its deinit.
// It settles the upstream under its lock and leaves it.

extension AnyPromise {
  /// Cancels the promise: rejects it with `CancellationError` and calls `onCancel`, unless it is settled.
  ///
  /// Cancellation goes on upstream: a promise that this one waits for is cancelled too, if nothing else waits for it,
  /// and so on up to the work itself. If a failure is on its way to a handler of this promise, the promise is rejected
  /// with that failure. Does not suspend. May be called on any thread.
  public final func cancel() { _ = cancel(with: nil) }

  /// Cancels the promise, and rejects it with `error` if that is not nil.
  ///
  /// Returns false if it does nothing.
  ///
  /// - Parameters:
  ///   - unlessAwaited: Whether to do nothing if the promise has waiters.
  ///   - byConsumer: Whether a cancelled consumer calls, which leaves promises alone that have no work to cancel.
  final func cancel(with error: (any Error)?, unlessAwaited: Bool = false, byConsumer: Bool = false) -> Bool {
    // A cancellation goes on to other promises.
    Host.touchesEverything()
    completion.pointee.lock.lock()
    guard !completion.isSettled, !(unlessAwaited && completion.pointee.waiters.first != nil),
      !byConsumer || hasWorkToCancel
    else {
      completion.pointee.lock.unlock()
      return false
    }
    var removed = Removed()
    removed.isByConsumer = byConsumer
    LockCheck.allowAllocations()
    settleCancelled(error, &removed)
    let isWaitedFor = !completion.pointee.isReleased
    leaveUpstreams(&removed)
    LockCheck.forbidAllocations()
    if isWaitedFor { callWaiters() }
    removed.finish()
    return true
  }

  /// Called by a coroutine or Task that was cancelled while it waited for this promise, and does not wait any more.
  @usableFromInline @inline(never)
  final func consumerWasCancelled() { _ = cancel(with: nil, unlessAwaited: true, byConsumer: true) }

  /// Whether cancelling the promise stops work.
  ///
  /// Called under its lock.
  private final var hasWorkToCancel: Bool {
    // Not `!= nil`: in debug builds that wraps the closure in another one, which is an allocation.
    if case .some = onCancel { return true }
    return upstream != nil || hasMembers || phase != .free || run != nil
  }

  /// The error of every cancelled promise: one object, so that none is allocated under a lock.
  private static let cancelled: any Error = CancellationError()

  /// Rejects a pending promise.
  ///
  /// Called under its lock.
  private final func settleCancelled(_ error: (any Error)?, _ removed: inout Removed) {
    // A failure that is already stored is the upstream's. A cancellation does not mask it.
    if let error {
      removed.drop(completion.pointee.failure)
      completion.pointee.failure = error
    } else if completion.pointee.failure == nil {
      completion.pointee.failure = Self.cancelled
    }
    wasCancelled.store(true, ordering: .releasing)
    // Not `take`, for the reason in Promise+Link.swift.
    removed.call(onCancel)
    onCancel = nil
    removed.end(run)
    run = nil
    cco_order_retains()
    completion.pointee.state.store(Completion.failed, ordering: .releasing)
    if completion.pointee.waiters.first == nil { completion.pointee.isReleased = true }
  }

  /// Takes a settled promise out of the waiter queues of its upstreams.
  ///
  /// If the promise was cancelled, each upstream that has no other waiter is cancelled too. Entered with this promise's
  /// lock, left without.
  final func leaveUpstreams(_ removed: inout Removed) {
    if holdsItself { giveUpHold(&removed) }
    var combiners: [Unmanaged<AnyPromise>] = []
    var next: Unmanaged<AnyPromise>? = Unmanaged.passUnretained(self)
    while true {
      // Here `next` is locked and settled.
      while let this = next {
        next = this._withUnsafeGuaranteedRef { this in
          if this.hasMembers, let member = this.leaveMembers(&removed, &combiners) { return member }
          return this.leaveUpstream(this === self, &removed)
        }
      }
      guard let combiner = combiners.popLast() else { return }
      combiner._withUnsafeGuaranteedRef { $0.completion.pointee.lock.lock() }
      removed.drop(combiner)
      next = combiner
    }
  }

  /// Takes the promise out of its upstream's queue, and leaves this promise's lock.
  ///
  /// Returns the upstream, locked and cancelled, if its own upstreams are next.
  private final func leaveUpstream(_ isFirst: Bool, _ removed: inout Removed) -> Unmanaged<AnyPromise>? {
    guard let upstream = upstream.take() else {
      completion.pointee.lock.unlock()
      return nil
    }
    upstream._withUnsafeGuaranteedRef { up in
      up.completion.pointee.lock.lock()
      guard waiter.pointee.isLinked else { return }
      up.completion.pointee.waiters.remove(waiter)
      let reference = Unmanaged.passUnretained(self)
      if waiter.pointee.isUnowned {
        // There is no reference to give up.
      } else if kind.runsWhenCancelled, phase == .waiting {
        phase = .posted
        removed.post(reference)
      } else if isFirst {
        // The promise may be in another list too, through its `settleLink`.
        removed.giveUp(reference)
      } else {
        removed.release(reference)
      }
    }
    if waiter.pointee.isUnowned { removed.giveUpMemory(of: upstream) }
    let isCancelled = wasCancelled.load(ordering: .relaxed) && !keepsUpstream
    return Self.left(upstream, cancelling: isCancelled, &removed) { completion.pointee.lock.unlock() }
  }

  /// Takes the promise out of its members' queues, one after the other, as leaveUpstream does.
  ///
  /// If it returns nil and `hasMembers` is false, every member has been left, and the lock is still held.
  private final func leaveMembers(_ removed: inout Removed, _ combiners: inout [Unmanaged<AnyPromise>])
    -> Unmanaged<AnyPromise>?
  {
    let isCancelled = wasCancelled.load(ordering: .relaxed)
    while let left = members?.takeNext() {
      let waiter = left.waiter
      // If it is not linked, the member is settling, or was not joined yet.
      var isLinked = false
      left.member._withUnsafeGuaranteedRef { member in
        member.completion.pointee.lock.lock()
        isLinked = waiter.pointee.isLinked
        if isLinked { member.completion.pointee.waiters.remove(waiter) }
        // A combinator that leaves a member has observed it: the member's failure is not reported.
        if !isUnused { member.ignore() }
      }
      if waiter.pointee.isUnowned { removed.giveUpMemory(of: left.member) }
      let next = Self.left(left.member, cancelling: isCancelled || left.isUnselected, &removed) {}
      let reference = Unmanaged.passUnretained(self)
      let hasReference = isLinked && !waiter.pointee.isUnowned
      if next != nil {
        // The reference that the member's queue had keeps this promise until its other members are left.
        if !hasReference { _ = reference.retain() }
        combiners.append(reference)
      } else if hasReference {
        removed.drop(reference)
      }
      if let next {
        completion.pointee.lock.unlock()
        return next
      }
    }
    hasMembers = false
    return nil
  }

  /// Records that a waiter of `promise` has left, and decides whether `promise` is cancelled, or of no use.
  ///
  /// Entered with the lock of `promise`. Returns it, still locked, if it is settled now, so that its own upstreams are
  /// next. Otherwise leaves its lock and returns nil. `leave` leaves the lock of the promise that has left, which keeps
  /// the memory of `promise` until `removed` holds it.
  private static func left(
    _ promise: Unmanaged<AnyPromise>,
    cancelling: Bool,
    _ removed: inout Removed,
    _ leave: () -> Void
  ) -> Unmanaged<AnyPromise>? {
    // Not inside a closure with the object, which the unoptimised code retains.
    let isUnused = promise._withUnsafeGuaranteedRef { $0.holdsItself && !$0.hasDependents }
    let isAlone = isUnused && cco_has_one_reference(promise.toOpaque())
    // If it goes on holding itself, no other thread can give that reference up before the lock is left. Then it must
    // not get another one: the walk may come back to it, and find it left by the last one.
    if isUnused || !promise._withUnsafeGuaranteedRef({ $0.holdsItself }) { removed.held.hold(promise) }
    leave()
    return promise._withUnsafeGuaranteedRef { promise in
      if isUnused { promise.giveUpHold(&removed) }
      if cancelling, promise.isUnwanted, !removed.isByConsumer || promise.hasWorkToCancel {
        promise.settleCancelled(nil, &removed)
      } else if isAlone, promise.isUnwanted {
        promise.settleUnused()
      } else {
        promise.completion.pointee.lock.unlock()
        return nil
      }
      return Unmanaged.passUnretained(promise)
    }
  }

  /// Whether the promise is pending, and nothing waits for it.
  private final var isUnwanted: Bool { completion.pointee.waiters.first == nil && !completion.isSettled }
}

/// The work that was recorded under locks and is performed after they are left.
struct Removed {
  /// Promises, each with the reference that an upstream's queue had.
  private var released = SettleList()
  private var surplus: [Unmanaged<AnyPromise>] = []
  private var members: [Unmanaged<AnyPromise>] = []
  private var onCancel: [@Sendable () -> Void] = []
  private var posted: [Unmanaged<AnyPromise>] = []
  private var dropped: [any Error] = []
  private var runs: [Run] = []
  private var memory: [Unmanaged<AnyPromise>] = []
  var held = Held()
  /// Whether a cancelled consumer has begun the cancellation.
  var isByConsumer = false

  init() {}

  mutating func call(_ body: (@Sendable () -> Void)?) {
    if let body { onCancel.append(body) }
  }

  mutating func drop(_ error: (any Error)?) {
    if let error { dropped.append(error) }
  }

  mutating func end(_ run: Run?) {
    if let run { runs.append(run) }
  }

  /// Posts the handler of a cancelled link, which runs nevertheless.
  ///
  /// Takes over one reference.
  mutating func post(_ promise: Unmanaged<AnyPromise>) { posted.append(promise) }

  /// Gives up a reference to a promise that is in no other list.
  mutating func release(_ promise: Unmanaged<AnyPromise>) { released.append(promise) }

  /// Gives up a reference to any promise.
  mutating func giveUp(_ promise: Unmanaged<AnyPromise>) { surplus.append(promise) }

  /// Gives up a reference that a member's queue had, or that led to the promise.
  ///
  /// Its handler may run nevertheless.
  mutating func drop(_ promise: Unmanaged<AnyPromise>) { members.append(promise) }

  /// Gives up a reference to the memory of a promise, which may be in its deinit or have been there.
  mutating func giveUpMemory(of promise: Unmanaged<AnyPromise>) { memory.append(promise) }

  /// Performs the recorded work.
  ///
  /// Called outside every lock.
  mutating func finish() {
    for promise in posted { AnyPromise.post(promise) }
    let words = AnyPromise.leaveSettleList()
    for body in onCancel { body() }
    onCancel = []
    for run in runs { run.end(.cancelled(byConsumer: isByConsumer)) }
    runs = []
    dropped = []
    for promise in members { promise.release() }
    held.giveUp()
    for promise in surplus { AnyPromise.giveUpLink(promise) }
    while let promise = released.popFirst() { AnyPromise.giveUpLink(promise) }
    for promise in memory { cco_release_memory(promise.toOpaque()) }
    AnyPromise.enterSettleList(words)
  }
}

/// References to promises that were locked by a thread that did not own them.
struct Held {
  private var promises: [Unmanaged<AnyPromise>] = []

  init() {}

  /// Retains a promise.
  ///
  /// Called with its lock held, which keeps its memory.
  mutating func hold(_ promise: Unmanaged<AnyPromise>) {
    if cco_try_retain(promise.toOpaque()) { promises.append(promise) }
  }

  /// Gives up the references.
  ///
  /// Called outside every lock.
  mutating func giveUp() {
    for promise in promises { AnyPromise.giveUp(promise) }
    promises = []
  }
}
