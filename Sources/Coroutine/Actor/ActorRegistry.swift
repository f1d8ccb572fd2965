/// Names for actors.
///
/// A name gives access to an actor without its handle.
///
/// ```swift
/// try ActorRegistry.shared.register(logger, as: "logger")
/// try ActorRegistry.shared.actor(named: "logger", of: LogLine.self)?.tell("hello")
/// ```
///
/// A name belongs to one actor at a time, until the actor ends or the name is unregistered. The registry holds a
/// registered actor: releasing all other handles does not stop it. No operation suspends. All may be called on any
/// thread.
public final class ActorRegistry: Sendable {
  /// The registry of the process.
  public static let shared = ActorRegistry()

  private let table = NameTable()

  /// Creates an empty registry.
  public init() {}

  /// Unregisters all names.
  ///
  /// The actors' watchers hold the table: without this, neither would be released.
  deinit { for name in names { unregister(name) } }

  /// Registers an actor under a name.
  ///
  /// An actor may have several names.
  ///
  /// - Throws: ``NameTakenError`` if another actor has the name; ``ActorStoppedError`` if this actor has ended.
  public func register<Message>(_ actor: ActorRef<Message>, as name: String) throws {
    let watcher = table.add(name, actor) { [table] number in
      ActorWatcher(actor.core, .leaves { table.remove(name, number) })
    }
    guard let watcher else { throw NameTakenError(name: name) }
    actor.core.watch(watcher)
    if watcher.wasCalled { throw ActorStoppedError() }
  }

  /// Returns the actor with this name, or nil if there is none or its messages have another type.
  public func actor<Message>(named name: String, of type: Message.Type = Message.self) -> ActorRef<Message>? {
    table.find(name) as? ActorRef<Message>
  }

  /// Unregisters a name.
  ///
  /// Returns false if no actor had it.
  @discardableResult
  public func unregister(_ name: String) -> Bool { table.remove(name, nil) != nil }

  /// The registered names, sorted.
  public var names: [String] { table.names.sorted() }
}

/// The table of names.
///
///   FREE --- add ---> TAKEN --- remove: by name, or by number at the actor's end ---> FREE
///
/// The lock covers everything. An actor's end removes only the entry with its own number, because the name may belong
/// to another actor by then. A removed entry is released after the lock is left, because that may release an actor's
/// last handle.
private final class NameTable: @unchecked Sendable {
  // Sound because the lock covers all mutable state.
  private struct Entry {
    let number: Int
    let actor: any Sendable
    let watcher: ActorWatcher
  }

  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var entries: [String: Entry] = [:]
  @exclusivity(unchecked) private var lastNumber = 0

  /// In any order.
  var names: [String] { lock.withLock { Array(entries.keys) } }

  func find(_ name: String) -> (any Sendable)? { lock.withLock { entries[name] }?.actor }

  /// Adds an entry, and returns the watcher that will remove it.
  ///
  /// Returns nil if the name is taken.
  func add(_ name: String, _ actor: any Sendable, _ makeWatcher: (Int) -> ActorWatcher) -> ActorWatcher? {
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

  /// Removes an entry, and returns the handle that it held.
  func remove(_ name: String, _ number: Int?) -> (any Sendable)? {
    lock.lock()
    var entry: Entry?
    if let found = entries[name], number == nil || number == found.number { entry = entries.removeValue(forKey: name) }
    lock.unlock()
    entry?.watcher.cancel()
    return entry?.actor
  }
}

extension ActorRegistry {
  /// The error of a name that another actor has.
  public struct NameTakenError: Error, CustomStringConvertible {
    /// The name.
    public var name: String
    /// Creates the error.
    public init(name: String) { self.name = name }
    /// A sentence that says what to do.
    public var description: String {
      "an actor named \"\(name.asName)\" is registered already; stop or unregister it first, or choose another name"
    }
  }
}
