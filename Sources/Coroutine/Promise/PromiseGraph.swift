internal import CCoroutineRuntime
import Synchronization

// The graph of promises that wait for one another: its edges, the walks through it, and why no walk uses a promise that
// was freed.
//
// Edges. An edge leads from a promise to one that it waits for, its upstream. It consists of a waiter in the upstream's
// queue, and of the way back:
//
//   edge of                                           waiter               way back
//   a link, a follower, a handler's returned promise  the promise's own    `upstream`
//   a combinator to each member; a link that follows  one in `Members`     the member's entry in `Members`
//
// Walks. A walk goes from a promise along the ways back, over any number of edges:
//   - it takes edges out: of a promise that is cancelled, that settles while it still waits, or that nothing refers to
//     any more (below: Cancellation, Passive promises);
//   - it searches: for a cycle that a new edge would close, or for a handler that needs the calling thread
//     (below: Following; Promise.swift).
//
// Locks, in the order of taking. None is taken the other way round.
//   1  PromiseGraph.lock   held by a walk from its beginning to its end, and while an edge is made that starts at a
//                          promise which other threads know. So walks see a graph in which no other thread makes such
//                          edges or takes edges out, except that promises settle.
//   2  Members.lock        the entries of one combinator, and the collecting of outcomes (Promise+Combine.swift).
//   3  a completion's lock the outcome of one promise, its queue, `upstream`, and the other fields of `PromiseNode`.
//                          A walk holds one at a time. Under it nothing is allocated or released.
// The first two are ThreadLocks, because their holders allocate, and because a walk has no bound. Under none of the
// three foreign code runs, and no promise is released.
//
// What takes no graph lock: an edge from a new promise, which closes no cycle, and settling. A promise that settles
// takes the waiters out of its queue under its own lock. Then each waiting promise clears the way back, under its own
// lock (upstreamSettled, memberSettled). Only a promise that settles while it still has edges begins a walk.
//
// Why no walk uses a freed promise. A waiting promise does not own its upstream. A walk W reads the way back from P to
// U under P's lock (2 or 3), and uses U until it leaves the graph lock. U's deinit ends with a read of the graph lock
// (`letWalksEnd`), if an edge has ever led to U: if the lock is taken, the deinit waits until it is free. `wasAwaited`
// says so, and is set before the way back is. To show: the read happens after W took the graph lock, or after W left
// it. Before U is freed, the way back is cleared, by one of these:
//   a. The settling thread of U clears it, under P's lock, and has a reference to U. W has read it before, under the
//      same lock. So W's taking of the graph lock happens before the clearing, which happens before U's deinit. The
//      same if U is settled already, and the thread that makes the edge tells P.
//   b. U is in its deinit, and rejects its waiters with `abandoned`: as a.
//   c. A walk clears it: W or an earlier one, whose end happens before W. Let it be W. If W finds the waiter taken out
//      of U's queue, then U's settling thread will take P's lock to tell P, after W: as a. Otherwise W takes the waiter
//      out under U's lock. Then U's settling, or U's deinit if U is pending, takes U's lock after W: it would have
//      taken the waiter out otherwise. The deinit takes it because the promise was waited for. If U is not joined yet,
//      the thread that would join it has a reference, and finds the member's entry taken out, under `Members.lock`,
//      after W.
//   d. P is passive and in its deinit, so that the settling thread cannot tell it. A passive promise has a reference to
//      the memory of each upstream (`cco_retain_memory`) from the linking until the edge is gone.
// So the read costs a promise that was waited for one load, and settling costs no shared write.
//
// References. The last release of a promise under a lock would run its deinit there. Swift may retain and release an
// object whenever a method of it is called. So walks know promises by their addresses alone (`PromiseRef`), and use
// fields that lie at fixed places in them. What a walk has to release, post or call, it collects (`Walk`), and does
// after it has left the graph lock.

enum PromiseGraph {
  /// Held by walks, and while an edge is made from a promise that other threads know.
  ///
  /// Its word is C's, which frees it in a forked child: otherwise a walk of a thread that has stayed in the parent
  /// would make every promise of the child unusable. Between its steps a walk leaves each promise as it may be.
  static var lock: UnsafeMutablePointer<ThreadLock> {
    @inline(__always) get { UnsafeMutableRawPointer(cco_promise_lock()).assumingMemoryBound(to: ThreadLock.self) }
  }

  /// Waits for the end of a walk that may use the caller, a promise at the end of its deinit.
  @inline(__always)
  static func letWalksEnd() { lock.pointee.waitWhileTaken() }

