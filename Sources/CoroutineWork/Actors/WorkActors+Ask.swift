#if Postgres
import Coroutine
public import CoroutinePostgres
import FoundationEssentials

extension WorkActors {
  /// Stores a message, in the caller's transaction.
  ///
  /// Asks the server.
  ///
  /// - Parameters:
  ///   - key: The actor's key.
  ///   - message: The message.
  ///   - t: The caller's transaction.
  ///   - unique: While a message of this actor with this key is stored, for as long as `keepCompleted` after it was
  ///     handled, nothing is added.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func tell(_ key: String, _ message: Message, in t: PostgresTransaction, unique: String? = nil) throws {
    _ = try store(key, message, in: t, unique: unique)
  }

  /// Stores a message, in a transaction of its own, and suspends until any program has handled it.
  ///
  /// That takes two commits and two notifications. If cancelled, throws at once, and the message is handled
  /// nevertheless. Ask again with the same `unique` to get the same answer, for as long as `keepCompleted`; a minute
  /// at least.
  /// - Throws: ``WorkActorFailed``, with the error's text, after the last attempt.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask(_ key: String, _ message: Message, unique: String? = nil) throws -> Reply {
    let id = try core.db.transaction(retries: 3) { t in try store(key, message, in: t, unique: unique) }
    let answer = try answers.wait(for: id)
    guard answer.state == "completed", let text = answer.result else {
      throw WorkActorFailed(key: key, message: answer.error, attempts: answer.attempt)
    }
    do { return try JSONDecoder().decode(Reply.self, from: Data(text.utf8)) } catch {
      throw PostgresError(.decoding, "the answer \(id) of \(core.queue) \(key) is no \(Reply.self): \(error)")
    }
  }

  private func store(_ key: String, _ message: Message, in t: PostgresTransaction, unique: String?) throws -> Int64 {
    let text = try jsonText(message)
    guard let unique else {
      return try core.enqueue(text, in: t, unique: nil, key: key, priority: 0, at: nil).id
    }
    // The length keeps two pairs of texts apart.
    let identity = "\(key.utf8.count) \(key) \(unique)"
    // The holder of the lock of the actor's key sees all messages of the others, in the next statement.
    try t.run(
      """
      insert into \(identifier: core.schema).key (queue, key) values (\(core.queue), \(key))
      on conflict (queue, key) do update set used_at = now()
      """
    )
    let there = try t.first(
      """
      select id from \(core.table.job) where queue = \(core.queue) and unique_key = \(identity)
      order by id desc limit 1
      """,
      as: Int64.self
    )
    if let there { return there }
    return try core.enqueue(text, in: t, unique: identity, key: key, priority: 0, at: nil).id
  }
}
#endif
