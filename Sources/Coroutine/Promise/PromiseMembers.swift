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

/// Called when an additional member has settled, with the waiting promise and that member.
@usableFromInline typealias AdditionalMemberEnded = (_ promise: AnyPromise, _ other: AnyPromise) -> Void

/// The members of a combinator: its waiters in their queues, and the function that collects their outcomes.
///
/// Behind the members that a combinator was made with come the additional members: promises that any promise may wait
/// for in addition to its purpose (Promise+Follow.swift). Additional members come and go, and decide nothing by
/// themselves. A promise that is no combinator has additional members only.
///
/// Invariants
///  1. Everything mutable is under the combinator's lock, except `finish`, which the deciding thread runs once.
///  2. A member's pointer is set while the combinator's waiter is in the member's queue, or while the member's settling
///     thread has taken the waiter out and will call memberSettled (AnyPromise.swift, 1). A member is not owned, so a
///     member that nothing can settle any more is released and rejects. A passive combinator has a reference to each
///     member's memory while the pointer is set.
///  3. The waiters live as long as the combinator. The waiter of an additional member is used again after that member
///     has settled and has called.
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
  /// The number of members that the combinator was made with.
  ///
  /// Additional members have the indices from `count` on.
  let count: Int
  private var missing: Int
  private var cursor = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?
  private var additional: [AdditionalMember] = []
  private var freeAdditional: [Int] = []

  private struct AdditionalMember {
    let waiter: UnsafeMutablePointer<Waiter>
    var member: Unmanaged<AnyPromise>?
    var ended: AdditionalMemberEnded?
    var isStep = false
  }

  /// A member that the combinator leaves, and what has to be done for it.
  struct Left {
    let member: Unmanaged<AnyPromise>
    let waiter: UnsafeMutablePointer<Waiter>
    /// Whether the member is cancelled if it has no other waiter.
    let isUnselected: Bool
    /// Whether the member is a link of the library's, which is cancelled without its upstream.
    var isStep = false
    /// Released outside every lock: it may hold the promise that leaves.
    var ended: AdditionalMemberEnded?
  }

  /// Creates the members of a promise that is no combinator.
  convenience init(_ owner: AnyPromise) {
    self.init(owner, 0, .leftRunning, collect: { _, _, _ in false }, finish: { _ in })
  }

  init(
    _ owner: AnyPromise,
    _ count: Int,
    _ losers: Losers,
    collect: @escaping Collect,
    finish: @escaping (AnyPromise) -> Void
  ) {
    self.count = count
    self.collect = collect
    self.finish = finish
    missing = count
    cancelsUnselected = losers == .cancelled
    isPassive = owner.isPassive
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
    for member in additional { member.waiter.deallocate() }
  }

  func enter(_ member: AnyPromise, at index: Int) {
    let member = Unmanaged.passUnretained(member)
    members[index] = member
    if isPassive { cco_retain_memory(member.toOpaque()) }
  }

  func isAttached(_ index: Int) -> Bool { members[index] != nil }

  func waiter(at index: Int) -> UnsafeMutablePointer<Waiter> { waiters + index }

  /// Adds an additional member.
  ///
  /// Returns its member index, which no other member has, and its waiter.
  func enter(
    additional member: AnyPromise,
    _ owner: AnyPromise,
    isStep: Bool,
    _ ended: @escaping AdditionalMemberEnded
  ) -> (index: Int, waiter: UnsafeMutablePointer<Waiter>) {
    let member = Unmanaged.passUnretained(member)
    if let free = freeAdditional.popLast() {
      (additional[free].member, additional[free].ended, additional[free].isStep) = (member, ended, isStep)
      return (count + free, additional[free].waiter)
    }
    let index = count + additional.count
    let waiter = UnsafeMutablePointer<Waiter>.allocate(capacity: 1)
    waiter.initialize(to: Waiter(promise: Unmanaged.passUnretained(owner), memberIndex: index))
    additional.append(AdditionalMember(waiter: waiter, member: member, ended: ended, isStep: isStep))
    return (index, waiter)
  }

  /// Detaches and returns the next attached member, or nil if there is none.
  func takeNext() -> Left? {
    while cursor < count {
      let index = cursor
      cursor += 1
      if let member = members[index].take() {
        return Left(member: member, waiter: waiter(at: index), isUnselected: cancelsUnselected)
      }
    }
    while cursor < count + additional.count {
      let entry = additional[cursor - count]
      if let member = entry.member {
        (additional[cursor - count].member, additional[cursor - count].ended) = (nil, nil)
        cursor += 1
        return Left(
          member: member,
          waiter: entry.waiter,
          isUnselected: entry.isStep,
          isStep: entry.isStep,
          ended: entry.ended
        )
      }
      cursor += 1
    }
    return nil
  }

  func attached() -> [Unmanaged<AnyPromise>] {
    (0..<count).compactMap { members[$0] } + additional.compactMap(\.member)
  }

  /// Detaches an additional member that has settled.
  ///
  /// Returns the function to call outside the lock.
  func additionalEnded(_ index: Int) -> (ended: AdditionalMemberEnded, member: Unmanaged<AnyPromise>)? {
    guard let member = additional[index - count].member.take() else { return nil }
    freeAdditional.append(index - count)
    return additional[index - count].ended.take().map { ($0, member) }
  }

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
    let memberList = Members(self, members.count, losers, collect: collect, finish: finish)
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
    if let members, index >= members.count { return additionalSettled(reference, members, index) }
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

  /// Called with the lock when an additional member has settled.
  private final func additionalSettled(_ reference: Unmanaged<AnyPromise>, _ members: Members, _ index: Int) {
    let isWanted = !completion.isSettled
    LockCheck.allowAllocations()
    let ended = members.additionalEnded(index)
    LockCheck.forbidAllocations()
    completion.pointee.lock.unlock()
    // The member is settling now, and lives until the calls to its waiters have returned.
    if isWanted { ended?.member._withUnsafeGuaranteedRef { ended?.ended(self, $0) } }
    let words = Self.leaveSettleList()
    _ = consume ended
    reference.release()
    Self.enterSettleList(words)
  }
}
