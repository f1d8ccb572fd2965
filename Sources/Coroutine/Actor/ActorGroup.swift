/// A group of actors that all get a message, or that get messages in rotation.
///
/// Every member gets the same message, so messages are Sendable. The group holds its members. A member leaves the group
/// when it ends. An actor can be a member only once. The members are in the order of joining.
public final class ActorGroup<Message: Sendable>: @unchecked Sendable {
  // Sound because the members are under the lock. Members that leave the list are released after the lock is left.
  private struct Member {
    let actor: ActorRef<Message>
    let watcher: ActorWatcher
  }

  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var list: [Member] = []
  /// The index of the member that `next` returns.
  @exclusivity(unchecked) private var nextIndex = 0

  /// Creates an empty group.
  public init() {}

  /// Cancels the watchers: without this, an actor would keep one for every group that it has been in.
  deinit { for member in list { member.watcher.cancel() } }

  /// Adds an actor to the group.
  ///
  /// Returns false if it is a member already, or has ended. Never suspends. May be called on any thread. Linear in the
  /// number of members.
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
    return !watcher.wasCalled
  }

  /// Removes an actor from the group.
  ///
  /// Returns false if it was not a member. Never suspends. May be called on any thread. Linear in the number of
  /// members.
  @discardableResult
  public func leave(_ actor: ActorRef<Message>) -> Bool { remove(actor.core) }

  /// The current members.
  public var members: [ActorRef<Message>] { lock.withLock { list.map(\.actor) } }

  /// Sends a message to every member, in the order of joining.
  ///
  /// Suspends as ``ActorRef/tell(_:)`` does, for one member after the other. It skips members that have stopped, and
  /// members whose full mailbox refuses the message. If the coroutine is cancelled, it throws, and the remaining
  /// members get no message.
  ///
  /// - Returns: The number of members that accepted the message.
  @discardableResult
  public func tell(_ message: Message) throws -> Int {
    var told = 0
    for member in members {
      do {
        try member.tell(message)
        told += 1
      } catch is ActorStoppedError {
      } catch is MailboxFullError {}
    }
    return told
  }

  /// Sends a message to every member that accepts it without a wait.
  ///
  /// Never suspends. May be called on any thread.
  ///
  /// - Returns: The number of members that accepted the message.
  @discardableResult
  public func tryTell(_ message: Message) -> Int {
    members.reduce(0) { $1.tryTell(message) == .sent ? $0 + 1 : $0 }
  }

  /// Returns the next member in rotation, in the order of joining, or nil if there is none.
  ///
  /// ```swift
  /// let answer = try workers.next()?.ask { .work(item, $0) }
  /// ```
  ///
  /// Never suspends. May be called on any thread.
  public func next() -> ActorRef<Message>? {
    lock.lock()
    defer { lock.unlock() }
    guard !list.isEmpty else { return nil }
    nextIndex = (nextIndex + 1) % list.count
    return list[(nextIndex + list.count - 1) % list.count].actor
  }

  @discardableResult
  private func remove(_ core: ActorCore<Message>) -> Bool {
    lock.lock()
    var member: Member?
    if let index = list.firstIndex(where: { $0.actor.core === core }) {
      member = list.remove(at: index)
      if index < nextIndex { nextIndex -= 1 }
    }
    lock.unlock()
    member?.watcher.cancel()
    return member != nil
  }
}