  /// Whether `isSought` accepts a promise on the way upstream from `start`.
  ///
  /// Called under the graph lock. The caller releases `held` after it has left the lock: a run that ends meanwhile
  /// would be released here otherwise, and with it what its body has captured.
  static func find(from start: PromiseRef, holding held: inout [Upstreams], _ isSought: (PromiseRef) -> Bool) -> Bool {
    // A second visit adds nothing, and a graph could cause very many.
    var (open, seen): ([PromiseRef], Set<PromiseRef>) = ([start], [])
    while let promise = open.popLast() {
      guard seen.insert(promise).inserted else { continue }
      if isSought(promise) { return true }
      promise.completion.lock()
      let (upstream, upstreams) = (promise.node.pointee.upstream, promise.node.pointee.upstreams)
      promise.completion.unlock()
      if let upstream { open.append(upstream) }
      if let upstreams {
        held.append(upstreams)
        open += upstreams.attached()
      }
    }
    return false
  }
}

/// What a promise waits for otherwise than by its own waiter.
///
/// These are the members of a combinator, the member of a link that follows, or the steps of a run. They are one field
/// of a promise, because each reference costs the deinit of every promise a call.
class Upstreams: @unchecked Sendable {
  // Sound because it has no state.
  init() {}

  /// Whether edges lead to some of them.
  var hasAttached: Bool { false }

  /// The promises to which edges lead.
  func attached() -> [PromiseRef] { [] }

  /// Takes the edges out: calls `leave` for each promise to which an edge led, with the edge's waiter.
  ///
  /// `isUnselected`: whether the promise is cancelled if it has no other waiter.
  func takeAttached(_ leave: (PromiseRef, UnsafeMutablePointer<Waiter>, _ isUnselected: Bool) -> Void) {}

  /// The run that has the steps.
  var run: Run? { nil }
}

/// The part of a promise that walks use.
///
/// It is used through its address only. The completion's lock covers it, except the fields that are set before another
/// thread knows the promise.
struct PromiseNode: ~Copyable {
  /// ThreadSanitizer records an inout access to any field at the address of the struct.
  let unused: UInt = 0
  /// The promise that this one waits for by its own waiter.
  var upstream: PromiseRef?
  /// The other promises that this one waits for: its members (constant once set), or the steps of a run (until it
  /// settles).
  var upstreams: Upstreams?
  var onCancel: (@Sendable () -> Void)?
  /// Runs the handler, unless `ordered` does; alive while `hold` is not `none`, or for ever if it is a worker's.
  ///
  /// If the promise has a run, the scheduler of the coroutine, which is alive as long as that.
  var scheduler: Unmanaged<Scheduler>?
  var ordered: OrderedHandlers?
  var kind = HandlerKind(rawValue: 0)
  var phase = AnyPromise.Phase.free
  /// Whether a cancellation of this promise goes no further upstream.
  var keepsUpstream = false
  /// Whether the promise is of no use once nothing refers to it.
  var isPassive = false
  /// Whether the promise, which is passive, owns a reference to itself.
  var holdsItself = false
  /// Whether nothing refers to the promise, which is passive, and it leaves its upstreams for that reason.
  // Not shared: it is set when no call can come any more.
  let isUnused = Atomic(false)
  /// Whether `cancel` settled the promise: a resumer that comes later is then not reported.
  // Not shared: a cancellation depends on every other step.
  let wasCancelled = Atomic(false)

  // A part of the init of each promise.
  @inline(__always) init() {}
}

/// The address of a promise.
///
/// It owns nothing, and its methods retain nothing.
struct PromiseRef: Hashable {
  let address: UnsafeMutableRawPointer

  init(_ promise: AnyPromise) { address = Unmanaged.passUnretained(promise).toOpaque() }

  var object: Unmanaged<AnyPromise> { .fromOpaque(address) }
  var completion: CompletionRef { property(at: 0) }
  var waiter: UnsafeMutablePointer<Waiter> { property(at: AnyPromise.waiterOffset) }
  var node: UnsafeMutablePointer<PromiseNode> { property(at: AnyPromise.nodeOffset) }

  private func property<Value: ~Copyable>(at offset: Int) -> UnsafeMutablePointer<Value> {
    address.advanced(by: objectHeader + offset).assumingMemoryBound(to: Value.self)
  }

  /// Whether cancelling the promise stops work.
  ///
  /// Called under its lock.
  var hasWorkToCancel: Bool {
    // Not `!= nil`: in debug builds that wraps the closure in another one, which is an allocation.
    if case .some = node.pointee.onCancel { return true }
    return node.pointee.upstream != nil || node.pointee.upstreams != nil || node.pointee.phase != .free
  }

  /// Whether a promise or a callback waits for this one.
  ///
  /// Called under the lock. It skips the coroutines that wait before them.
  var hasDependents: Bool { completion.pointee.waiters.first { $0.pointee.job == nil } != nil }
}

