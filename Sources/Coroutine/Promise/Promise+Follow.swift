// A promise that follows another settles as the other does. It is locked in at once: from then on no other call settles
// it, except `cancel`.
//
// Waiting promises never form a cycle.
// - Edges. Every edge is a waiter in the queue of the awaited promise. The waiter belongs to a link, a follower, a
//   promise that a handler returned, or a member of a combinator (PromiseMembers.swift).
// - An edge that starts at a promise which no other promise knows yet closes no cycle, because no promise waits for the
//   new one.
// - All other edges are made by the two functions here, one after the other, under `Following.lock`. Each first checks
//   whether the awaited promise waits, directly or indirectly, for the promise that is to wait. So if several threads
//   together would close a cycle, the last one finds the edges of all others. Only its promise rejects with `cycle`,
//   and the failure then runs back along the edges.
// - An edge that disappears during the search disappears because one of its two promises settles. No cycle contains
//   that promise.
// - The search goes from the waiting promise to its upstream, hand over hand as cancellation does. It starts only if
//   some promise waits for the follower. So the length of a chain of follows adds no cost to building it.
// - A coroutine that waits for a promise which it has to settle itself is not an edge, and is not found. Such coroutines
//   are those of retries and bounded runs (Run.swift).

import Synchronization

enum Following {
  static let lock = ThreadLock()
}

extension AnyPromise {
  /// Locks the promise in.
  ///
  /// Returns false if it was settled or locked in before.
  @usableFromInline
  final func lockIn() -> Bool {
    completion.pointee.lock.withLock {
      guard !completion.isSettled, !isLocked else { return false }
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
      kind = []
      self.runner = runner
      phase = .waiting
      upstream = Unmanaged.passUnretained(other)
      return (-1, waiter)
    }
  }

  /// Waits for `other` as the one member of a link, which waits for its upstream or has a handler to run.
  ///
  /// Returns false if this promise was settled first; then it is not connected to `other`.
  final func wait(for other: AnyPromise, _ member: Members) -> Bool {
    becomeWaiting(for: other) {
      member.enter(other, at: 0)
      members = member
      hasMembers = true
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
    var held = Held()
    defer { held.giveUp() }
    // Before the locks: the world allocates.
    Host.touches(UInt(bitPattern: completion))
    Host.touches(UInt(bitPattern: other.completion))
    Following.lock.lock()
    if other === self || isAwaited(by: other, &held) {
      Following.lock.unlock()
      fail(CoroutineError.cycle)
      return true
    }
    completion.pointee.lock.lock()
    if completion.isSettled {
      completion.pointee.lock.unlock()
      Following.lock.unlock()
      return false
    }
    // It may add a member to a list, between checks that need this lock.
    LockCheck.allowAllocations()
    let (index, waiter) = prepare()
    LockCheck.forbidAllocations()
    let reference = Unmanaged.passRetained(self)
    let isLinked = other.link(waiter)
    completion.pointee.lock.unlock()
    Following.lock.unlock()
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
    guard wasCancelled.load(ordering: .acquiring) else { return }
    other.ignore()
    _ = other.cancel(with: nil, unlessAwaited: true)
  }

  /// Whether `other` waits for this promise, directly or indirectly.
  ///
  /// Called under `Following.lock`.
  final func isAwaited(by other: AnyPromise, _ held: inout Held) -> Bool {
    guard completion.pointee.lock.withLock({ isWaitedForByPromises }) else { return false }
    other.completion.pointee.lock.lock()
    return Self.find(from: Unmanaged.passUnretained(other), &held) { $0 === self }
  }
}

extension AnyPromise {
  /// Whether `isSought` accepts a promise on the way upstream from `start`, which is entered locked and left unlocked.
  ///
  /// `isSought` is called under the promise's lock. The promises on the way are `held` (Promise+Cancel.swift).
  static func find(
    from start: Unmanaged<AnyPromise>,
    _ held: inout Held,
    _ isSought: (AnyPromise) -> Bool
  ) -> Bool {
    LockCheck.allowAllocations()
    defer { LockCheck.forbidAllocations() }
    // The combinators on the way stay locked while their members are visited: the lock keeps the members in memory.
    var open: [(combinator: Unmanaged<AnyPromise>, members: ArraySlice<Unmanaged<AnyPromise>>)] = []
    // A second visit adds nothing, and a graph could cause very many.
    var (seenMembers, seenCombinators): (Set<UnsafeMutableRawPointer>, Set<UnsafeMutableRawPointer>) = ([], [])
    var isFound = false
    var next: Unmanaged<AnyPromise>? = start
    repeat {
      // Go up along links and follows. Each upstream is locked before the lock below it is left.
      while let this = next {
        next = this._withUnsafeGuaranteedRef { this in
          isFound = isSought(this)
          var isSeen = false
          if !isFound, this.hasMembers, let members = this.members {
            if seenCombinators.insert(Unmanaged.passUnretained(this).toOpaque()).inserted {
              open.append(
                (Unmanaged.passUnretained(this), (members.attached() + [this.upstream].compactMap { $0 })[...])
              )
              return nil
            }
            isSeen = true
          }
          defer { this.completion.pointee.lock.unlock() }
          guard !isFound, !isSeen, let up = this.upstream else { return nil }
          up._withUnsafeGuaranteedRef { $0.completion.pointee.lock.lock() }
          held.hold(up)
          return up
        }
      }
      // Then go to the next member of the innermost combinator that has one.
      while next == nil, !isFound, let last = open.indices.last {
        guard let member = open[last].members.popFirst() else {
          open.removeLast().combinator._withUnsafeGuaranteedRef { $0.completion.pointee.lock.unlock() }
          continue
        }
        guard seenMembers.insert(member.toOpaque()).inserted else { continue }
        member._withUnsafeGuaranteedRef { $0.completion.pointee.lock.lock() }
        held.hold(member)
        next = member
      }
    } while next != nil
    while let last = open.popLast() {
      last.combinator._withUnsafeGuaranteedRef { $0.completion.pointee.lock.unlock() }
    }
    return isFound
  }
}

extension AnyPromise {
  /// Whether the promise's own waiter is free: it has no upstream, and no handler of its own is still to settle it.
  ///
  /// A combinator's is free: it waits for its members by waiters of their own.
  @usableFromInline final var isFree: Bool {
    completion.pointee.lock.withLock { upstream == nil && phase == .free }
  }
}
