/// What the promises that do not decide a combinator do once it is decided.
///
/// Left running or cancelled, their outcomes count as seen.
public enum Losers: Sendable {
  /// They go on; others may be waiting for them.
  case leftRunning
  /// They are cancelled, unless others wait for them.
  case cancelled
}

/// Called with the promise that waits, and with the one that it has waited for besides, which has settled.
@usableFromInline typealias BesidesEnd = (_ promise: AnyPromise, _ other: AnyPromise) -> Void

/// The members of a combinator: its places in their lists, and what it makes of their outcomes.
///
/// Behind those it was made with come those that any promise waits for besides what it was made for (Promise+Follow.swift): these come
/// and go, and decide nothing by themselves. A promise that is no combinator has members of this kind only.
///
/// Invariants
///  1. Everything mutable is under the combinator's lock, except `finish`, which runs once, by whoever decided.
///  2. A member's pointer is there while the combinator's node is in the member's list, or has been taken out by the member's
///     settle, which then calls memberSettled (AnyPromise.swift, 1). A member is not owned, so that one which nobody can
///     settle any more is released and rejects.
///  3. The nodes live as long as the combinator. One of those besides is used again when its member has settled, and called.
final class Members {
  /// Takes over one outcome; true: the combinator is decided.
  typealias Collect = (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool

  private let cancelsLosers: Bool
  private let waiters: UnsafeMutablePointer<Waiter>
  // Apart from the nodes: an access to one of these would, for ThreadSanitizer, touch the node beside it.
  private let members: UnsafeMutablePointer<Unmanaged<AnyPromise>?>
  /// Of those it was made with; the places of the others come behind.
  let count: Int
  private var missing: Int
  private var cursor = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?
  private var besides: [Besides] = []
  private var freeBesides: [Int] = []

  private struct Besides {
    let waiter: UnsafeMutablePointer<Waiter>
    var member: Unmanaged<AnyPromise>?
    var ended: BesidesEnd?
  }

  /// What leaving one of them has to deal with.
  struct Left {
    let member: Unmanaged<AnyPromise>
    let waiter: UnsafeMutablePointer<Waiter>
    /// It is to be cancelled, if nobody else waits for it.
    let isLoser: Bool
    /// Released outside of every lock: it may hold the one that leaves.
    var ended: BesidesEnd?
  }

  /// Of a promise that is no combinator.
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
    cancelsLosers = losers == .cancelled
    waiters = .allocate(capacity: count)
    members = .allocate(capacity: count)
    members.initialize(repeating: nil, count: count)
    let owner = Unmanaged.passUnretained(owner)
    for index in 0..<count { (waiters + index).initialize(to: Waiter(promise: owner, memberIndex: index)) }
  }

  deinit {
    waiters.deallocate()
    members.deallocate()
    for memberIndex in besides { memberIndex.waiter.deallocate() }
  }

  func enter(_ member: AnyPromise, at index: Int) { members[index] = Unmanaged.passUnretained(member) }

  func isAttached(_ index: Int) -> Bool { members[index] != nil }

  func waiter(at index: Int) -> UnsafeMutablePointer<Waiter> { waiters + index }

  /// One more; answers its place, which is no member's.
  func enter(besides member: AnyPromise, _ owner: AnyPromise, _ ended: @escaping BesidesEnd)
    -> (index: Int, waiter: UnsafeMutablePointer<Waiter>)
  {
    let member = Unmanaged.passUnretained(member)
    if let free = freeBesides.popLast() {
      (besides[free].member, besides[free].ended) = (member, ended)
      return (count + free, besides[free].waiter)
    }
    let index = count + besides.count
    let waiter = UnsafeMutablePointer<Waiter>.allocate(capacity: 1)
    waiter.initialize(to: Waiter(promise: Unmanaged.passUnretained(owner), memberIndex: index))
    besides.append(Besides(waiter: waiter, member: member, ended: ended))
    return (index, waiter)
  }

  /// One that is attached, and no longer counts as such.
  func takeNext() -> Left? {
    while cursor < count {
      let index = cursor
      cursor += 1
      if let member = members[index].take() {
        return Left(member: member, waiter: waiter(at: index), isLoser: cancelsLosers)
      }
    }
    while cursor < count + besides.count {
      let memberIndex = besides[cursor - count]
      if let member = memberIndex.member {
        (besides[cursor - count].member, besides[cursor - count].ended) = (nil, nil)
        cursor += 1
        return Left(member: member, waiter: memberIndex.waiter, isLoser: false, ended: memberIndex.ended)
      }
      cursor += 1
    }
    return nil
  }

  func attached() -> [Unmanaged<AnyPromise>] {
    (0..<count).compactMap { members[$0] } + besides.compactMap(\.member)
  }

  /// One of those besides has settled; answers whom to call outside of the lock.
  func besidesEnded(_ index: Int) -> (ended: BesidesEnd, member: Unmanaged<AnyPromise>)? {
    guard let member = besides[index - count].member.take() else { return nil }
    freeBesides.append(index - count)
    return besides[index - count].ended.take().map { ($0, member) }
  }

  /// A member has settled; answers what to call and what to release outside of the lock.
  ///
  /// Not `isWanted`: the combinator has settled. Whoever leaves its members may be between two of them, and must not find this one,
  /// which goes when it has told everyone.
  func settled(_ index: Int, isWanted: Bool) -> (finish: (AnyPromise) -> Void, collect: Collect)? {
    guard let member = members[index].take(), isWanted, let collect else { return nil }
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
    let places = Members(self, members.count, losers, collect: collect, finish: finish)
    // All are noted before the first can decide, and leave the others.
    for (index, member) in members.enumerated() { places.enter(member, at: index) }
    self.members = places
    hasMembers = true
    for (index, member) in members.enumerated() { join(member, at: index, places) }
  }

  /// Joins a member unless the combinator has been decided by one before it, and so left this one.
  private final func join(_ member: AnyPromise, at index: Int, _ places: Members) {
    let waiter = places.waiter(at: index)
    completion.pointee.lock.lock()
    guard places.isAttached(index) else {
      completion.pointee.lock.unlock()
      return
    }
    let reference = Unmanaged.passRetained(self)
    let isLinked = member.link(waiter)
    completion.pointee.lock.unlock()
    if !isLinked {
      member.ignore()
      Self.upstreamSettled(reference, index)
    }
  }

  /// A member of this combinator has settled.
  final func memberSettled(_ reference: Unmanaged<AnyPromise>, _ index: Int) {
    completion.pointee.lock.lock()
    if let members, index >= members.count { return besidesSettled(reference, members, index) }
    let decided = members?.settled(index, isWanted: !completion.isSettled)
    completion.pointee.lock.unlock()
    decided?.finish(self)
    // It holds what is foreign.
    let words = Self.leaveSettleList()
    _ = consume decided
    reference.release()
    Self.enterSettleList(words)
  }

  /// One that this promise has waited for besides has settled; entered with the lock.
  private final func besidesSettled(_ reference: Unmanaged<AnyPromise>, _ members: Members, _ index: Int) {
    let isWanted = !completion.isSettled
    let ended = members.besidesEnded(index)
    completion.pointee.lock.unlock()
    // It settles just now, and lives as long as those it tells have not returned.
    if isWanted { ended?.member._withUnsafeGuaranteedRef { ended?.ended(self, $0) } }
    let words = Self.leaveSettleList()
    _ = consume ended
    reference.release()
    Self.enterSettleList(words)
  }
}