// MARK: - Following

// A promise that follows another settles as the other does. It is locked in at once: from then on no other call settles
// it, except `cancel`.
//
// Waiting promises never form a cycle of edges (above).
// - An edge that starts at a promise which no other promise knows yet closes no cycle, because no promise waits for the
//   new one.
// - All other edges are made by the two functions here, one after the other, under the graph lock. Each first checks
//   whether the awaited promise waits, directly or indirectly, for the promise that is to wait. So if several threads
//   together would close a cycle, the last one finds the edges of all others. Only its promise rejects with `cycle`,
//   and the failure then runs back along the edges.
// - An edge that disappears during the search disappears because one of its two promises settles. No cycle contains
//   that promise.
// - The search goes from the waiting promise to its upstream. It starts only if some promise waits for the follower. So
//   the length of a chain of follows adds no cost to building it.
// - A coroutine that waits for a promise which it has to settle itself is not an edge, and is not found. Such
//   coroutines are those of retries and bounded runs (Run.swift).

extension AnyPromise {
  /// Locks the promise in.
  ///
  /// Returns false if it was settled or locked in before.
  @usableFromInline
  final func lockIn() -> Bool {
    completion.withLock {
      guard !completion.known.isSettled, !isLocked else { return false }
      isLocked = true
      return true
    }
  }

  /// Waits for `other`, and settles as `other` does.
  ///
  /// This promise is locked in, and its own waiter is free. `runner` copies a value. Returns false if this promise was
  /// settled first; then it is not connected to `other`.
  @usableFromInline
  final func wait(for other: AnyPromise, _ runner: @escaping PromiseRunner) -> Bool {
    // Released at the end, after every lock. (Not by `consume`, which releases a closure's captures once too often.)
    var handled: (any Error)?
    defer { withExtendedLifetime(handled) {} }
    return becomeWaiting(for: other) {
      // If this promise had a handler, the handler has dealt with the failure that it got.
      handled = completion.pointee.failure.take()
      node.pointee.kind = HandlerKind(rawValue: 0)
      self.runner = runner
      node.pointee.phase = .waiting
      node.pointee.upstream = other.ref
      return (-1, waiter)
    }
  }

  /// Waits for `other` as the one member of a link, which waits for its upstream or has a handler to run.
  ///
  /// Returns false if this promise was settled first; then it is not connected to `other`.
  final func wait(for other: AnyPromise, _ member: Members) -> Bool {
    becomeWaiting(for: other) {
      member.enter(other, at: 0)
      node.pointee.upstreams = member
      return (0, member.waiter(at: 0))
    }
  }

  /// Makes an edge with the waiter that `prepare` returns, or rejects if the edge would close a cycle.
  ///
  /// If `other` has already released its waiters, this promise is told at once. `prepare` runs under this promise's
  /// lock, after every check.
  private final func becomeWaiting(
    for other: AnyPromise,
    _ prepare: () -> (index: Int, waiter: UnsafeMutablePointer<Waiter>)
  ) -> Bool {
    // Released at the end, after every lock.
    var held: [Upstreams] = []
    defer { withExtendedLifetime(held) {} }
    PromiseGraph.lock.pointee.lock()
    if other === self || isAwaited(by: other, holding: &held) {
      PromiseGraph.lock.pointee.unlock()
      fail(CoroutineError.cycle)
      return true
    }
    completion.lock()
    if completion.known.isSettled {
      completion.unlock()
      PromiseGraph.lock.pointee.unlock()
      return false
    }
    other.wasAwaited.store(true, ordering: .relaxed)
    let (index, waiter) = prepare()
    let reference = Unmanaged.passRetained(self)
    completion.unlock()
    // If this promise is settled meanwhile, the walk that takes the new edge out waits for the graph lock.
    let isLinked = other.link(waiter)
    PromiseGraph.lock.pointee.unlock()
    if !isLinked {
      other.ignore()
      Self.upstreamSettled(reference, index)
    }
    return true
  }

  /// Gives up `other`, for a promise that was settled before it could wait for `other`.
  ///
  /// If this promise was cancelled, `other` is cancelled too, unless it has other waiters.
  @usableFromInline
  final func letGo(of other: AnyPromise) {
    guard node.pointee.wasCancelled.load(ordering: .acquiring) else { return }
    other.ignore()
    _ = other.cancel(with: nil, unlessAwaited: true)
  }

