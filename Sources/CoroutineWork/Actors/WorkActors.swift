#if Postgres
import Coroutine
public import CoroutinePostgres
import FoundationEssentials

// Actors are a queue with an order for each key, and a table of states.
//
// A message is a job whose key is the actor's. So the claim's rules give one message of an actor at a time, in order,
// in any program. Its handler finishes the job in the transaction that reads the state, calls `receive`, and writes
// the new state: the fence refuses a second one. The reply is a column of the job, and an asker reads it there.
//
// The name in the tables begins with `@`, so actors and a queue may have the same name. A message's unique key
// belongs to its actor, and counts for as long as the message is stored: asked again, it is answered from the row.

/// Durable actors, one for each key: a state, and messages that are handled one at a time and in order, in any
/// program.
///
/// `receive` gets the state, nil at first, and the message. The new state, the handled message and what else it
/// writes are one transaction. If it throws, nothing of it is kept; the message is tried again as a job is, and those
/// behind it wait. After the last attempt it is discarded, its asker gets the error, and the next one is handled.
public final class WorkActors<State, Message, Reply>: Sendable
where State: Codable & Sendable, Message: Codable & Sendable, Reply: Codable & Sendable {
  typealias Receive = @Sendable (String, inout State?, Message, PostgresTransaction) throws -> Reply
  let core: QueueCore
  let receive: Receive
  let answers: Answers

  /// Creates the actors' address.
  ///
  /// Never connects, never suspends; any thread. Traps unless `name` has 1 to 57 bytes.
  ///
  /// - Parameters:
  ///   - name: The actors' name in the tables.
  ///   - db: The database.
  ///   - schema: The schema of the tables.
  ///   - options: How messages are treated.
  ///   - receive: Handles a message of the actor with this key. It may run more than once for a message; what it
  ///     changes by the transaction and the state counts once.
  public init(
    _ name: String,
    on db: PostgresPool,
    schema: String = "work",
    options: WorkOptions = .init(),
    _ receive: @escaping @Sendable (String, inout State?, Message, PostgresTransaction) throws -> Reply
  ) {
    precondition((1...57).contains(name.utf8.count), "the name of actors has 1 to 57 bytes, because of its channel's")
    var options = options
    // An asker reads its answer from the row.
    options.keepCompleted = max(options.keepCompleted, .seconds(60))
    core = QueueCore("@\(name)", on: db, schema: schema, options: options)
    self.receive = receive
    answers = Answers(core)
  }

  /// Handles messages until cancelled; stop, cancellation and errors as `WorkQueue.work`.
  ///
  /// Suspends.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func serve(
    concurrency: Int = 16,
    onEvent: @escaping @Sendable (WorkEvent) -> Void = { _ in }
  ) throws {
    let worker = Worker<Message>(core, concurrency: concurrency, onEvent: onEvent) { [self] job in
      _ = try job.finish(result: jsonText) { t in try handle(job, t) }
    }
    try worker.run()
  }

  private func handle(_ job: WorkJob<Message>, _ t: PostgresTransaction) throws -> Reply {
    let key = job.key ?? ""
    var state = try stored(key, t)
    let reply = try receive(key, &state, job.payload, t)
    let text = try state.map { try jsonText($0) }
    try t.run(
      """
      insert into \(identifier: core.schema).actor (name, key, state, job)
      values (\(core.queue), \(key), \(text)::text::jsonb, \(job.id))
      on conflict (name, key) do update set state = excluded.state, job = excluded.job
      """
    )
    t.afterCommit { [core] in core.wake() }
    return reply
  }

  /// Returns the state after the last handled message.
  ///
  /// Asks the server, and locks nothing.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func state(_ key: String) throws -> State? { try stored(key, core.db) }

  private func stored(_ key: String, _ session: some PostgresSession) throws -> State? {
    let text = try session.first(
      "select state::text from \(identifier: core.schema).actor where name = \(core.queue) and key = \(key)",
      as: String?.self
    )
    guard let text = text ?? nil else { return nil }
    do { return try JSONDecoder().decode(State.self, from: Data(text.utf8)) } catch {
      throw PostgresError(.decoding, "the state of \(core.queue) \(key) is no \(State.self): \(error)")
    }
  }
}

/// The last attempt to handle a message has failed.
public struct WorkActorFailed: Error, Sendable, Hashable {
  /// The actor's key, and the text of the last error.
  public var key, message: String
  /// How often it was tried.
  public var attempts: Int
}
#endif
