/// Names for actors, so that who knows a name need not have been given a handle.
///
/// ```swift
/// try ActorRegistry.shared.register(logger, as: "logger")
/// try ActorRegistry.shared.actor(named: "logger", of: LogLine.self)?.tell("hello")
/// ```
///
/// A name belongs to one actor at a time, until the actor ends or the name is given up. A registered actor is held: it is not
/// stopped by the release of all other handles. Nothing here suspends; any thread.
public final class ActorRegistry: @unchecked Sendable {
  // Sound because the table is under the lock.
  //
  //   FREE --- register ---> TAKEN --- unregister, or the actor's end ---> FREE
  //
  // An entry is taken out by who finds it there, under the lock, and by identity where its own actor ends: by then the name may be
  // another's. Entries are released after the lock is left, for that may release an actor's last handle.

  /// The registry of the process.
  public static let shared = ActorRegistry()

  private final class Entry: @unchecked Sendable {
    // Sound because `watcher` is set before the entry is in the table.
    let actor: AnyObject
    @exclusivity(unchecked) var watcher: ActorWatcher?
    init(_ actor: AnyObject) { self.actor = actor }
  }

  private let lock = SpinLock()
  @exclusivity(unchecked) private var table: [String: Entry] = [:]

  /// Creates an empty registry.
  public init() {}

  /// Gives an actor a name; it may have several.
  ///
  /// Throws ``ActorNameTaken`` where another actor has it, and ``ActorStopped`` where this one has ended.
  public func register<Message>(_ actor: ActorRef<Message>, as name: String) throws {
    let entry = Entry(actor)
    let watcher = ActorWatcher(actor.core) { [weak self, weak entry] _ in
      if let self, let entry { remove(name) { $0 === entry } }
    }
    entry.watcher = watcher
    lock.lock()
    let isFree = table[name] == nil
    if isFree { table[name] = entry }
    lock.unlock()
    guard isFree else { throw ActorNameTaken(name: name) }
    actor.core.watch(watcher)
    if watcher.isDone { throw ActorStopped() }
  }

  /// The actor with a name; nil where there is none, and where its messages are of another type.
  public func actor<Message>(named name: String, of type: Message.Type = Message.self) -> ActorRef<Message>? {
    let entry = lock.withLock { table[name] }
    return entry?.actor as? ActorRef<Message>
  }

  /// Gives a name up; false: nobody had it.
  @discardableResult
  public func unregister(_ name: String) -> Bool { remove(name) { _ in true } }

  /// The names that are taken, sorted.
  public var names: [String] { lock.withLock { Array(table.keys) }.sorted() }

  @discardableResult
  private func remove(_ name: String, where condition: (Entry) -> Bool) -> Bool {
    lock.lock()
    var entry: Entry?
    if let found = table[name], condition(found) { entry = table.removeValue(forKey: name) }
    lock.unlock()
    entry?.watcher?.cancel()
    return entry != nil
  }
}

/// Another actor has the name.
public struct ActorNameTaken: Error, CustomStringConvertible {
  /// The name.
  public var name: String
  /// Creates the error.
  public init(name: String) { self.name = name }
  /// What to do about it.
  public var description: String {
    "an actor named \"\(name)\" is registered already; stop or unregister it first, or choose another name"
  }
}
