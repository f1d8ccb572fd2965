/// The receiving side of an actor's mailbox.
///
/// Only the body and the coroutine that runs it may use it. A loop over ``receive()``, or ``forEach(_:)``, handles the
/// messages; both throw a cancellation, so what follows the loop runs only if every message was handled.
public final class Mailbox<Message> {
  @usableFromInline let core: ActorCore<Message>
  let scope: Scope

  init(_ core: ActorCore<Message>, _ scope: Scope) {
    self.core = core
    self.scope = scope
  }

  /// Receives the next message.
  ///
  /// - Returns: The message, or nil once the actor has been stopped and has handled all messages.
  /// - Throws: The cancellation error, once the actor is cancelled.
  ///
  /// Suspends until there is a message.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive() throws -> sending Message? {
    let (carrier, job) = try Carrier.beginWaiting()
    if core.extras != nil {
      // Sound because a stash and a timer were given their message; one that fires repeatedly has a Sendable message.
      nonisolated(unsafe) let message = try receiveAmongExtras()
      return message
    }
    return try core.channel.next(carrier, job)?.message
  }

  /// Calls `handle` with each message, one at a time, until the actor is stopped and has handled all of them.
  ///
  /// - Throws: The cancellation error, once the actor is cancelled, or the error of `handle`. So the code after it runs
  ///   only if every message was handled.
  ///
  /// Suspends for each message as ``receive()`` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func forEach(_ handle: (sending Message) throws -> Void) throws {
    while let message = try receive() { try handle(message) }
  }

  /// A handle of this actor, to give to other code.
  ///
  /// An actor that keeps a handle of itself is not stopped when all others are released: the holder may still tell it a
  /// message.
  public var actor: ActorRef<Message> { ActorRef(core) }

  /// Launches work that runs concurrently with the next messages, on the actor's queue.
  ///
  /// The work may wait without delaying other messages.
  ///
  /// ```swift
  /// while let request = try mailbox.receive() {
  ///   switch request {
  ///   case .fetch(let url, let reply): mailbox.launch { reply(try fetch(url)) }
  ///   case .count(let reply): reply(count)
  ///   }
  /// }
  /// ```
  ///
  /// The work is a child of the actor: a stopped actor ends after it, a cancelled actor cancels it, and its failure is
  /// the actor's. Does not suspend. Called by the body; after the body's end it traps.
  @discardableResult
  public func launch<Success: Sendable>(
    name: String? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ work: sending @escaping () throws -> Success
  ) -> Job<Success> {
    scope.launch(name: name, file: file, line: line, work)
  }
}
