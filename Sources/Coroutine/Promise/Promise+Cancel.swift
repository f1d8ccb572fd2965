internal import CCoroutine
import Synchronization

// Cancelling goes against the arrows: from the promise that is cancelled to those it waits for, as long as nobody else waits
// for them. It goes hand over hand: the lock of the one who waits is left only when the upstream's lock is held, because
// that lock is what keeps the upstream in memory (AnyPromise.swift, 1). On the way nothing is called and nothing is
// released; what has to be is noted in a `Removed` and done at the end, outside of every lock, in constant stack.
//
// Swift may retain what a method is called on, and release it again, under that one's lock. If it is released elsewhere in between,
// this would be the last reference, and the deinit would take the lock that its own caller holds. So whoever locks a promise
// that it does not own holds it first, unless it is in its deinit already, where a reference more or less decides nothing.
//
// Why an upstream needs no one to be woken: it is cancelled on the way only if its list of waiters is empty. So it needs
// no reference either, which could not be taken if it were in its deinit: it is settled under its lock and left.

extension AnyPromise {
  /// Rejects it with `CancellationError` and calls `onCancel`, unless it is settled.
  ///
  /// A promise that it waits for, and that nobody else waits for, is cancelled too, and so on up to the work itself. A failure
  /// that is on its way to a handler of this promise stays what it is rejected with. Does not suspend; any thread.
  public final func cancel() { _ = cancel(with: nil) }

  /// As cancel, with another error for this promise.
  ///
  /// `unlessAwaited`: only if nobody waits for it.
  final func cancel(with error: (any Error)?, unlessAwaited: Bool = false) -> Bool {
    completion.pointee.lock.lock()
    guard !completion.isSettled, !(unlessAwaited && completion.pointee.waiters.first != nil) else {
      completion.pointee.lock.unlock()
      return false
    }
    var removed = Removed()
    settleCancelled(error, &removed)
    let isWaitedFor = !completion.pointee.isReleased
    leaveUpstreams(&removed)
    if isWaitedFor { callWaiters() }
    removed.finish()
    return true
  }

  /// Under its lock, pending.
  private final func settleCancelled(_ error: (any Error)?, _ removed: inout Removed) {
    // What is there already is the upstream's failure: a cancellation does not mask it.
    if let error {
      removed.drop(completion.pointee.failure)
      completion.pointee.failure = error
    } else if completion.pointee.failure == nil {
      completion.pointee.failure = CancellationError()
    }
    wasCancelled.store(true, ordering: .releasing)
    // Not by `take`, as in Promise+Link.swift.
    removed.call(onCancel)
    onCancel = nil
    completion.pointee.state.store(Completion.failed, ordering: .releasing)
    if completion.pointee.waiters.first == nil { completion.pointee.isReleased = true }
  }

