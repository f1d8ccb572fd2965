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
///     handled; see ``Channel/init(_:onUndelivered:)``.
///   - file: The launch site, for dumps, reports and overflow reports.
///   - line: The line of the launch site.
///   - body: Handles the mailbox. It runs once, on the actor's own coroutine.
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
