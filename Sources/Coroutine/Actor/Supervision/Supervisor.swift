public import Dispatch
import Synchronization

/// Restarts actors that fail, by a policy, and fails itself if they fail too often.
///
/// ```swift
/// let supervisor = Supervisor(.oneForOne, limit: RestartLimit(restarts: 5, within: .seconds(10)))
/// let reader = supervisor.actor(of: Request.self, name: "reader") { mailbox in
///   var cache = Cache()
///   while let request = try mailbox.receive() { try handle(request, &cache) }
/// }
/// ```
///
/// - A restart begins a new life of the actor: its body runs again, so the variables that the body declares are created
///   anew.
/// - The handle stays the same, and so does the mailbox. The next life handles the queued messages. It does not handle
///   the message that failed, and an ask that sent that message gets ``ReplyDroppedError``.
/// - An actor that was stopped, or cancelled through its handle, is not restarted.
/// - If there are more restarts than the limit allows, the supervisor itself fails with
///   ``Supervisor/RestartLimitError``. Its actors end. If it has a supervisor of its own, that supervisor decides; a
///   restart of a supervisor restarts all its actors.
/// - A supervisor owns its actors: they live until they are stopped or the supervisor is stopped. Releasing the last
///   handle of the supervisor and of all its actors stops it.
public final class Supervisor: Sendable {
  let core: SupervisorCore
  /// The parent of a supervised supervisor, which stays alive while this handle exists.
  private let parent: Supervisor?

  init(_ core: SupervisorCore) {
    self.core = core
    parent = core.supervision.map { Supervisor($0.supervisor) }
    _ = core.handles.wrappingAdd(1, ordering: .relaxed)
  }

  deinit {
    if core.handles.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 { core.close() }
  }

  /// Starts a supervisor.
  ///
  /// - Parameters:
  ///   - strategy: Selects the actors that are restarted together.
  ///   - limit: The number of restarts within a period that the supervisor allows.
  ///   - backoff: The pauses before restarts; none by default, so that an actor that fails at once is restarted at once
  ///     until the limit is reached.
  ///   - queue: The queue on which the supervisor runs. Its actors may run elsewhere. `nil` has the same meaning as in
  ///     ``co_launch(on:name:stack:start:file:line:_:)-(DispatchQueue?,_,_,_,_,_,_)``.
  ///   - name: A name for dumps, reports and overflow reports.
  ///   - onRestart: Gets the end of the life of each actor that is restarted because of its own end. The supervisor
  ///     calls it and waits for it, so it must neither block nor suspend.
  ///   - file: The launch site, for dumps, reports and overflow reports.
  ///   - line: The line of the launch site.
  ///
  /// Does not suspend. May be called anywhere.
  public convenience init(
    _ strategy: RestartStrategy = .oneForOne,
    limit: RestartLimit = RestartLimit(),
    backoff: RestartBackoff = .none,
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    onRestart: (@Sendable (ActorEnd) -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) {
    let core = SupervisorCore(strategy, limit, backoff, onRestart, nil)
    self.init(core)
    core.start(on: queue, name: name, LaunchSite(file: file, line: line))
  }

  /// Starts an actor that this supervisor restarts.
  ///
  /// The actor behaves as one of ``co_actor(of:on:name:mailbox:failsWhenFull:onUndelivered:file:line:_:)``, with one
  /// difference: `body` may run more than once, each time on the same coroutine and with the same mailbox. Actors are
  /// restarted in the order in which they were started.
  ///
  /// - Parameters:
  ///   - type: The type of the messages, if it cannot be inferred.
  ///   - queue: The queue on which the actor runs.
  ///   - name: A name for dumps, reports and overflow reports.
  ///   - mailbox: The number of messages that may wait, and the effect of a tell to a full mailbox.
  ///   - failsWhenFull: Whether a tell to a full mailbox throws ``MailboxFullError`` where it would wait.
  ///   - onUndelivered: Gets every message that will not be handled.
  ///   - restart: The ends after which the actor is restarted.
  ///   - file: The launch site, for dumps, reports and overflow reports.
  ///   - line: The line of the launch site.
  ///   - body: Handles the mailbox in one life.
  ///
  /// Does not suspend. May be called anywhere. If the supervisor has ended, the new actor is cancelled.
  public func actor<Message>(
    of type: Message.Type = Message.self,
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    mailbox: Channel<Message>.Capacity = .unbounded,
    failsWhenFull: Bool = false,
    onUndelivered: (@Sendable (Message) -> Void)? = nil,
    restart: RestartPolicy = .onFailure,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Mailbox<Message>) throws -> Void
  ) -> ActorRef<Message> {
    let options = MailboxOptions(capacity: mailbox, failsWhenFull: failsWhenFull, onUndelivered: onUndelivered)
    let actor = ActorCore(options, Supervision(core, restart), body: body)
    let ref = ActorRef(actor)
    core.add(actor, on: queue, name: name, LaunchSite(file: file, line: line))
    return ref
  }

