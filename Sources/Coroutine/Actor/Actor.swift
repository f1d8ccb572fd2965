public import Dispatch

/// Starts an actor: a coroutine with a mailbox, which handles one message at a time.
///
/// ```swift
/// enum Command: Sendable { case add(Int), total(Reply<Int>) }
///
/// let counter = co_actor(of: Command.self) { mailbox in
///   var total = 0
///   for command in mailbox {
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
/// What the body declares is the actor's state, and only the body can reach it. While a handler waits, this actor handles
/// nothing else, and nobody else is held up; ``Mailbox/launch(name:file:line:_:)`` lets a chosen message run concurrently. Messages of
/// one sender are handled in the order in which they were told.
///
/// When the body returns, or throws, the actor has ended: questions without an answer fail with ``ActorStopped``, and what is left in the
/// mailbox goes to `onUndelivered`. A failure goes to who joins ``ActorRef/job``, else to
/// ``CoroutineRuntime/onUnhandledError``; ``Supervisor`` restarts actors that fail.
///
/// - Parameters:
///   - type: The messages' type, where it cannot be inferred.
///   - queue: Where the actor runs. `nil`: the queue of the current coroutine; outside of any coroutine the shared
///     parallel scheduler.
///   - name: For dumps, reports and last words.
///   - mailbox: How many messages may wait, and what a tell to a full mailbox does: it waits (`bounded`, and `rendezvous`, which
///     hands each message over), or a message is dropped (`dropOldest`, `dropNewest`).
///   - failsWhenFull: A tell to a full mailbox that would wait throws ``MailboxFull`` instead.
///   - onUndelivered: Gets every message that was accepted, or that a tell offered in vain, and will not be handled; see
///     ``Channel/init(_:onUndelivered:)``.
///   - file: The launch place, for dumps, reports and last words.
///   - line: The line of the launch place.
///   - body: What it does with its mailbox; runs once, on the actor's own coroutine.
/// - Returns: The handle. Releasing the last one stops the actor.
///
/// Does not suspend; may be called anywhere.
public func co_actor<Message: Sendable>(
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
    makeJob(on: queue, name, launchSite).launch(.queued, on: queue)
  }

  /// Makes the job that is to run this actor: from here on the actor can be cancelled; ``begin()`` gets it going.
  final func prepare(on queue: DispatchQueue?, name: String?, _ launchSite: LaunchSite) {
    makeJob(on: queue, name, launchSite).launch(.lazy, on: queue)
  }

  private final func makeJob(on queue: DispatchQueue?, _ name: String?, _ launchSite: LaunchSite) -> Job<Void> {
    let job = Job<Void>(scheduler: Launch.scheduler(for: queue), name: name, stack: .standard, launchSite: launchSite) {
      [run = ActorRun(self)] in try run()
    }
    adopt(job)
    return job
  }
}

/// What a job's body holds of its actor: runs it, or, released by a job that was cancelled before it began, makes it deaf.
///
/// The job releases its body before its end is known, so nobody who has joined it can tell the actor anything.
private final class ActorRun: Sendable {
  private let actor: ActorLife
  init(_ actor: ActorLife) { self.actor = actor }

  func callAsFunction() throws { try actor.run() }

  // After a run there is nothing left to do.
  deinit { actor.becomeDeaf() }
}
