/// A handler for the next message, for an actor whose handling changes over its life.
///
/// ```swift
/// func closed() -> Behavior<Door> {
///   Behavior { message in
///     if case .open = message { .become(open()) } else { .same }
///   }
/// }
/// co_actor(of: Door.self) { mailbox in try mailbox.run(closed()) }
/// ```
///
/// For two or three states, a loop inside a loop is as clear. Behaviours are for state machines.
public struct Behavior<Message: Sendable> {
  /// The behaviour after a message.
  public struct Next {
    enum Kind {
      case same
      case become(Behavior)
      case stop
    }

    let kind: Kind

    /// The same behaviour handles the next message.
    public static var same: Next { Next(kind: .same) }
    /// Another behaviour handles the next message.
    public static func become(_ next: Behavior) -> Next { Next(kind: .become(next)) }
    /// The actor ends: ``Mailbox/run(_:)`` returns.
    public static var stop: Next { Next(kind: .stop) }
  }

  private let handler: (Message) throws -> Next

  /// Creates a behaviour from a closure that handles a message.
  public init(_ handler: @escaping (Message) throws -> Next) { self.handler = handler }

  /// Handles one message.
  public func handle(_ message: Message) throws -> Next { try handler(message) }
}

extension Mailbox {
  /// Handles messages, starting with `behavior`, until a behaviour returns `stop`, or the actor is stopped and drained.
  ///
  /// Suspends as ``receive()`` does. Throws if the actor is cancelled, and if a handler throws.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ behavior: Behavior<Message>) throws {
    var behavior = behavior
    while let message = try receive() {
      switch try behavior.handle(message).kind {
      case .same: continue
      case .become(let next): behavior = next
      case .stop: return
      }
    }
  }
}
