internal import CCoroutine
import Synchronization

extension AnyPromise {
  /// Whether a combinator cancels the unselected members once another member has decided it.
  ///
  /// The outcomes of unselected members count as observed in both cases.
  public enum Losers: Sendable {
    /// They keep running. Other waiters may need them.
    case leftRunning
    /// They are cancelled, unless they have other waiters.
    case cancelled
  }
}

/// The members of a combinator: its waiters in their queues, and the function that collects their outcomes.
///
/// A link that follows another promise, while its own waiter waits for its upstream, has that promise as its one member
/// (Promise+Follow.swift).
///
/// Invariants
///  1. Everything mutable is under `lock`, except `finish`, which the deciding thread runs once. It is a ThreadLock,
///     because collecting an outcome may allocate. It is taken before a member's lock (Promise+Graph.swift).
///  2. A member's pointer is set while the combinator's waiter is in the member's queue, or while the member's settling
///     thread has taken the waiter out and will call memberSettled (AnyPromise.swift, 1). A member is not owned, so a
///     member that nothing can settle any more is released and rejects. A passive combinator has a reference to each
///     member's memory while the pointer is set.
///  3. The waiters live as long as the combinator.
final class Members: Upstreams, @unchecked Sendable {
  // Sound because of the first invariant.

  /// Collects one outcome.
  ///
  /// Returns true if the combinator is decided.
  typealias Collect = (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool

  // Not shared: the member that decides settles the combinator, which tells.
  private let lock = ThreadLock()
  private let cancelsUnselected: Bool
  private let isPassive: Bool
  private let waiters: UnsafeMutablePointer<Waiter>
  // Apart from the waiters: ThreadSanitizer would count an access to a member as one to the waiter beside it.
  private let members: UnsafeMutablePointer<PromiseRef?>
  private let count: Int
  private var missing: Int
  private var attachedCount = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?

  /// `isPassive`: whether the members' queues do not own the combinator.
  init(
    _ owner: AnyPromise,
    _ count: Int,
    _ losers: AnyPromise.Losers,
    isPassive: Bool,
    collect: @escaping Collect,
    finish: @escaping (AnyPromise) -> Void
  ) {
    self.count = count
    self.collect = collect
    self.finish = finish
    missing = count
    cancelsUnselected = losers == .cancelled
    self.isPassive = isPassive
    waiters = .allocate(capacity: count)
    members = .allocate(capacity: count)
    super.init()
    members.initialize(repeating: nil, count: count)
    let owner = Unmanaged.passUnretained(owner)
    for index in 0..<count {
      (waiters + index).initialize(to: Waiter(promise: owner, memberIndex: index))
      waiters[index].isUnowned = isPassive
    }
  }

  deinit {
    waiters.deallocate()
    members.deallocate()
  }

  /// Enters a member, before another thread knows of it.
  func enter(_ member: AnyPromise, at index: Int) {
    member.wasAwaited.store(true, ordering: .relaxed)
    members[index] = member.ref
    attachedCount += 1
    if isPassive { cco_retain_memory(member.ref.address) }
  }

  func waiter(at index: Int) -> UnsafeMutablePointer<Waiter> { waiters + index }

  /// Links the waiters of the members from `start` on, up to the first member that has settled.
  ///
  /// Returns that member's index, and the caller tells `owner`; the number of members, if there is no such member. A
  /// member is passed over if an earlier one has decided the combinator, which has then left this one. Each queue gets
  /// a reference. All under one lock: a pair of locks for each member cost `all` 7 to 12 %.
  func join(from start: Int, _ owner: Unmanaged<AnyPromise>) -> Int {
    lock.lock()
    defer { lock.unlock() }
    for index in start..<count {
      guard let member = members[index] else { continue }
      if !isPassive { _ = owner.retain() }
      if !member.object._withUnsafeGuaranteedRef({ $0.link(waiter(at: index)) }) { return index }
    }
    return count
  }

  override var hasAttached: Bool { lock.withLock { attachedCount > 0 } }

  override func attached() -> [PromiseRef] { lock.withLock { (0..<count).compactMap { members[$0] } } }

  override func takeAttached(_ leave: (PromiseRef, UnsafeMutablePointer<Waiter>, _ isUnselected: Bool) -> Void) {
    lock.lock()
    defer { lock.unlock() }
    for index in 0..<count where attachedCount > 0 {
      if let member = take(index) { leave(member, waiter(at: index), cancelsUnselected) }
    }
  }

  private func take(_ index: Int) -> PromiseRef? {
    guard let member = members[index] else { return nil }
    members[index] = nil
    attachedCount -= 1
    return member
  }

  /// Collects the outcome of a member that has settled.
  ///
  /// If that decides the combinator, it returns the functions to call and to release outside the lock.
  ///
  /// Also if the combinator has settled, the member is detached: a thread may be about to leave the members, and must
  /// not find this one, which is released when it has told all its waiters.
  func settled(_ index: Int, _ owner: AnyPromise) -> (finish: (AnyPromise) -> Void, collect: Collect)? {
    lock.lock()
    defer { lock.unlock() }
    guard let member = take(index) else { return nil }
    if isPassive {
      if !owner.node.pointee.isUnused.load(ordering: .relaxed) {
        member.completion.pointee.isObserved.store(true, ordering: .relaxed)
      }
      // The settling thread has the member: this is not the last reference to its memory.
      cco_release_memory(member.address)
    }
    guard !owner.completion.known.isSettled, let collect else { return nil }
    missing -= 1
    guard member.object._withUnsafeGuaranteedRef({ collect($0, index, missing == 0) }) else { return nil }
    defer { (self.collect, finish) = (nil, nil) }
    return finish.map { ($0, collect) }
  }
}

extension AnyPromise {
  /// Makes a new promise wait for all of `members`.
  @usableFromInline
  final func wait(
    for members: [AnyPromise],
    _ losers: Losers,
    collect: @escaping (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool,
    finish: @escaping (AnyPromise) -> Void
  ) {
    isPassive = losers == .leftRunning
    let memberList = Members(self, members.count, losers, isPassive: isPassive, collect: collect, finish: finish)
    // All members are entered before the first can decide the combinator, which then leaves the others.
    for (index, member) in members.enumerated() { memberList.enter(member, at: index) }
    node.pointee.upstreams = memberList
    let reference = Unmanaged.passUnretained(self)
    var index = memberList.join(from: 0, reference)
    while index < members.count {
      if isPassive { _ = reference.retain() }
      members[index].ignore()
      Self.upstreamSettled(reference, index)
      index = memberList.join(from: index + 1, reference)
    }
  }

  /// Called when a member of this combinator has settled.
  final func memberSettled(_ reference: Unmanaged<AnyPromise>, _ index: Int) {
    // Constant since the waiter was linked, and no run, which has no waiter.
    let members = unsafeDowncast(node.pointee.upstreams.unsafelyUnwrapped, to: Members.self)
    let decided = members.settled(index, self)
    decided?.finish(self)
    // `decided` holds closures of the user.
    let words = Self.leaveSettleList()
    _ = consume decided
    reference.release()
    Self.enterSettleList(words)
  }
}
