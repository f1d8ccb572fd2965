// A promise that follows another will settle as that one does. The follower is locked in at once: from then on nobody else
// settles it, except that it can be cancelled.
//
// No circle of promises that wait for one another exists. Every edge is a node in the list of the one who is waited for: of a link,
// a follower, a handler's returned promise, a member of a combinator, or of one that is waited for besides (PromiseMembers.swift): a
// second follow, an attempt of a retry, a piece of a bounded `all(of:concurrently:)`. An edge that starts at a promise that is
// still unknown to all others closes no circle, as nobody waits for that one. All other edges are made by the two functions
// here, one after the other, under `Following.lock`, and each looks first whether the other waits, by whatever way, for the
// one that is to wait. So of several threads that would close a circle together the last one finds the edges of all others,
// and its promise alone rejects with `cycle`; the failure then runs back along the circle. An edge that goes away during the
// search goes away because one of its two promises settles, and no circle goes through that one. Looking goes from the one who waits to the one
// who is waited for, hand over hand as cancelling does, and only if a promise waits for the follower at all: chains that are
// built of follows cost nothing more for being long. (A coroutine that waits for a promise that it is to settle is no edge.)

import Synchronization

enum Following {
  static let lock = SpinLock()
}

extension AnyPromise {
  /// Locks in; false: settled or locked in before.
  @usableFromInline
  final func lockIn() -> Bool {
    completion.pointee.lock.withLock {
      guard !completion.isSettled, !isLocked else { return false }
      isLocked = true
      return true
    }
  }

  /// Waits for `other`, to settle as it does; this promise is locked in, and its node is free.
  ///
  /// `runner` copies a value. False: this promise was settled first, and has nothing to do with `other`.
  @usableFromInline
  final func wait(for other: AnyPromise, _ runner: @escaping PromiseRunner) -> Bool {
    // Released at the end, after every lock. (Not by `consume`, which releases what a closure has captured once too often.)
    var handled: (any Error)?
    defer { withExtendedLifetime(handled) {} }
    return becomeWaiting(for: other) {
      // What its handler was given, if it had one, has been dealt with.
      handled = completion.pointee.failure.take()
      kind = []
      self.runner = runner
      phase = .waiting
      upstream = Unmanaged.passUnretained(other)
      return (-1, waiter)
    }
  }

  /// Waits for `other` as well, whatever this promise waits for already; its node may be taken.
  ///
  /// `ended` is called once when `other` settles, unless this promise has settled first: in the settling call, or in this
  /// one. It is our code, and calls none of the user's. False: this promise is settled, and has nothing to do with `other`.
  @usableFromInline
  final func waitBesides(for other: AnyPromise, _ ended: @escaping BesidesEnd) -> Bool {
    becomeWaiting(for: other) {
      let members = members ?? Members(self)
      self.members = members
      hasMembers = true
      return members.enter(besides: other, self, ended)
    }
  }

  /// Makes an edge of the node that `prepare` gives, and tells at once of an `other` that has told everyone; or finds the
  /// circle that it would close, and rejects.
  ///
  /// `prepare` runs under this promise's lock, when nothing can come between any more.
  private final func becomeWaiting(
    for other: AnyPromise,
    _ prepare: () -> (index: Int, waiter: UnsafeMutablePointer<Waiter>)
  ) -> Bool {
    var held = Held()
    defer { held.giveUp() }
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
    let (index, waiter) = prepare()
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

  /// For one that would have waited for `other`, had it not been settled first.
  ///
  /// Was it cancelled, then so is `other`, unless somebody else waits for it: as if its last consumer had gone.
  @usableFromInline
  final func letGo(of other: AnyPromise) {
    guard wasCancelled.load(ordering: .acquiring) else { return }
    other.ignore()
    _ = other.cancel(with: nil, unlessAwaited: true)
  }

  /// Whether `other` waits for this promise.
  ///
  /// Under `Following.lock`.
  final func isAwaited(by other: AnyPromise, _ held: inout Held) -> Bool {
    guard completion.pointee.lock.withLock({ isWaitedForByPromises }) else { return false }
    other.completion.pointee.lock.lock()
    return Self.find(from: Unmanaged.passUnretained(other), &held) { $0 === self }
  }
}

extension AnyPromise {
  /// Whether there is such a promise on the way up from `start`, which is locked and is left unlocked.
  ///
  /// `isSought` is asked under the promise's lock. Those on the way are `held` (Promise+Cancel.swift).
  static func find(
    from start: Unmanaged<AnyPromise>,
    _ held: inout Held,
    _ isSought: (AnyPromise) -> Bool
  ) -> Bool {
    // Combinators on the way, locked while their members are looked at: that is what keeps the members in memory.
    var open: [(combinator: Unmanaged<AnyPromise>, members: ArraySlice<Unmanaged<AnyPromise>>)] = []
    // Twice the same adds nothing, and could be very often the same.
    var (seenMembers, seenCombinators): (Set<UnsafeMutableRawPointer>, Set<UnsafeMutableRawPointer>) = ([], [])
    var isFound = false
    var next: Unmanaged<AnyPromise>? = start
    repeat {
      // Up along links and follows; each is locked before the one below is left.
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
      // Then the next member of the innermost combinator that has one.
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
  /// Its node is free: it waits for nobody, and no handler of its own is still to settle it.
  @usableFromInline final var isFree: Bool {
    completion.pointee.lock.withLock { upstream == nil && !hasMembers && phase == .free }
  }

  /// A failure is on its way to a handler that decides about this promise: who cancels it meanwhile does not mask it.
  ///
  /// Nil: the handler has dealt with it.
  final func hold(_ failure: (any Error)?) {
    let held = completion.pointee.lock.withLock {
      guard !completion.isSettled else { return failure }
      defer { completion.pointee.failure = failure }
      return completion.pointee.failure
    }
    _ = consume held
  }
}