  /// Takes a settled promise out of the lists of those it waited for.
  ///
  /// Was it cancelled, then so is each of them that nobody else waits for. Entered with this promise's lock, left without.
  final func leaveUpstreams(_ removed: inout Removed) {
    var combiners: [Unmanaged<AnyPromise>] = []
    var next: Unmanaged<AnyPromise>? = Unmanaged.passUnretained(self)
    while true {
      // Locked, settled.
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

  /// Leaves this promise's lock; answers the upstream, locked and cancelled, whose own upstreams are next.
  private final func leaveUpstream(_ isFirst: Bool, _ removed: inout Removed) -> Unmanaged<AnyPromise>? {
    guard let upstream = upstream.take() else {
      completion.pointee.lock.unlock()
      return nil
    }
    return upstream._withUnsafeGuaranteedRef { up in
      up.completion.pointee.lock.lock()
      removed.held.hold(upstream)
      if waiter.pointee.isLinked {
        up.completion.pointee.waiters.remove(waiter)
        let reference = Unmanaged.passUnretained(self)
        if kind.runsWhenCancelled, phase == .waiting {
          phase = .posted
          removed.post(reference)
        } else if isFirst {
          // It may be in another list by its `settleLink` too.
          removed.giveUp(reference)
        } else {
          removed.release(reference)
        }
      }
      let isCancelled = wasCancelled.load(ordering: .relaxed)
      completion.pointee.lock.unlock()
      return up.cancelIfUnwanted(isCancelled, &removed)
    }
  }

  /// As leaveUpstream, for one member after the other; nil, and `hasMembers` false: all are left, and the lock is held.
  private final func leaveMembers(_ removed: inout Removed, _ combiners: inout [Unmanaged<AnyPromise>])
    -> Unmanaged<AnyPromise>?
  {
    let isCancelled = wasCancelled.load(ordering: .relaxed)
    while let left = members?.takeNext() {
      let waiter = left.waiter
      removed.drop(left.ended)
      let next: Unmanaged<AnyPromise>? = left.member._withUnsafeGuaranteedRef { member in
        member.completion.pointee.lock.lock()
        removed.held.hold(left.member)
        // Not linked: its settle is under way, or it was not joined yet.
        let isLinked = waiter.pointee.isLinked
        if isLinked { member.completion.pointee.waiters.remove(waiter) }
        // Whoever loses interest has seen it: its failure is nobody's news.
        member.ignore()
        let next = member.cancelIfUnwanted(isCancelled || left.isLoser, &removed)
        let reference = Unmanaged.passUnretained(self)
        if next != nil {
          // The reference that the member's list had keeps this promise until its other members are left.
          if !isLinked { _ = reference.retain() }
          combiners.append(reference)
        } else if isLinked {
          removed.drop(reference)
        }
        return next
      }
      if let next {
        completion.pointee.lock.unlock()
        return next
      }
    }
    hasMembers = false
    return nil
  }

  /// Entered with this promise's lock; answers it, still locked, if it was cancelled now, else leaves the lock.
  private final func cancelIfUnwanted(_ cancelling: Bool, _ removed: inout Removed) -> Unmanaged<AnyPromise>? {
    guard cancelling, completion.pointee.waiters.first == nil, !completion.isSettled else {
      completion.pointee.lock.unlock()
      return nil
    }
    settleCancelled(nil, &removed)
    return Unmanaged.passUnretained(self)
  }
}

/// What was taken out under locks and has to be seen to after they are left.
struct Removed {
  /// Promises with the reference that an upstream's list had.
  private var released = SettleList()
  private var surplus: [Unmanaged<AnyPromise>] = []
  private var members: [Unmanaged<AnyPromise>] = []
  private var onCancel: [@Sendable () -> Void] = []
  private var posted: [Unmanaged<AnyPromise>] = []
  private var dropped: [any Error] = []
  private var ended: [BesidesEnd] = []
  var held = Held()

  init() {}

  mutating func call(_ body: (@Sendable () -> Void)?) {
    if let body { onCancel.append(body) }
  }

  mutating func drop(_ error: (any Error)?) {
    if let error { dropped.append(error) }
  }

  mutating func drop(_ ended: BesidesEnd?) {
    if let ended { self.ended.append(ended) }
  }

  /// Its handler runs although the link was cancelled; with one reference.
  mutating func post(_ promise: Unmanaged<AnyPromise>) { posted.append(promise) }

  /// Gives up a reference of one that is in no other list.
  mutating func release(_ promise: Unmanaged<AnyPromise>) { released.append(promise) }

  /// Gives up a reference of any.
  mutating func giveUp(_ promise: Unmanaged<AnyPromise>) { surplus.append(promise) }

  /// Gives up a reference that a member's list had, or the way to it: such a one's handler may run none the less.
  mutating func drop(_ promise: Unmanaged<AnyPromise>) { members.append(promise) }

  /// Outside of every lock.
  mutating func finish() {
    for promise in posted { AnyPromise.post(promise) }
    let words = AnyPromise.leaveSettleList()
    for body in onCancel { body() }
    onCancel = []
    dropped = []
    ended = []
    for promise in members { promise.release() }
    held.giveUp()
    for promise in surplus { AnyPromise.giveUpLink(promise) }
    while let promise = released.popFirst() { AnyPromise.giveUpLink(promise) }
    AnyPromise.enterSettleList(words)
  }
}

/// Promises that were locked by one who did not own them.
struct Held {
  private var promises: [Unmanaged<AnyPromise>] = []

  init() {}

  /// Called with its lock held, which keeps its memory.
  mutating func hold(_ promise: Unmanaged<AnyPromise>) {
    if cco_try_retain(promise.toOpaque()) { promises.append(promise) }
  }

  /// Outside of every lock.
  mutating func giveUp() {
    for promise in promises { AnyPromise.giveUp(promise) }
    promises = []
  }
}
