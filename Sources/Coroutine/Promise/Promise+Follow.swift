// A promise that follows another settles as the other does. It is locked in at once: from then on no other call settles
// it, except `cancel`.
//
// Waiting promises never form a cycle of edges (Promise+Graph.swift).
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

import Synchronization

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
