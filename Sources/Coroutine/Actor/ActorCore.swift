/// An actor's mailbox and body; what ``ActorRef`` and ``Mailbox`` share.
///
/// The mailbox is a channel, which brings order, bounds, back-pressure and what becomes of messages that nobody receives. A tell is a
/// send, the mailbox's `receive` a receive. One thing is added: a notice, which must arrive whatever the bound and whatever a
/// dropping mailbox drops.
///
/// Who owns what
///   channel, whenFull, isFinal   never change
///   body                         the actor's own turn; after the end nobody's
///   extras                       the actor's own turn
@usableFromInline
final class ActorCore<Message: Sendable>: ActorLife, @unchecked Sendable {
  // Sound because of the above.

  @usableFromInline let channel: Channel<Envelope<Message>>
  @usableFromInline let whenFull: WhenFull
  @exclusivity(unchecked) private var body: ((Mailbox<Message>) throws -> Void)?

  init(
    _ mailbox: Channel<Message>.Capacity,
    failsWhenFull: Bool,
    onUndelivered: (@Sendable (Message) -> Void)?,
    body: @escaping (Mailbox<Message>) throws -> Void
  ) {
    whenFull = mailbox.waits ? (failsWhenFull ? .fails : .waits) : .neverWaits
    var undelivered: (@Sendable (Envelope<Message>) -> Void)?
    if let onUndelivered { undelivered = { onUndelivered($0.message) } }
    channel = Channel(mailbox.ofEnvelopes, onUndelivered: undelivered)
    self.body = body
    super.init()
  }

  override func live(in scope: Scope) throws {
    try body?(Mailbox(self, scope))
  }

  override func close() { channel.close() }

  override func dropAll() { channel.cancel() }
}

/// What a tell does when the mailbox is full.
@usableFromInline
enum WhenFull: UInt8, Sendable {
  /// It is never full for those who tell: it holds any number, or drops.
  case neverWaits
  case waits
  case fails
}

/// A message, and whether it is one that the runtime has promised.
@usableFromInline
enum Envelope<Message: Sendable>: Sendable {
  case message(Message)
  /// Never dropped for want of room.
  case notice(Message)

  @inlinable var message: Message {
    @inline(__always) get {
      switch self {
      case .message(let message), .notice(let message): message
      }
    }
  }
}

extension Channel.Capacity {
  /// Whether a send may have to wait.
  var waits: Bool {
    switch self {
    case .rendezvous, .bounded: true
    case .unbounded, .dropOldest, .dropNewest: false
    }
  }

  /// The same for envelopes.
  var ofEnvelopes: Channel<Envelope<Element>>.Capacity {
    switch self {
    case .rendezvous: .rendezvous
    case .bounded(let count): .bounded(count)
    case .unbounded: .unbounded
    case .dropOldest(let count): .dropOldest(count)
    case .dropNewest(let count): .dropNewest(count)
    }
  }
}