  /// Starts a supervisor that this one restarts.
  ///
  /// If the new supervisor fails because its own actors fail too often, it is restarted, and all its actors with it.
  ///
  /// The parameters are those of ``init(_:limit:backoff:on:name:onRestart:file:line:)`` and of
  /// ``actor(of:on:name:mailbox:failsWhenFull:onUndelivered:restart:file:line:_:)``.
  public func supervisor(
    _ strategy: RestartStrategy = .oneForOne,
    limit: RestartLimit = RestartLimit(),
    backoff: RestartBackoff = .none,
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    restart: RestartPolicy = .onFailure,
    onRestart: (@Sendable (ActorEnd) -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Supervisor {
    let child = SupervisorCore(strategy, limit, backoff, onRestart, Supervision(core, restart))
    let handle = Supervisor(child)
    core.add(child, on: queue, name: name, LaunchSite(file: file, line: line))
    return handle
  }

  /// The coroutine that runs the supervisor.
  ///
  /// Join it to wait for the end, and to get the failure.
  public var job: Job<Void> { core.job.unsafelyUnwrapped }

  /// The number of restarts of actors because of their own end.
  ///
  /// May be read on any thread.
  public var restartCount: Int { core.restartCount.touched.load(ordering: .relaxed) }

  /// Stops the actors in the reverse order of their start, and then the supervisor.
  ///
  /// Each actor is stopped after the actors that were started later have drained and ended. An actor that fails
  /// meanwhile is not restarted. Never suspends. May be called on any thread, and repeatedly. To wait for the end, join
  /// ``job``.
  public func stop() { core.close() }

  /// Cancels the actors in the reverse order of their start, and then the supervisor.
  ///
  /// Each actor is cancelled after the actors that were started later have ended. Never suspends. May be called on any
  /// thread, and repeatedly.
  public func cancel() { core.cancel() }
}

/// The ends after which a supervised actor is restarted.
public struct RestartPolicy: Sendable, Hashable, CustomStringConvertible {
  enum Kind: Sendable { case always, onFailure, never }

  let kind: Kind

  /// Every end.
  ///
  /// If the body has returned, the actor is restarted too, unless it was stopped and has handled its messages.
  public static var always: RestartPolicy { RestartPolicy(kind: .always) }
  /// A failure: the body has thrown.
  public static var onFailure: RestartPolicy { RestartPolicy(kind: .onFailure) }
  /// No end.
  public static var never: RestartPolicy { RestartPolicy(kind: .never) }

  /// `always`, `onFailure` or `never`.
  public var description: String { "\(kind)" }
}

/// The actors of a supervisor that are restarted together.
public struct RestartStrategy: Sendable, Hashable, CustomStringConvertible {
  enum Kind: Sendable { case oneForOne, allForOne, restForOne }

  let kind: Kind

  /// Only the actor that has ended.
  public static var oneForOne: RestartStrategy { RestartStrategy(kind: .oneForOne) }
  /// All actors.
  ///
  /// The other lives are ended in the reverse order of starting. Then all actors begin in the order of starting.
  public static var allForOne: RestartStrategy { RestartStrategy(kind: .allForOne) }
  /// The actor that has ended, and the actors that were started after it, in the same order.
  public static var restForOne: RestartStrategy { RestartStrategy(kind: .restForOne) }

  /// `oneForOne`, `allForOne` or `restForOne`.
  public var description: String { "\(kind)" }
}

/// The number of restarts within a period that a supervisor allows before it fails itself.
public struct RestartLimit: Sendable {
  /// The number of restarts that are allowed.
  ///
  /// With one more, the supervisor fails.
  public var restarts: Int
  /// The period in which restarts are counted.
  public var period: Duration

  /// Creates a limit.
  ///
  /// The default is three restarts in five seconds. Traps if `restarts` is negative, or if `period` is not positive.
  public init(restarts: Int = 3, within period: Duration = .seconds(5)) {
    if restarts < 0 { misuse("A supervisor cannot take \(restarts) restarts: allow 0 or more.") }
    if period <= .zero { misuse("Restarts cannot be counted within \(period): give a time longer than nothing.") }
    self.restarts = restarts
    self.period = period
  }
}

extension Supervisor {
  /// The error of a supervisor whose actors have failed too often.
  public struct RestartLimitError: Error, CustomStringConvertible {
    /// The last actor's end, after which there was no restart.
    ///
    /// If that was a supervisor which has failed at its own limit, the end of its last actor: the first cause.
    public var last: ActorEnd
    /// The limit that was reached.
    public var limit: RestartLimit

    /// Creates the error.
    public init(last: ActorEnd, limit: RestartLimit) {
      self.last = last
      self.limit = limit
    }

    /// A sentence that describes what happened.
    public var description: String {
      let name = last.name.map { "\"\($0.asName)\" " } ?? ""
      let how = if case .failed(let error) = last.exit { "failed: \(asLine(error))" } else { "ended" }
      return
        "more than \(limit.restarts) restarts within \(limit.period); the last actor, \(name)(id \(last.id)), \(how)"
    }
  }
}

// MARK: - Back-off of restarts

/// The pauses before the restarts of an actor that fails again and again.
///
/// ```swift
/// let supervisor = Supervisor(
///   limit: RestartLimit(restarts: 100, within: .seconds(600)),
///   backoff: .exponential(from: .milliseconds(10), limit: .seconds(5))
/// )
/// ```
///
/// The pause grows with each end of the same actor. It begins anew after a life that was long enough. During the pause
/// the actor rests: its mailbox takes messages, and the next life handles them. The supervisor goes on with its other
/// actors. Actors that are restarted together (``RestartStrategy``) end at once, and begin together after the pause. A
/// supervisor that is stopped or cancelled does not wait for pauses.
public struct RestartBackoff: Sendable {
  private let pauses: @Sendable (Int) -> Duration
  let reset: Duration

  /// Creates a back-off from a closure.
  ///
  /// - Parameters:
  ///   - reset: The length of a life after which the count begins anew.
  ///   - pause: Gets the number of ends that have followed one another, from one on, and returns the pause before the
  ///     restart; zero or less restarts at once. The supervisor calls it and waits for it, so it must neither block nor
  ///     suspend.
  public init(resettingAfter reset: Duration = .seconds(60), _ pause: @escaping @Sendable (_ ends: Int) -> Duration) {
    self.reset = reset
    pauses = pause
  }

  /// No pause.
  public static var none: RestartBackoff { RestartBackoff { _ in .zero } }

  /// The same pause before each restart.
  public static func constant(_ pause: Duration) -> RestartBackoff { RestartBackoff { _ in pause } }

  /// A pause of `first`, which doubles with each end up to `limit`.
  ///
  /// Not random: the actors of one supervisor need not avoid one another.
  public static func exponential(
    from first: Duration,
    limit: Duration,
    resettingAfter reset: Duration = .seconds(60)
  ) -> RestartBackoff {
    let (first, limit) = (max(0, first.nanoseconds), max(0, limit.nanoseconds))
    return RestartBackoff(resettingAfter: reset) { ends in
      let (pause, overflow) = first.multipliedReportingOverflow(by: ends > 62 ? .max : Int64(1) << (ends - 1))
      return .nanoseconds(overflow ? limit : min(pause, limit))
    }
  }

  func pause(after ends: Int) -> Duration { pauses(ends) }
}
