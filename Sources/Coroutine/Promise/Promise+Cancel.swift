internal import CCoroutine
import Synchronization

// Cancellation goes upstream: from the cancelled promise to the promises that it waits for, as long as no other waiter
// needs them.
//
// It begins with a call of `cancel`, or with a consumer that is cancelled while it waits: a coroutine or a Task. Such a
// consumer first takes its waiter out of the queue. Then it cancels the promise if the queue is empty and the promise
// has work to cancel: an `onCancel`, a run, an upstream, or members. A promise without work, which other code will
// fulfil, is left pending; here as well as further upstream.
//
// A promise that has an outcome, and has edges still, leaves its upstreams in a walk (Promise+Graph.swift):
//
//   open = [the promise]
//   until `open` is empty: take one; for each of its upstreams, under the upstream's lock:
//     - take the waiter out of the upstream's queue;
//     - if the upstream is pending and nothing else waits for it, settle it there and then, if
//         the promise was cancelled                       -> as cancelled
//         only the upstream itself refers to the upstream -> as abandoned (Promise+Passive.swift)
//       and add it to `open`.
//   leave the graph lock; post, call and release what was collected.
// So a chain of any length ends in constant stack.
//
// Races
// - Consumers that leave at once: each reads the queue after it has left it, in one critical section of the
//   upstream's lock. So the last one to leave finds the queue empty, and no other one does.
// - A consumer that arrives while the last one leaves: if its waiter is linked first, the queue is not empty, and the
//   promise goes on. Otherwise it finds a promise that is cancelled, as if it had arrived later.
// - Settling against cancelling: both change `state` under the promise's lock, so one of them comes first. The consumer
//   throws its own cancellation in both cases.
// - An upstream that settles against the walk that takes the waiter out of its queue: one of them finds the waiter
//   linked, under the upstream's lock, and has the reference that the queue had. If it is the settling thread, its call
//   of upstreamSettled finds the promise settled, and gives the reference up.
// - Two walks: one after the other, by the graph lock.
// - A walk against the release of an upstream: Promise+Graph.swift. The walk may settle a promise that is in its
//   deinit; the deinit then finds it settled.
// - A new waiter of a passive promise against the leaving of the last one: Promise+Passive.swift.
//
// No waiter of an upstream needs to be woken, because the walk settles an upstream only if its queue is empty.

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
    // Made before the lock is taken.
    let cancelled = Self.cancelled
    completion.lock()
    guard !completion.known.isSettled, !(unlessAwaited && completion.pointee.waiters.first != nil),
      !byConsumer || ref.hasWorkToCancel
    else {
      completion.unlock()
      return false
    }
    // A failure that is already stored is the upstream's. A cancellation does not mask it.
    let masked = completion.pointee.failure
    if let error { completion.pointee.failure = error }
    ref.settleCancelled(cancelled)
    leaveAndTell(isCancelled: true, byConsumer: byConsumer)
    _ = consume masked
    return true
  }

  /// Called by a coroutine or Task that was cancelled while it waited for this promise, and does not wait any more.
  @usableFromInline @inline(never)
  final func consumerWasCancelled() { _ = cancel(with: nil, unlessAwaited: true, byConsumer: true) }

  /// Takes the work and the edges out of a promise that has just settled, and notifies its waiters.
  ///
  /// Called under the lock, which it leaves.
  final func leaveAndTell(isCancelled: Bool, byConsumer: Bool = false) {
    let ending = ref.takeEnding()
    let heldItself = node.pointee.holdsItself
    node.pointee.holdsItself = false
    let (upstream, upstreams) = (node.pointee.upstream, node.pointee.upstreams)
    let isWaitedFor = !completion.pointee.isReleased
    completion.unlock()
    var walk = Walk(isByConsumer: byConsumer)
    if isCancelled { walk.collect(ending) }
    if upstream != nil || upstreams?.hasAttached ?? false { walk.leaveUpstreams(of: ref) }
    if isWaitedFor { callWaiters() }
    walk.finish()
    // Foreign code: its release may run anything.
    let words = Self.leaveSettleList()
    if !isCancelled { ending.run?.end(.left) }
    _ = consume ending
    if heldItself { ref.object.release() }
    Self.enterSettleList(words)
  }

  /// The error of every cancelled promise: one object, so that none is allocated under a lock.
  fileprivate static let cancelled: any Error = CancellationError()
}

/// The cancellation work of a promise: called if it is cancelled, released if it settles otherwise.
struct Ending {
  fileprivate let onCancel: (@Sendable () -> Void)?
  fileprivate let run: Run?
}

extension PromiseRef {
  /// Takes out the cancellation work.
  ///
  /// Called under the lock of a promise that has its outcome.
  fileprivate func takeEnding() -> Ending {
    // Not `take`, for the reason in Promise+Link.swift.
    let ending = Ending(onCancel: node.pointee.onCancel, run: node.pointee.upstreams?.run)
    node.pointee.onCancel = nil
    if ending.run != nil { node.pointee.upstreams = nil }
    if completion.pointee.waiters.first == nil { completion.pointee.isReleased = true }
    return ending
  }

  /// Rejects a pending promise by a cancellation.
  ///
  /// Called under the lock.
  fileprivate func settleCancelled(_ error: any Error) {
    node.pointee.wasCancelled.store(true, ordering: .releasing)
    fail(error)
  }

  /// Rejects a pending passive promise that has no reference but the one to itself.
  ///
  /// Called under the lock. Only a weak reference can still show the outcome.
  fileprivate func settleUnused(_ error: any Error) {
    node.pointee.isUnused.store(true, ordering: .relaxed)
    completion.pointee.isObserved.store(true, ordering: .relaxed)
    fail(error)
  }

