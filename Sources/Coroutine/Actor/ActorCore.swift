/// An actor's mailbox and body, which ``ActorRef`` and ``Mailbox`` share.
///
/// The mailbox is a channel. The channel provides order, bounds, back-pressure, and the handling of messages that are
/// never received. A tell is a send; the mailbox's `receive` is a receive. The core adds one thing: a notice, which
/// must arrive whatever the bound is and whatever a dropping mailbox drops.
///
/// Ownership
///   channel, whenFull   constant
///   body, extras        the actor's own coroutine; after the end, the thread that publishes the end
@usableFromInline
final class ActorCore<Message>: ActorLife, @unchecked Sendable {
  // Sound because of the ownership described above.

  @usableFromInline let channel: Channel<Envelope<Message>>
  @usableFromInline let whenFull: WhenFull
  @exclusivity(unchecked) private var body: ((Mailbox<Message>) throws -> Void)?
  /// The messages to receive in addition to the channel's; nil if the actor has never had any.
  @exclusivity(unchecked) @usableFromInline var extras: MailboxExtras<Message>?

  init(
    _ options: MailboxOptions<Message>,
    _ supervision: Supervision?,
    body: @escaping (Mailbox<Message>) throws -> Void
  ) {
    whenFull = options.whenFull
    let notices = NoticeReturn<Message>(options.onUndelivered)
    var hook: (@Sendable (Envelope<Message>) -> Void)?
    // Set only if the hook has something to do.
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

  override func beginDropAll() -> @Sendable () -> Void { channel.beginCancel() }

  override func prepareNextLife() { extras?.prepareNextLife() }

  override func windUp() {
    body = nil
    guard let extras = extras.take() else { return }
    for message in extras.takeAll() { drop(message) }
  }

  /// Reports a message that was accepted and will not be handled.
  func drop(_ message: Message) {
    if let hook = channel.onUndelivered { hook(.message(message)) }
  }
}

/// The options of a mailbox.
struct MailboxOptions<Message> {
  var capacity: Channel<Message>.Capacity
  var failsWhenFull: Bool
  var onUndelivered: (@Sendable (Message) -> Void)?

  var whenFull: WhenFull { capacity.waits ? (failsWhenFull ? .fails : .waits) : .neverWaits }

  var dropsOldest: Bool { capacity.overflow == .dropsOldest }
}

/// Puts back a notice that a mailbox dropped as its oldest message, and passes everything else to the hook.
private final class NoticeReturn<Message>: @unchecked Sendable {
  // Sound because `channel` is set before any other thread knows the channel, and read only when the channel calls its
  // hook. The channel's deinit does not call it, because the actor's end has emptied the channel. A weak reference
  // would double the cost of each retain of the channel.
  private let onUndelivered: (@Sendable (Message) -> Void)?
  @exclusivity(unchecked) unowned(unsafe) var channel: Channel<Envelope<Message>>?

  init(_ onUndelivered: (@Sendable (Message) -> Void)?) { self.onUndelivered = onUndelivered }

  func take(_ envelope: Envelope<Message>) {
    if case .notice = envelope, channel?.insist(envelope) == true { return }
    onUndelivered?(envelope.message)
  }
}

/// The effect of a tell when the mailbox is full.
@usableFromInline
enum WhenFull: UInt8, Sendable {
  /// The mailbox is never full for a sender: it holds any number of messages, or drops messages.
  case neverWaits
  case waits
  case fails
}

/// A message, or a notice that the runtime has promised to deliver.
@usableFromInline
enum Envelope<Message> {
  case message(Message)
  /// Never dropped for lack of room.
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
  /// The same capacity, for a channel of envelopes.
  var ofEnvelopes: Channel<Envelope<Element>>.Capacity { .init(limit, overflow) }
}