  /// Whether `other` waits for this promise, directly or indirectly.
  ///
  /// Called under the graph lock.
  private final func isAwaited(by other: AnyPromise, holding held: inout [Upstreams]) -> Bool {
    let this = ref
    let isWaitedFor = completion.withLock { completion.pointee.waiters.first { $0.pointee.notify != nil } != nil }
    guard isWaitedFor else { return false }
    return PromiseGraph.find(from: other.ref, holding: &held) { $0 == this }
  }
}

extension AnyPromise {
  /// Whether the promise's own waiter is free: it has no upstream, and no handler of its own is still to settle it.
  ///
  /// A combinator's is free: it waits for its members by waiters of their own.
  @usableFromInline final var isFree: Bool {
    completion.withLock { node.pointee.upstream == nil && node.pointee.phase == .free }
  }
}

// MARK: - Cancellation

// Cancellation goes upstream: from the cancelled promise to the promises that it waits for, as long as no other waiter
// needs them.
//
// It begins with a call of `cancel`, or with a consumer that is cancelled while it waits: a coroutine or a Task. Such a
// consumer first takes its waiter out of the queue. Then it cancels the promise if the queue is empty and the promise
// has work to cancel: an `onCancel`, a run, an upstream, or members. A promise without work, which other code will
// fulfil, is left pending; here as well as further upstream.
//
// A promise that has an outcome, and has edges still, leaves its upstreams in a walk:
//
//   open = [the promise]
//   until `open` is empty: take one; for each of its upstreams, under the upstream's lock:
//     - take the waiter out of the upstream's queue;
//     - if the upstream is pending and nothing else waits for it, settle it there and then, if
//         the promise was cancelled                       -> as cancelled
//         only the upstream itself refers to the upstream -> as abandoned (below)
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
// - A walk against the release of an upstream: above. The walk may settle a promise that is in its
//   deinit; the deinit then finds it settled.
// - A new waiter of a passive promise against the leaving of the last one: below.
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
    // Not `take`, for the reason in AnyPromise.swift.
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

// MARK: - Passive promises

// Promises that run no code of the user's, and only pass outcomes on: `uncancelled`, `asVoid`, a combinator that
// cancels no member. A program may make very many of them for one long-lived promise, wait for each for a while, and
// give it up: `shared.uncancelled` in a race, a race in a select.
// So each of them leaves its upstreams when nothing refers to it any more, in constant time for each upstream, and
// not only when an upstream settles.
//
//   NOT HELD <--- the first promise or callback waits for it / the last one has left ---> HOLDS ITSELF
//      |                                                                                   |
//      +-- the last reference goes: its deinit leaves the upstreams                        +-- settles: NOT HELD
//
// A coroutine that waits is not counted: it has a reference in its frame.
//
// `holdsItself` changes under the promise's lock, and a thread that adds a waiter has a reference. If the last
// dependent leaves in a walk and the promise's reference to itself is its only one, then nothing can add a waiter to it
// any more: the walk settles it as abandoned, and goes on with its upstreams. So a chain of such promises ends in
// constant stack, and not by one deinit inside another. In all other cases the reference is given up outside every
// lock.

extension AnyPromise {
  /// Lets a passive promise own itself, because a promise or a callback waits for it that may have no reference to it.
  ///
  /// Called under its lock, by a thread that has a reference.
  final func holdWhileAwaited() {
    guard !node.pointee.holdsItself, !completion.known.isSettled else { return }
    node.pointee.holdsItself = true
    _ = Unmanaged.passRetained(self)
    cco_order_retains()
  }

  /// Leaves the upstreams of a pending passive promise that is in its deinit.
  final func leaveUnused() {
    node.pointee.isUnused.store(true, ordering: .relaxed)
    completion.lock()
    let (upstream, upstreams) = (node.pointee.upstream, node.pointee.upstreams)
    completion.unlock()
    guard upstream != nil || upstreams?.hasAttached ?? false else { return }
    // The upstreams have one consumer less.
    Host.touchesEverything()
    var walk = Walk()
    walk.leaveUpstreams(of: ref)
    walk.finish()
  }

  // MARK: Callbacks

  /// Links a callback, as `CompletionRef.add` does.
  final func link(_ callback: WaitCallback) -> Bool {
    completion.touch()
    guard completion.add(callback) else { return false }
    if isPassive { completion.withLock { if ref.hasDependents { holdWhileAwaited() } } }
    return true
  }

  /// Unlinks a callback, as `CompletionRef.remove` does.
  final func unlink(_ callback: WaitCallback) -> Bool {
    let wasLinked = completion.remove(callback)
    guard isPassive else { return wasLinked }
    completion.lock()
    let isLetGo = node.pointee.holdsItself && !ref.hasDependents
    if isLetGo { node.pointee.holdsItself = false }
    completion.unlock()
    if isLetGo { Self.giveUp(ref.object) }
    return wasLinked
  }
}
