/// What the promises that do not decide a combinator do once it is decided.
///
/// Left running or cancelled, their outcomes count as seen.
public enum Losers: Sendable {
  /// They go on; others may be waiting for them.
  case leftRunning
  /// They are cancelled, unless others wait for them.
  case cancelled
}

/// The members of a combinator: its places in their lists, and what it makes of their outcomes.
///
/// Invariants
///  1. Everything mutable is under the combinator's lock, except `finish`, which runs once, by whoever decided.
///  2. A member's pointer is there while the combinator's node is in the member's list, or has been taken out by the member's
///     settle, which then calls memberSettled (AnyPromise.swift, 1). A member is not owned, so that one which nobody can
///     settle any more is released and rejects.
///  3. The nodes live as long as the combinator.
final class Members {
  /// Takes over one outcome; true: the combinator is decided.
  typealias Collect = (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool

  let cancelsLosers: Bool
  private let nodes: UnsafeMutablePointer<WaitNode>
  // Apart from the nodes: an access to one of these would, for ThreadSanitizer, touch the node beside it.
  private let members: UnsafeMutablePointer<Unmanaged<AnyPromise>?>
  private let count: Int
  private var missing: Int
  private var cursor = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?

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
    nodes = .allocate(capacity: count)
    members = .allocate(capacity: count)
    members.initialize(repeating: nil, count: count)
    let owner = Unmanaged.passUnretained(owner)
    for index in 0..<count { (nodes + index).initialize(to: WaitNode(promise: owner, place: index)) }
  }

  deinit {
    nodes.deallocate()
    members.deallocate()
  }

  func enter(_ member: AnyPromise, at index: Int) { members[index] = Unmanaged.passUnretained(member) }

  func isAttached(_ index: Int) -> Bool { members[index] != nil }

  func node(at index: Int) -> UnsafeMutablePointer<WaitNode> { nodes + index }

  /// One that is attached, and no longer counts as such.
  func takeNext() -> (Unmanaged<AnyPromise>, UnsafeMutablePointer<WaitNode>)? {
    while cursor < count {
      let index = cursor
      cursor += 1
      if let member = members[index].take() { return (member, node(at: index)) }
    }
    return nil
  }

  func attached() -> [Unmanaged<AnyPromise>] { (0..<count).compactMap { members[$0] } }

  /// A member has settled; answers what to call and what to release outside of the lock.
  func settled(_ index: Int) -> (finish: (AnyPromise) -> Void, collect: Collect)? {
    guard let member = members[index].take(), let collect else { return nil }
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
    let node = places.node(at: index)
    completion.pointee.lock.lock()
    guard places.isAttached(index) else {
      completion.pointee.lock.unlock()
      return
    }
    let reference = Unmanaged.passRetained(self)
    member.completion.pointee.lock.lock()
    let isReleased = member.completion.pointee.isReleased
    if !isReleased { member.append(node) }
    member.completion.pointee.lock.unlock()
    completion.pointee.lock.unlock()
    if isReleased {
      member.ignore()
      Self.upstreamSettled(reference, index)
    }
  }

  /// A member of this combinator has settled.
  final func memberSettled(_ reference: Unmanaged<AnyPromise>, _ index: Int) {
    completion.pointee.lock.lock()
    let decided = completion.isSettled ? nil : members?.settled(index)
    completion.pointee.lock.unlock()
    decided?.finish(self)
    _ = consume decided
    Self.giveUp(reference)
  }
}
