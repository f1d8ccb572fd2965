import Synchronization

/// How an actor ended.
///
/// A restart by a supervisor is no end: the same handle reaches the actor before and after it.
public enum ActorExit: Sendable {
  /// Its body returned: it was stopped and has handled what was in its mailbox, or had enough.
  case stopped
  /// It was cancelled.
  case cancelled
  /// Its body threw, and nobody has restarted it.
  case failed(any Error)
}

/// The notice of an actor's end.
public struct ActorEnd: Sendable {
  /// The number of the actor's job.
  public var id: UInt64
  /// The actor's name, if it had one.
  public var name: String?
  /// How it ended.
  public var exit: ActorExit

  /// Creates a notice.
  public init(id: UInt64, name: String? = nil, exit: ActorExit) {
    self.id = id
    self.name = name
    self.exit = exit
  }
}

/// A linked actor has ended otherwise than by being stopped, so this one fails too.
public struct LinkedActorEnded: Error, CustomStringConvertible {
  /// Whose end it was, and how it came.
  public var end: ActorEnd
  /// Creates the error.
  public init(end: ActorEnd) { self.end = end }
  /// What happened.
  public var description: String {
    let name = end.name.map { "\"\($0)\" " } ?? ""
    let how =
      switch end.exit {
      case .stopped: "has stopped"
      case .cancelled: "was cancelled"
      case .failed(let error): "has failed: \(error)"
      }
    return "the linked actor \(name)(id \(end.id)) \(how)"
  }
}

/// Waits for the end of one actor, and is called for it once at most.
///
/// `launchSite` is where it is in the target's list, under the target's lock. `onEnd` is taken by the one who moves the state on:
///
///   WAITING --- fire ---> TOLD;  WAITING --- cancel ---> CALLED OFF
///
/// It may be called off before it is armed: who makes it known first and arms it then. The target does not take it in then.
final class ActorWatcher: @unchecked Sendable {
  // Sound because `state` decides who may touch `onEnd`, and `launchSite` has a lock.
  let target: ActorLife
  @exclusivity(unchecked) var launchSite: Int?
  private let state = Atomic<UInt8>(ActorWatcher.waiting)
  @exclusivity(unchecked) private var onEnd: (@Sendable (ActorEnd) -> Void)?

  init(_ target: ActorLife, _ onEnd: @escaping @Sendable (ActorEnd) -> Void) {
    self.target = target
    self.onEnd = onEnd
  }

  private static let (waiting, told, calledOff): (UInt8, UInt8, UInt8) = (0, 1, 2)

  /// It will not be called any more.
  var isDone: Bool { state.load(ordering: .acquiring) != Self.waiting }

  /// It has been called: the target has ended.
  var isTold: Bool { state.load(ordering: .acquiring) == Self.told }

  private func leaves(to next: UInt8) -> Bool {
    state.compareExchange(expected: Self.waiting, desired: next, ordering: .acquiringAndReleasing).exchanged
  }

  func fire(_ end: ActorEnd) {
    if leaves(to: Self.told) { onEnd.take()?(end) }
  }

  func cancel() {
    guard leaves(to: Self.calledOff) else { return }
    target.unwatch(self)
    onEnd = nil
  }
}

/// Watches for the end of an actor on behalf of another; see ``Mailbox/monitor(_:_:)``.
public final class ActorMonitor: Sendable {
  private let watchers: [ActorWatcher]
  init(_ watchers: [ActorWatcher]) { self.watchers = watchers }

  /// Calls it off: no notice will be sent any more; one that has been is in the mailbox.
  ///
  /// Never suspends; any thread, idempotent.
  public func cancel() { for watcher in watchers { watcher.cancel() } }
}

extension Mailbox {
  /// Watches for the end of another actor: then the message that `notice` makes is put into this mailbox, exactly once, behind what the
  /// other has told before; at once if it has ended already.
  ///
  /// ```swift
  /// mailbox.monitor(worker) { .workerEnded($0) }
  /// ```
  ///
  /// A notice is never dropped for want of room. `notice` is called on whatever thread finds out and must neither block nor
  /// suspend. A supervised actor has ended when it will not be restarted. What a life has watched is forgotten when a
  /// supervisor restarts it. Does not suspend; to be called by the body.
  @discardableResult
  public func monitor<Other>(
    _ other: ActorRef<Other>,
    _ notice: @escaping @Sendable (ActorEnd) -> Message
  ) -> ActorMonitor {
    let core = core
    let watcher = ActorWatcher(other.core) { core.channel.insist(.notice(notice($0))) }
    return ActorMonitor([core.keep(watcher)])
  }

  /// Ties this actor to another: when either is cancelled or fails for good, the other fails.
  ///
  /// It fails with ``LinkedActorEnded``, and a supervisor may restart it; at once if the other has ended so already. An actor that
  /// was stopped takes nobody along.
  ///
  /// The returned object takes the link off. To be told instead of failing, use ``monitor(_:_:)``. Does not suspend; to be
  /// called by the body.
  @discardableResult
  public func link<Other>(_ other: ActorRef<Other>) -> ActorMonitor {
    let (mine, theirs) = (core, other.core)
    return ActorMonitor([
      mine.keep(ActorWatcher(theirs) { mine.follow($0) }), mine.keep(ActorWatcher(mine) { theirs.follow($0) }),
    ])
  }
}

extension ActorLife {
  /// Arms a watcher that is to be called off with this life.
  ///
  /// Own turn. Those that are done are forgotten now and then, so that an actor that watches many short lives keeps few.
  func keep(_ watcher: ActorWatcher) -> ActorWatcher {
    if watching.count >= 16, watching.count & (watching.count - 1) == 0 { watching.removeAll { $0.isDone } }
    watching.append(watcher)
    watcher.target.watch(watcher)
    return watcher
  }

  /// A linked actor has ended.
  func follow(_ end: ActorEnd) {
    if case .stopped = end.exit { return }
    endLife(.failed(LinkedActorEnded(end: end)))
  }
}

extension Channel {
  /// Adds a value whatever the bound; false: the channel is closed.
  @discardableResult
  func insist(_ element: Element) -> Bool {
    var slot: Element? = element
    return withUnsafeMutablePointer(to: &slot) { slot in
      var woken: UnsafeMutablePointer<Waiter>?
      lock.lock()
      let isAccepted = state.insist(slot, &woken)
      lock.unlock()
      woken?.wake()
      return isAccepted
    }
  }
}

extension ChannelState {
  /// As an offer to a ring with room for one more.
  ///
  /// The second reason for a ring to hold more than its limit (invariant 2 has the first): the value was promised.
  mutating func insist(_ slot: UnsafeMutablePointer<Element?>, _ woken: inout UnsafeMutablePointer<Waiter>?) -> Bool {
    if isClosed { return false }
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.slot(of: Element.self).initialize(to: slot.take())
      woken = waiter
      return true
    }
    if ring.isFull { ring.grow(to: ring.count + 1) }
    ring.append(slot.take().unsafelyUnwrapped)
    return true
  }
}
