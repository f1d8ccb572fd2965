/// Where an actor's body gets its messages from.
///
/// It belongs to the body and to the coroutine that runs it.
public final class Mailbox<Message: Sendable>: Sequence {
  @usableFromInline let core: ActorCore<Message>
  let scope: Scope

  init(_ core: ActorCore<Message>, _ scope: Scope) {
    self.core = core
    self.scope = scope
  }

  /// The next message; nil when the actor has been stopped and has handled all that it had.
  ///
  /// Suspends until there is one. Once the actor is cancelled it throws what cancellation throws.
  @inlinable
  public func receive() throws -> Message? {
    let (carrier, job) = try Carrier.beginWaiting()
    if core.extras != nil { return try receiveAmongExtras() }
    return try core.channel.next(carrier, job)?.message
  }

  /// Receives messages one at a time and calls `handle` with each, until the actor has been stopped and has handled
  /// all.
  ///
  /// Suspends for each message as ``receive()`` does. Once the actor is cancelled it throws what cancellation throws,
  /// so that what follows it in the body runs only if every message was handled.
  /// - Throws: What cancellation throws, or what `handle` throws.
  @inlinable
  public func forEach(_ handle: (Message) throws -> Void) throws {
    while let message = try receive() { try handle(message) }
  }

  /// Lets `for message in mailbox` receive.
  ///
  /// - Warning: The loop cannot throw: it ends in the same way when the actor has been stopped and all is handled, and
  ///   when it is cancelled and messages were dropped. That is right for a body that ends with its loop: the actor's
  ///   end tells one from the other (``ActorExit``). Where more follows, use ``forEach(_:)``, which throws, or check
  ///   `co_isCancelled`.
  @inlinable
  public func makeIterator() -> AnyIterator<Message> {
    AnyIterator {
      do { return try self.receive() } catch { return nil }
    }
  }

  /// How many messages will come is never known.
  @inlinable public var underestimatedCount: Int { 0 }

  /// A handle of this actor, to give to others.
  ///
  /// An actor that keeps a handle of itself is not stopped by the release of all others: whoever keeps it may still tell it
  /// something.
  public var actor: ActorRef<Message> { ActorRef(core) }

  /// Lets a piece of work run beside the messages that follow, on the actor's queue: what one message needs to wait for then
  /// holds up no other.
  ///
  /// ```swift
  /// for request in mailbox {
  ///   switch request {
  ///   case .fetch(let url, let reply): mailbox.launch { reply(try fetch(url)) }
  ///   case .count(let reply): reply(count)
  ///   }
  /// }
  /// ```
  ///
  /// It is a child of the actor: a stopped actor ends after it, a cancelled actor cancels it, and its failure is the actor's.
  /// Does not suspend. To be called by the body; after its end it traps.
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
