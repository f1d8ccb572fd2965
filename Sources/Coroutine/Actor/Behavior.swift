/// How an actor handles the next message, where that changes over its life.
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
/// An actor with two or three states is as clear as a loop inside a loop; behaviours are for state machines.
public struct Behavior<Message: Sendable> {
  /// What comes after a message.
  public enum Next {
    /// The same again.
    case same
    /// Another behaviour handles the next message.
    case become(Behavior)
    /// The actor has had enough: ``Mailbox/run(_:)`` returns.
    case stop
  }

  private let handler: (Message) throws -> Next

  /// Creates a behaviour from what it does with a message.
  public init(_ handler: @escaping (Message) throws -> Next) { self.handler = handler }

  /// Handles one message.
  public func handle(_ message: Message) throws -> Next { try handler(message) }
}

extension Mailbox {
  /// Handles messages, beginning with `behavior`, until one says stop or the actor is stopped and has handled all.
  ///
  /// Suspends as ``receive()`` does. Cancelled, it throws; so it does what a handler throws.
  public func run(_ behavior: Behavior<Message>) throws {
    var behavior = behavior
    while let message = try receive() {
      switch try behavior.handle(message) {
      case .same: continue
      case .become(let next): behavior = next
      case .stop: return
      }
    }
  }
}
