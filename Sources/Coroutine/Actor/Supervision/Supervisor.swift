public import Dispatch
import Synchronization

/// Keeps actors alive: restarts those that fail, by a policy, and gives up when they fail too often.
///
/// ```swift
/// let supervisor = Supervisor(.oneForOne, limit: RestartLimit(restarts: 5, within: .seconds(10)))
/// let reader = supervisor.actor(of: Request.self, name: "reader") { mailbox in
///   var cache = Cache()
///   for request in mailbox { try handle(request, &cache) }
/// }
/// ```
///
/// A restarted actor begins a new life: its body, which is its factory, runs anew, so what it declares is made anew. Its handle stays the
/// same, and so does its mailbox: what was queued is handled by the next life, the message that failed is not, and who had
/// asked it gets ``ActorStopped``. An actor that was stopped, or cancelled by its handle, is not restarted.
///
/// More than so many restarts in so long a time, and the supervisor itself fails with ``RestartLimitReached``: its actors end, or, where
/// it has a supervisor of its own, that one decides, and a restart of a supervisor is a restart of all its actors.
///
/// A supervisor owns its actors: they live until they are stopped or it is. Releasing the last handle of the supervisor and of all
/// its actors stops it.
public final class Supervisor: Sendable {
  let core: SupervisorCore
  /// A supervised supervisor's supervisor stays as long as somebody can reach this one.
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
  ///   - strategy: Which actors begin anew when one does.
  ///   - limit: How many restarts in how long a time are too many.
  ///   - queue: Where the supervisor runs; its actors may run elsewhere. `nil`: as with ``co_launch(on:name:stack:start:file:line:_:)``.
  ///   - name: For dumps, reports and last words.
  ///   - onRestart: Told of each actor that is restarted for its own end: how that life ended. Called by the supervisor,
  ///     which waits for it: it must neither block nor suspend.
  ///   - file: The launch place, for dumps, reports and last words.
  ///   - line: The line of the launch place.
  ///
  /// Does not suspend; may be called anywhere.
  public convenience init(
    _ strategy: RestartStrategy = .oneForOne,
    limit: RestartLimit = RestartLimit(),
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    onRestart: (@Sendable (ActorEnd) -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) {
    let core = SupervisorCore(strategy, limit, onRestart, nil)
    self.init(core)
    core.start(on: queue, name: name, LaunchSite(file: file, line: line))
  }

  /// Starts an actor that this supervisor keeps alive.
  ///
  /// As ``co_actor(of:on:name:mailbox:failsWhenFull:onUndelivered:file:line:_:)``, except that `body` may run more than once, each time on
  /// the same coroutine and with the same mailbox. Actors are restarted in the order in which they were started.
  ///
  /// - Parameters:
  ///   - type: The messages' type, where it cannot be inferred.
  ///   - queue: Where the actor runs.
  ///   - name: For dumps, reports and last words.
  ///   - mailbox: How many messages may wait, and what a tell to a full mailbox does.
  ///   - failsWhenFull: A tell to a full mailbox that would wait throws ``MailboxFull`` instead.
  ///   - onUndelivered: Gets every message that will not be handled.
  ///   - restart: After which ends it is restarted.
  ///   - file: The launch place, for dumps, reports and last words.
  ///   - line: The line of the launch place.
  ///   - body: What it does in one life.
  ///
  /// Does not suspend; may be called anywhere. Of a supervisor that has ended the actor is one that has been cancelled.
  public func actor<Message: Sendable>(
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

  /// Starts a supervisor that this one keeps alive: when it fails because its own actors fail too often, it is restarted, and all
  /// its actors with it.
  ///
  /// The parameters are those of ``init(_:limit:on:name:onRestart:file:line:)`` and of
  /// ``actor(of:on:name:mailbox:failsWhenFull:onUndelivered:restart:file:line:_:)``.
  public func supervisor(
    _ strategy: RestartStrategy = .oneForOne,
    limit: RestartLimit = RestartLimit(),
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    restart: RestartPolicy = .onFailure,
    onRestart: (@Sendable (ActorEnd) -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Supervisor {
    let child = SupervisorCore(strategy, limit, onRestart, Supervision(core, restart))
    let handle = Supervisor(child)
    core.add(child, on: queue, name: name, LaunchSite(file: file, line: line))
    return handle
  }

  /// The coroutine that runs the supervisor: to join it, and to see how it ended.
  public var job: Job<Void> { core.job.unsafelyUnwrapped }

  /// How often an actor was restarted for its own end.
  ///
  /// Any thread.
  public var restartCount: Int { core.restartCount.load(ordering: .relaxed) }

  /// Stops the actors, the last one first, each after those that were started later have drained and ended, and then the
  /// supervisor.
  ///
  /// One that fails meanwhile is not restarted. Never suspends; any thread, idempotent. To wait for the end, join ``job``.
  public func stop() { core.close() }

  /// Cancels the actors, the last one first, each after those that were started later have ended, and then the supervisor.
  ///
  /// Never suspends; any thread, idempotent.
  public func cancel() { core.cancel() }
}

/// After which ends a supervised actor is restarted.
public enum RestartPolicy: Sendable {
  /// After any: also when its body has returned, unless it was stopped and has handled all it had.
  case always
  /// When its body has thrown.
  case onFailure
  /// Never: it ends.
  case never
}

/// Which actors of a supervisor begin anew when one does.
public enum RestartStrategy: Sendable {
  /// That one.
  case oneForOne
  /// All: the others' lives are ended first, the last started first, and then all begin in the order in which they were started.
  case allForOne
  /// That one and those that were started after it, in the same way.
  case restForOne
}

/// How many restarts in how long a time a supervisor takes before it fails itself.
public struct RestartLimit: Sendable {
  /// So many are taken; with one more it fails.
  public var restarts: Int
  /// The time in which they are counted.
  public var period: Duration

  /// Three in five seconds, unless told otherwise.
  ///
  /// Traps on a negative number and on a time that is not longer than nothing.
  public init(restarts: Int = 3, within period: Duration = .seconds(5)) {
    if restarts < 0 { misuse("A supervisor cannot take \(restarts) restarts: allow 0 or more.") }
    if period <= .zero { misuse("Restarts cannot be counted within \(period): give a time longer than nothing.") }
    self.restarts = restarts
    self.period = period
  }
}

/// The actors of a supervisor have failed too often.
public struct RestartLimitReached: Error, CustomStringConvertible {
  /// The last one's end, after which there was no restart.
  public var last: ActorEnd
  /// How many restarts had been taken, and in how long a time.
  public var limit: RestartLimit

  /// Creates the error.
  public init(last: ActorEnd, limit: RestartLimit) {
    self.last = last
    self.limit = limit
  }

  /// What happened.
  public var description: String {
    let name = last.name.map { "\"\($0)\" " } ?? ""
    let how = if case .failed(let error) = last.exit { "failed: \(error)" } else { "ended" }
    return "more than \(limit.restarts) restarts within \(limit.period); the last actor, \(name)(id \(last.id)), \(how)"
  }
}
