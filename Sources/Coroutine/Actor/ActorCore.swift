/// An actor's mailbox and body; what ``ActorRef`` and ``Mailbox`` share.
///
/// The mailbox is a channel, which brings order, bounds, back-pressure and what becomes of messages that nobody receives. A tell is a
/// send, the mailbox's `receive` a receive. One thing is added: a notice, which must arrive whatever the bound and whatever a
/// dropping mailbox drops.
///
/// Who owns what
///   channel, whenFull   never change
///   body, extras        the actor's own turn; after the end whoever tells of it
@usableFromInline
final class ActorCore<Message: Sendable>: ActorLife, @unchecked Sendable {
  // Sound because of the above.

  @usableFromInline let channel: Channel<Envelope<Message>>
  @usableFromInline let whenFull: WhenFull
  @exclusivity(unchecked) private var body: ((Mailbox<Message>) throws -> Void)?
  /// What is to be received besides what is in the channel; nil in an actor that has never had any of it.
  @exclusivity(unchecked) @usableFromInline var extras: MailboxExtras<Message>?

  init(
    _ options: MailboxOptions<Message>,
    _ supervision: Supervision?,
    body: @escaping (Mailbox<Message>) throws -> Void
  ) {
    whenFull = options.whenFull
    let notices = NoticeReturn<Message>(options.onUndelivered)
    var hook: (@Sendable (Envelope<Message>) -> Void)?
    // Only where there is something to tell it.
    if options.onUndelivered != nil || options.dropsOldest { hook = { notices.take($0) } }
    channel = Channel(options.capacity.ofEnvelopes, onUndelivered: hook)
    notices.channel = channel
    self.body = body
    super.init(supervision)
  }

  override func live(in scope: Scope) throws {
    guard let body else { return }
    try body(Mailbox(self, scope))
  }

  override var hasDrained: Bool { channel.isClosed && channel.count == 0 && extras?.isEmpty ?? true }

  override func close() { channel.close() }

  override func dropAll() { channel.cancel() }

  override func prepareNextLife() { extras?.prepareNextLife() }

  override func windUp() {
    body = nil
    guard let extras = extras.take() else { return }
    for message in extras.takeAll() { drop(message) }
  }

  /// A message that was accepted and will not be handled.
  func drop(_ message: Message) {
    if let hook = channel.onUndelivered { hook(.message(message)) }
  }
}

/// How a mailbox is made.
struct MailboxOptions<Message: Sendable> {
  var capacity: Channel<Message>.Capacity
  var failsWhenFull: Bool
  var onUndelivered: (@Sendable (Message) -> Void)?

  var whenFull: WhenFull { capacity.waits ? (failsWhenFull ? .fails : .waits) : .neverWaits }

  var dropsOldest: Bool {
    if case .dropOldest = capacity { true } else { false }
  }
}

/// Puts a notice back that a mailbox has dropped for its age, and gives everything else to the hook.
private final class NoticeReturn<Message: Sendable>: @unchecked Sendable {
  // Sound because `channel` is set before anyone else knows the channel, and read only when that calls its hook: never in its
  // deinit, because the actor's end has emptied it. A weak reference would make each retain of the channel twice as dear.
  private let onUndelivered: (@Sendable (Message) -> Void)?
  @exclusivity(unchecked) unowned(unsafe) var channel: Channel<Envelope<Message>>?

  init(_ onUndelivered: (@Sendable (Message) -> Void)?) { self.onUndelivered = onUndelivered }

  func take(_ envelope: Envelope<Message>) {
    if case .notice = envelope, channel?.insist(envelope) == true { return }
    onUndelivered?(envelope.message)
  }
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
