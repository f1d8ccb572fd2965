internal import CCoroutine

/// Whether a combinator cancels the unselected members once another member has decided it.
///
/// The outcomes of unselected members count as observed in both cases.
public enum Losers: Sendable {
  /// They keep running. Other waiters may need them.
  case leftRunning
  /// They are cancelled, unless they have other waiters.
  case cancelled
}

/// The members of a combinator: its waiters in their queues, and the function that collects their outcomes.
///
/// A link that follows another promise, while its own waiter waits for its upstream, has that promise as its one member
/// (Promise+Follow.swift).
///
/// Invariants
///  1. Everything mutable is under the combinator's lock, except `finish`, which the deciding thread runs once.
///  2. A member's pointer is set while the combinator's waiter is in the member's queue, or while the member's settling
///     thread has taken the waiter out and will call memberSettled (AnyPromise.swift, 1). A member is not owned, so a
///     member that nothing can settle any more is released and rejects. A passive combinator has a reference to each
///     member's memory while the pointer is set.
///  3. The waiters live as long as the combinator.
final class Members {
  /// Collects one outcome.
  ///
  /// Returns true if the combinator is decided.
  typealias Collect = (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool

  private let cancelsUnselected: Bool
  private let isPassive: Bool
  private let waiters: UnsafeMutablePointer<Waiter>
  // Apart from the waiters: ThreadSanitizer would count an access to a member as one to the waiter beside it.
  private let members: UnsafeMutablePointer<Unmanaged<AnyPromise>?>
  private let count: Int
  private var missing: Int
  private var cursor = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?

  /// A member that the combinator leaves, and what has to be done for it.
  struct Left {
    let member: Unmanaged<AnyPromise>
    let waiter: UnsafeMutablePointer<Waiter>
    /// Whether the member is cancelled if it has no other waiter.
    let isUnselected: Bool
  }

  /// `isPassive`: whether the members' queues do not own the combinator.
  init(
    _ owner: AnyPromise,
    _ count: Int,
    _ losers: Losers,
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

  func enter(_ member: AnyPromise, at index: Int) {
    let member = Unmanaged.passUnretained(member)
    members[index] = member
    if isPassive { cco_retain_memory(member.toOpaque()) }
  }

  func isAttached(_ index: Int) -> Bool { members[index] != nil }

  func waiter(at index: Int) -> UnsafeMutablePointer<Waiter> { waiters + index }

  /// Detaches and returns the next attached member, or nil if there is none.
  func takeNext() -> Left? {
    while cursor < count {
      let index = cursor
      cursor += 1
      if let member = members[index].take() {
        return Left(member: member, waiter: waiter(at: index), isUnselected: cancelsUnselected)
      }
    }
    return nil
  }

  func attached() -> [Unmanaged<AnyPromise>] { (0..<count).compactMap { members[$0] } }

  /// Records that a member has settled.
  ///
  /// If that decides the combinator, it returns the functions to call and to release outside the lock.
  ///
  /// `isWanted` is false if the combinator has settled. A thread that leaves the members may then be between two of
  /// them, and must not find this member, which is released when it has told all its waiters.
  func settled(
    _ index: Int,
    isWanted: Bool,
    isUnused: Bool
  ) -> (finish: (AnyPromise) -> Void, collect: Collect)? {
    let member = members[index].take()
    if isPassive, let member {
      if !isUnused { member._withUnsafeGuaranteedRef { $0.ignore() } }
      // The settling thread has the member: this is not the last reference to its memory.
      cco_release_memory(member.toOpaque())
    }
    guard let member, isWanted, let collect else { return nil }
    missing -= 1
    guard member._withUnsafeGuaranteedRef({ collect($0, index, missing == 0) }) else { return nil }
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
    self.members = memberList
    hasMembers = true
    for (index, member) in members.enumerated() { join(member, at: index, memberList) }
  }

  /// Joins a member, unless an earlier member has decided the combinator, which has then left this member.
  private final func join(_ member: AnyPromise, at index: Int, _ members: Members) {
    let waiter = members.waiter(at: index)
    // Before the locks: the world allocates.
    Host.touches(UInt(bitPattern: member.completion))
    completion.pointee.lock.lock()
    guard members.isAttached(index) else {
      completion.pointee.lock.unlock()
      return
    }
    let reference = Unmanaged.passUnretained(self)
    if !isPassive { _ = reference.retain() }
    let isLinked = member.link(waiter)
    completion.pointee.lock.unlock()
    if !isLinked {
      if isPassive { _ = reference.retain() }
      member.ignore()
      Self.upstreamSettled(reference, index)
    }
  }

  /// Called when a member of this combinator has settled.
  final func memberSettled(_ reference: Unmanaged<AnyPromise>, _ index: Int) {
    completion.pointee.lock.lock()
    // It collects an outcome, and the unoptimised code allocates to return a stored function.
    LockCheck.allowAllocations()
    let decided = members?.settled(index, isWanted: !completion.isSettled, isUnused: isUnused)
    LockCheck.forbidAllocations()
    completion.pointee.lock.unlock()
    decided?.finish(self)
    // `decided` holds closures of the user.
    let words = Self.leaveSettleList()
    _ = consume decided
    reference.release()
    Self.enterSettleList(words)
  }
}
