import Synchronization

/// The way in which an actor ended.
///
/// A restart by a supervisor is not an end: the same handle refers to the actor before and after it.
public enum ActorExit: Sendable {
  /// The body returned: the actor was stopped and has handled its mailbox, or the body finished on its own.
  case stopped
  /// The actor was cancelled.
  case cancelled
  /// The body threw, and no supervisor has restarted the actor.
  case failed(any Error)
}

/// The notice of an actor's end.
public struct ActorEnd: Sendable {
  /// The number of the actor's job.
  public var id: UInt64
  /// The actor's name, if it had one.
  public var name: String?
  /// The way in which the actor ended.
  public var exit: ActorExit

  /// Creates a notice.
  public init(id: UInt64, name: String? = nil, exit: ActorExit) {
    self.id = id
    self.name = name
    self.exit = exit
  }
}

extension ActorMonitor {
  /// The error of an actor whose linked actor was cancelled or has failed.
  public struct LinkedActorError: Error, CustomStringConvertible {
    /// The end of the linked actor.
    public var end: ActorEnd
    /// Creates the error.
    public init(end: ActorEnd) { self.end = end }
    /// A sentence that describes what happened.
    public var description: String {
      let name = end.name.map { "\"\($0.asName)\" " } ?? ""
      let how =
        switch end.exit {
        case .stopped: "has stopped"
        case .cancelled: "was cancelled"
        case .failed(let error): "has failed: \(asLine(error))"
        }
      return "the linked actor \(name)(id \(end.id)) \(how)"
    }
  }
}

/// Watches one actor, and is called at most once, at that actor's end.
///
/// `watcherIndex` is the index in the target's list, under the target's lock. The thread that moves the state on takes
/// `onEnd`:
///
///   WAITING --- fire ---> CALLED;  WAITING --- cancel ---> CANCELLED
///
/// A watcher may be cancelled before it is armed, by a thread that got it from a creator that arms it later. In that
/// case the target does not add it to its list.
final class ActorWatcher: @unchecked Sendable {
  // Sound because `state` decides which thread may touch `onEnd`, and a lock covers `watcherIndex`.
  let target: ActorLife
  @exclusivity(unchecked) var watcherIndex: Int?
  private let state = Shared(Atomic<UInt8>(ActorWatcher.waiting))
  @exclusivity(unchecked) private var onEnd: (@Sendable (ActorEnd) -> Void)?

  init(_ target: ActorLife, _ onEnd: @escaping @Sendable (ActorEnd) -> Void) {
    self.target = target
    self.onEnd = onEnd
  }

  private static let (waiting, called, cancelled): (UInt8, UInt8, UInt8) = (0, 1, 2)

  /// Whether the watcher has been called or cancelled.
  var isDone: Bool { state.touched.load(ordering: .acquiring) != Self.waiting }

  /// Whether the watcher has been called: the target has ended.
  var wasCalled: Bool { state.touched.load(ordering: .acquiring) == Self.called }

  private func leaves(to next: UInt8) -> Bool {
    state.touched.compareExchange(expected: Self.waiting, desired: next, ordering: .acquiringAndReleasing).exchanged
  }

  func fire(_ end: ActorEnd) {
    if leaves(to: Self.called) { onEnd.take()?(end) }
  }

  func cancel() {
    guard leaves(to: Self.cancelled) else { return }
    target.unwatch(self)
    onEnd = nil
  }
}

/// A subscription to the end of another actor; see ``Mailbox/monitor(_:_:)``.
public final class ActorMonitor: Sendable {
  private let watchers: [ActorWatcher]
  init(_ watchers: [ActorWatcher]) { self.watchers = watchers }

  /// Cancels the subscription: no notice will be sent any more.
  ///
  /// A notice that was sent is in the mailbox. Never suspends. May be called on any thread, and repeatedly.
  public func cancel() { for watcher in watchers { watcher.cancel() } }
}

extension Mailbox {
  /// Watches for the end of another actor, and then puts the message that `notice` returns into this mailbox.
  ///
  /// ```swift
  /// mailbox.monitor(worker) { .workerEnded($0) }
  /// ```
  ///
  /// - The message is added exactly once, after the messages that the other actor sent before. If the other actor has
  ///   ended already, it is added at once.
  /// - A notice is never dropped for lack of room.
  /// - `notice` is called on the thread that finds the end. It must neither block nor suspend.
  /// - A supervised actor has ended when it will not be restarted.
  /// - When a supervisor restarts this actor, its monitors are cancelled.
  ///
  /// Does not suspend. Called by the body.
  @discardableResult
  public func monitor<Other>(
    _ other: ActorRef<Other>,
    _ notice: @escaping @Sendable (ActorEnd) -> Message
  ) -> ActorMonitor {
    let core = core
    let watcher = ActorWatcher(other.core) { core.channel.insist(.notice(notice($0))) }
    return ActorMonitor([core.keep(watcher)])
  }

  /// Links this actor to another: if either is cancelled or fails for good, the other fails.
  ///
  /// This actor then fails with ``ActorMonitor/LinkedActorError``, and a supervisor may restart it. If the other actor
  /// has already been cancelled or has failed, this one fails at once. A stopped actor does not make its linked actors
  /// fail.
  ///
  /// The returned object removes the link. To get a message and not a failure, use ``monitor(_:_:)``. Does not suspend.
  /// Called by the body.
  @discardableResult
  public func link<Other>(_ other: ActorRef<Other>) -> ActorMonitor {
    let (mine, theirs) = (core, other.core)
    return ActorMonitor([
      mine.keep(ActorWatcher(theirs) { mine.follow($0) }), mine.keep(ActorWatcher(mine) { theirs.follow($0) }),
    ])
  }
}

extension ActorLife {
  /// Arms a watcher that is cancelled at the end of this life.
  ///
  /// Called on the actor's own coroutine. Watchers that are done are removed from time to time, so an actor that
  /// watches many short-lived actors keeps few.
  func keep(_ watcher: ActorWatcher) -> ActorWatcher {
    if watching.count >= 16, watching.count & (watching.count - 1) == 0 { watching.removeAll { $0.isDone } }
    watching.append(watcher)
    watcher.target.watch(watcher)
    return watcher
  }

  /// Fails this actor because a linked actor has ended, unless that actor was stopped.
  func follow(_ end: ActorEnd) {
    if case .stopped = end.exit { return }
    endLife(.failed(ActorMonitor.LinkedActorError(end: end)))
  }
}

extension Channel {
  /// Adds a value whatever the bound is.
  ///
  /// Returns false if the channel is closed.
  @discardableResult
  func insist(_ element: Element) -> Bool {
    var storage: Element? = element
    return withUnsafeMutablePointer(to: &storage) { storage in
      var woken: UnsafeMutablePointer<Waiter>?
      lockWithRoom(for: 1)
      let isAccepted = state.insist(storage, &woken)
      lock.unlock()
      woken?.wake()
      return isAccepted
    }
  }
}

extension ChannelState {
  /// Adds a value whatever the limit is.
  ///
  /// Requires room in the memory of the ring.
  mutating func insist(
    _ storage: UnsafeMutablePointer<Element?>,
    _ woken: inout UnsafeMutablePointer<Waiter>?
  ) -> Bool {
    if isClosed { return false }
    if receivers.first != nil, let waiter = receivers.claimFirst() {
      waiter.storage(of: Element.self).initialize(to: storage.take())
      woken = waiter
      return true
    }
    ring.append(storage.take().unsafelyUnwrapped)
    return true
  }
}
