/// Actors that are told the same things, or take turns.
///
/// A member is held, and leaves by itself when it ends. Each actor is a member once at most; members are in the order of joining.
public final class ActorGroup<Message: Sendable>: @unchecked Sendable {
  // Sound because the members are under the lock. What leaves the list is released after the lock is left.
  private struct Member {
    let actor: ActorRef<Message>
    let watcher: ActorWatcher
  }

  private let lock = SpinLock()
  @exclusivity(unchecked) private var list: [Member] = []
  /// Whose turn is next.
  @exclusivity(unchecked) private var turn = 0

  /// Creates an empty group.
  public init() {}

  /// The actors keep their watchers: they are called off, or each would keep one for every group that it has been in.
  deinit { for member in list { member.watcher.cancel() } }

  /// Makes an actor a member; false: it is one already, or has ended.
  ///
  /// Never suspends; any thread. Linear in the number of members.
  @discardableResult
  public func join(_ actor: ActorRef<Message>) -> Bool {
    let core = actor.core
    let watcher = ActorWatcher(core) { [weak self] _ in self?.remove(core) }
    lock.lock()
    let isNew = !list.contains { $0.actor.core === core }
    if isNew { list.append(Member(actor: actor, watcher: watcher)) }
    lock.unlock()
    guard isNew else { return false }
    core.watch(watcher)
    return !watcher.isTold
  }

  /// Ends a membership; false: there was none.
  ///
  /// Never suspends; any thread. Linear in the number of members.
  @discardableResult
  public func leave(_ actor: ActorRef<Message>) -> Bool { remove(actor.core) }

  /// The members at this moment.
  public var members: [ActorRef<Message>] { lock.withLock { list.map(\.actor) } }

  /// How many there are at this moment.
  public var count: Int { lock.withLock { list.count } }

  /// Tells every member, in the order of joining; answers how many took it.
  ///
  /// Suspends as ``ActorRef/tell(_:)`` does, for one member after the other. Members that have stopped, or whose full mailbox refuses,
  /// are passed over; cancelled, it throws, and the members after that are not told.
  @discardableResult
  public func tell(_ message: Message) throws -> Int {
    var told = 0
    for member in members {
      do {
        try member.tell(message)
        told += 1
      } catch is ActorStopped {
      } catch is MailboxFull {}
    }
    return told
  }

  /// Tells every member that needs no waiting for; answers how many took it.
  ///
  /// Never suspends; any thread.
  @discardableResult
  public func tryTell(_ message: Message) -> Int {
    members.reduce(0) { $1.tryTell(message) == .sent ? $0 + 1 : $0 }
  }

  /// The member whose turn it is: each call gives the next one, in the order of joining, round and round; nil where there is none.
  ///
  /// ```swift
  /// let answer = try workers.next()?.ask { .work(item, $0) }
  /// ```
  ///
  /// Never suspends; any thread.
  public func next() -> ActorRef<Message>? {
    lock.lock()
    defer { lock.unlock() }
    guard !list.isEmpty else { return nil }
    turn = (turn + 1) % list.count
    return list[(turn + list.count - 1) % list.count].actor
  }

  @discardableResult
  private func remove(_ core: ActorCore<Message>) -> Bool {
    lock.lock()
    var member: Member?
    if let index = list.firstIndex(where: { $0.actor.core === core }) {
      member = list.remove(at: index)
      if index < turn { turn -= 1 }
    }
    lock.unlock()
    member?.watcher.cancel()
    return member != nil
  }
}
