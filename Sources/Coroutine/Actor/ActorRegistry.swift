/// Names for actors, so that who knows a name need not have been given a handle.
///
/// ```swift
/// try ActorRegistry.shared.register(logger, as: "logger")
/// try ActorRegistry.shared.actor(named: "logger", of: LogLine.self)?.tell("hello")
/// ```
///
/// A name belongs to one actor at a time, until the actor ends or the name is given up. A registered actor is held: it is not
/// stopped by the release of all other handles. Nothing here suspends; any thread.
public final class ActorRegistry: Sendable {
  /// The registry of the process.
  public static let shared = ActorRegistry()

  private let table = NameTable()

  /// Creates an empty registry.
  public init() {}

  /// The actors' watchers know the table: they are called off, or neither would go.
  deinit { for name in names { unregister(name) } }

  /// Gives an actor a name; it may have several.
  ///
  /// Throws ``ActorNameTaken`` where another actor has it, and ``ActorStopped`` where this one has ended.
  public func register<Message>(_ actor: ActorRef<Message>, as name: String) throws {
    let watcher = table.add(name, actor) { [table] number in
      ActorWatcher(actor.core) { _ in table.remove(name, number) }
    }
    guard let watcher else { throw ActorNameTaken(name: name) }
    actor.core.watch(watcher)
    if watcher.isTold { throw ActorStopped() }
  }

  /// The actor with a name; nil where there is none, and where its messages are of another type.
  public func actor<Message>(named name: String, of type: Message.Type = Message.self) -> ActorRef<Message>? {
    table.find(name) as? ActorRef<Message>
  }

  /// Gives a name up; false: nobody had it.
  @discardableResult
  public func unregister(_ name: String) -> Bool { table.remove(name, nil) }

  /// The names that are taken, sorted.
  public var names: [String] { table.names.sorted() }
}

/// Who has which name.
///
///   FREE --- add ---> TAKEN --- remove: by name, or by number at the actor's end ---> FREE
///
/// Everything is under the lock. An end takes away only the entry whose number it has: by then the name may be another's. What is
/// taken out is released after the lock is left, for that may release an actor's last handle.
private final class NameTable: @unchecked Sendable {
  // Sound because of the lock.
  private struct Entry {
    let number: Int
    let actor: AnyObject
    let watcher: ActorWatcher
  }

  private let lock = SpinLock()
  @exclusivity(unchecked) private var entries: [String: Entry] = [:]
  @exclusivity(unchecked) private var lastNumber = 0

  var names: [String] { lock.withLock { Array(entries.keys) } }

  func find(_ name: String) -> AnyObject? { lock.withLock { entries[name] }?.actor }

  /// The watcher that takes the entry away; nil: the name is taken.
  func add(_ name: String, _ actor: AnyObject, _ makeWatcher: (Int) -> ActorWatcher) -> ActorWatcher? {
    let number = lock.withLock {
      lastNumber += 1
      return lastNumber
    }
    let entry = Entry(number: number, actor: actor, watcher: makeWatcher(number))
    lock.lock()
    defer { lock.unlock() }
    if entries[name] != nil { return nil }
    entries[name] = entry
    return entry.watcher
  }

  @discardableResult
  func remove(_ name: String, _ number: Int?) -> Bool {
    lock.lock()
    var entry: Entry?
    if let found = entries[name], number == nil || number == found.number { entry = entries.removeValue(forKey: name) }
    lock.unlock()
    entry?.watcher.cancel()
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