  /// Rejects a pending promise with `error`, unless a failure is stored already.
  private func fail(_ error: any Error) {
    if completion.pointee.failure == nil { completion.pointee.failure = error }
    cco_order_retains()
    completion.known.state.store(Completion.failed, ordering: .releasing)
  }
}

/// A walk that takes edges out, and what it leaves to do after the graph lock.
struct Walk {
  /// Whether a cancelled consumer has begun the cancellation.
  private let isByConsumer: Bool
  // Made before a lock is taken.
  private let cancelled = AnyPromise.cancelled
  private let abandoned = AnyPromise.abandoned
  /// Settled promises whose upstreams are to be left, each perhaps with a reference to its memory.
  private var open: [(promise: PromiseRef, hasMemory: Bool)] = []
  private var endings: [Ending] = []
  /// Links whose handler runs although they are cancelled, each with a reference.
  private var posted: [Unmanaged<AnyPromise>] = []
  /// References to give up; `isLink`: the one of an upstream's queue to a link, whose handler will not run.
  private var references: [(promise: Unmanaged<AnyPromise>, isLink: Bool)] = []

  init(isByConsumer: Bool = false) { self.isByConsumer = isByConsumer }

  fileprivate mutating func collect(_ ending: Ending) { endings.append(ending) }

  /// Takes all edges of `promise` out, and those of the promises that are settled for that reason.
  ///
  /// The promise is settled, or in its deinit. The caller holds no lock.
  mutating func leaveUpstreams(of promise: PromiseRef) {
    PromiseGraph.lock.pointee.lock()
    open.append((promise, false))
    while let (next, hasMemory) = open.popLast() {
      leaveUpstream(of: next)
      leaveMembers(of: next)
      if hasMemory { cco_release_memory(next.address) }
    }
    PromiseGraph.lock.pointee.unlock()
  }

  private mutating func leaveUpstream(of promise: PromiseRef) {
    let (completion, node, waiter) = (promise.completion, promise.node, promise.waiter)
    completion.lock()
    let upstream = node.pointee.upstream
    node.pointee.upstream = nil
    let isCancelled = node.pointee.wasCancelled.load(ordering: .relaxed) && !node.pointee.keepsUpstream
    completion.unlock()
    guard let upstream, leave(upstream, waiter, cancelling: isCancelled, observing: false), !waiter.pointee.isUnowned
    else { return }
    completion.lock()
    let isPosted = node.pointee.kind.runsWhenCancelled && node.pointee.phase == .waiting
    if isPosted { node.pointee.phase = .posted }
    completion.unlock()
    if isPosted { posted.append(promise.object) } else { references.append((promise.object, true)) }
  }

  private mutating func leaveMembers(of promise: PromiseRef) {
    promise.completion.lock()
    let upstreams = promise.node.pointee.upstreams
    promise.completion.unlock()
    let isCancelled = promise.node.pointee.wasCancelled.load(ordering: .relaxed)
    let isUnused = promise.node.pointee.isUnused.load(ordering: .relaxed)
    upstreams?.takeAttached { member, waiter, isUnselected in
      // A combinator that leaves a member has observed it: the member's failure is not reported.
      let isLinked = leave(member, waiter, cancelling: isCancelled || isUnselected, observing: !isUnused)
      if isLinked, !waiter.pointee.isUnowned { references.append((promise.object, false)) }
    }
  }

  /// Takes `waiter` out of the queue of `upstream`, and settles `upstream` if it is not needed any more.
  ///
  /// Returns whether the waiter was linked. If it was not, the upstream is settling, or was not joined yet.
  private mutating func leave(
    _ upstream: PromiseRef,
    _ waiter: UnsafeMutablePointer<Waiter>,
    cancelling: Bool,
    observing: Bool
  ) -> Bool {
    let (completion, node) = (upstream.completion, upstream.node)
    completion.lock()
    let isLinked = waiter.pointee.isLinked
    if isLinked { completion.pointee.waiters.remove(waiter) }
    if observing { completion.pointee.isObserved.store(true, ordering: .relaxed) }
    let isLetGo = node.pointee.holdsItself && !upstream.hasDependents
    let isUnused = isLetGo && cco_has_one_reference(upstream.address)
    if isLetGo { node.pointee.holdsItself = false }
    let isUnwanted = completion.pointee.waiters.first == nil && !completion.known.isSettled
    let isCancelled = isUnwanted && cancelling && (!isByConsumer || upstream.hasWorkToCancel)
    let isEnded = isCancelled || isUnwanted && isUnused
    var ending: Ending?
    if isCancelled {
      upstream.settleCancelled(cancelled)
    } else if isEnded {
      upstream.settleUnused(abandoned)
    }
    if isEnded { ending = upstream.takeEnding() }
    completion.unlock()
    if isCancelled, let ending { collect(ending) }
    if isLetGo { references.append((upstream.object, false)) }
    let hasMemory = waiter.pointee.isUnowned
    if isEnded { open.append((upstream, hasMemory)) } else if hasMemory { cco_release_memory(upstream.address) }
    return isLinked
  }

  /// Does what the walk has left to do.
  ///
  /// Called outside every lock.
  mutating func finish() {
    for promise in posted { AnyPromise.post(promise) }
    let words = AnyPromise.leaveSettleList()
    for ending in endings {
      ending.onCancel?()
      ending.run?.end(.cancelled(byConsumer: isByConsumer))
    }
    endings = []
    for (promise, isLink) in references {
      if isLink { AnyPromise.giveUpLink(promise) } else { AnyPromise.giveUp(promise) }
    }
    AnyPromise.enterSettleList(words)
  }
}
