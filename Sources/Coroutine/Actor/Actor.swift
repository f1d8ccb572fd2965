public import Dispatch

/// Starts an actor: a coroutine with a mailbox, which handles one message at a time.
///
/// ```swift
/// enum Command: Sendable { case add(Int), total(Reply<Int>) }
///
/// let counter = co_actor(of: Command.self) { mailbox in
///   var total = 0
///   while let command = try mailbox.receive() {
///     switch command {
///     case .add(let amount): total += amount
///     case .total(let reply): reply(total)
///     }
///   }
/// }
/// try counter.tell(.add(1))
/// let total = try counter.ask { .total($0) }
/// ```
///
/// Messages need not be Sendable: each is given to the actor (`sending`), which alone handles it.
///
/// The variables that the body declares are the actor's state, and only the body can reach them. While a handler waits,
/// this actor handles no other message, and blocks no other coroutine. ``Mailbox/launch(name:file:line:_:)`` lets a
/// chosen message run concurrently. The messages of one sender are handled in the order in which they were sent.
///
/// When the body returns or throws, the actor has ended. Asks without an answer fail with ``ActorStoppedError``, and
/// the messages that are left in the mailbox go to `onUndelivered`. A failure goes to the coroutine that joins
/// ``ActorRef/job``, else to ``CoroutineRuntime/unhandledErrorHandler``. ``Supervisor`` restarts actors that fail.
///
/// - Parameters:
///   - type: The type of the messages, if it cannot be inferred.
///   - queue: The queue on which the actor runs. `nil` means the queue of the current coroutine, and outside a
///     coroutine the shared parallel scheduler.
///   - name: A name for dumps, reports and overflow reports.
///   - mailbox: The number of messages that may wait, and the effect of a tell to a full mailbox: the tell waits
///     (`bounded`, and `rendezvous`, which passes each message directly), or a message is dropped (`dropOldest`,
///     `dropNewest`).
///   - failsWhenFull: Whether a tell to a full mailbox throws ``MailboxFullError`` where it would wait.
///   - onUndelivered: Gets every message that was accepted, or that a tell offered in vain, and that will not be
///     handled; see ``Channel/init(_:onUndelivered:file:line:)``.
///   - file: The launch site, for dumps, reports and overflow reports.
///   - line: The line of the launch site.
///   - body: Handles the mailbox. It runs once, on the actor's own coroutine, whose stack has the standard size: work
///     that needs more is done inside of ``co_withStack(_:_:)``.
/// - Returns: The handle. Releasing the last handle stops the actor.
///
/// Does not suspend. May be called anywhere.
public func co_actor<Message>(
  of type: Message.Type = Message.self,
  on queue: DispatchQueue? = nil,
  name: String? = nil,
  mailbox: Channel<Message>.Capacity = .unbounded,
  failsWhenFull: Bool = false,
  onUndelivered: (@Sendable (Message) -> Void)? = nil,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: sending @escaping (Mailbox<Message>) throws -> Void
) -> ActorRef<Message> {
  let options = MailboxOptions(capacity: mailbox, failsWhenFull: failsWhenFull, onUndelivered: onUndelivered)
  let core = ActorCore(options, nil, body: body)
  let ref = ActorRef(core)
  core.start(on: queue, name: name, LaunchSite(file: file, line: line))
  return ref
}

extension ActorLife {
  /// Launches the job that runs this actor.
  final func start(on queue: DispatchQueue?, name: String?, _ launchSite: LaunchSite) {
    makeJob(on: queue, name, launchSite).launch(.queued, holding: queue)
  }

  /// Creates the job that will run this actor.
  ///
  /// From here on the actor can be cancelled; ``begin()`` starts the job.
  final func prepare(on queue: DispatchQueue?, name: String?, _ launchSite: LaunchSite) {
    makeJob(on: queue, name, launchSite).launch(.lazy, holding: queue)
  }

  private final func makeJob(on queue: DispatchQueue?, _ name: String?, _ launchSite: LaunchSite) -> Job<Void> {
    let job = Job<Void>(scheduler: Launch.scheduler(for: queue), name: name, stack: .standard, launchSite: launchSite) {
      [run = ActorRun(self)] in try run()
    }
    attach(job)
    list(launchSite)
    return job
  }
}

/// The body of an actor's job: it runs the actor.
///
/// If the job was cancelled before it began, the deinit closes the actor.
///
/// The job releases its body before its end is published, so a coroutine that has joined the job cannot send the actor
/// a message any more.
private final class ActorRun: Sendable {
  private let actor: ActorLife
  init(_ actor: ActorLife) { self.actor = actor }

  func callAsFunction() throws { try actor.run() }

  // After a run, this does nothing.
  deinit { actor.refuseMessages() }
}

// MARK: - Behavior

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
public struct Behavior<Message> {
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

  private let handler: (sending Message) throws -> Next

  /// Creates a behaviour from a closure that handles a message.
  public init(_ handler: @escaping (sending Message) throws -> Next) { self.handler = handler }

  /// Handles one message.
  public func handle(_ message: sending Message) throws -> Next { try handler(message) }
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

// MARK: - What an actor is made of

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
    channel = Channel(unlisted: options.capacity.ofEnvelopes, onUndelivered: hook)
    notices.channel = channel
    self.body = body
    super.init(supervision)
  }

  override func live(in scope: Scope) throws {
    guard let body else { return }
    try body(Mailbox(self, scope))
  }

  override var holding: QueueHolding {
    var holding = channel.holding
    holding.owner = job
    return holding
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
