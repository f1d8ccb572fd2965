#if Postgres
import Coroutine
public import CoroutinePostgres
public import FoundationEssentials

extension WorkQueue {
  /// Adds a job in the caller's transaction: it exists if and when that commits.
  ///
  /// Asks the server, twice at most.
  ///
  /// - Parameters:
  ///   - payload: What is to be done.
  ///   - t: The caller's transaction.
  ///   - unique: While a job of this key is available, scheduled, running or retryable, nothing is added. The check
  ///     is an index, so two transactions at once add one job; the second waits for the first to end.
  ///   - key: Jobs of one key run one at a time, in the order of their ids. A failed one holds up those behind it.
  ///     Transactions that add jobs of one key wait for one another, so that ids and commits have the same order.
  ///   - priority: Lower first; equal ones in the order of `at`, then of ids.
  ///   - at: Not before; nil for now. A job with a past date is available at once.
  /// - Returns: The job's id, or that of the job that was there.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func enqueue(
    _ payload: Payload,
    in t: PostgresTransaction,
    unique: String? = nil,
    key: String? = nil,
    priority: Int = 0,
    at: Date? = nil
  ) throws -> (id: Int64, isNew: Bool) {
    try core.enqueue(try jsonText(payload), in: t, unique: unique, key: key, priority: priority, at: at)
  }

  /// Adds many jobs by one statement.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func enqueue(all payloads: [Payload], in t: PostgresTransaction, priority: Int = 0) throws {
    guard !payloads.isEmpty else { return }
    try core.enqueue(all: try payloads.map { try jsonText($0) }, in: t, priority: priority)
  }
}

extension QueueCore {
  func enqueue(
    _ payload: String,
    in t: PostgresTransaction,
    unique: String?,
    key: String?,
    priority: Int,
    at: Date?
  ) throws -> (id: Int64, isNew: Bool) {
    while true {
      let added = try t.first(
        insert(payload, unique: unique, key: key, priority: priority, at: at),
        as: (Int64, String).self
      )
      if let (id, state) = added {
        if state == "available" { t.afterCommit { [self] in wake() } }
        return (id, true)
      }
      // Without a unique key the row is always added. The other job may have ended between the two statements.
      let there = try t.first(
        """
        select id from \(table.job)
        where queue = \(queue) and unique_key = \(unique) and state in \(JobTable.unfinished)
        """,
        as: Int64.self
      )
      if let there { return (there, false) }
    }
  }

  func enqueue(all payloads: [String], in t: PostgresTransaction, priority: Int) throws {
    try t.run(
      """
      insert into \(table.job) (queue, state, priority, attempts, payload)
      select \(queue), 'available', \(priority)::int, \(options.attempts)::int, p::jsonb
      from unnest(\(payloads)) with ordinality as u (p, n) order by n
      """
    )
    t.afterCommit { [self] in wake() }
  }

  /// With a key, its row is locked before the id is drawn: the id is computed for the row that the lock has given.
  private func insert(_ payload: String, unique: String?, key: String?, priority: Int, at: Date?) -> SQL {
    let columns: SQL = "(queue, state, priority, at, attempts, payload, unique_key, order_key)"
    let values: SQL = """
      \(queue), case when coalesce(\(at), now()) <= now() then 'available' else 'scheduled' end, \(priority)::int,
      coalesce(\(at), now()), \(options.attempts)::int, \(payload)::text::jsonb, \(unique), \(key)
      """
    // Without a unique key there can be no conflict.
    let rest: SQL = """
      on conflict (queue, unique_key) where state in \(JobTable.unfinished) do nothing returning id, state
      """
    guard let key else { return "insert into \(table.job) \(columns) values (\(values)) \(rest)" }
    return """
      with locked as (
        insert into \(identifier: schema).key as k (queue, key) values (\(queue), \(key))
        on conflict (queue, key) do update set used_at = now() returning 1)
      insert into \(table.job) \(columns) select \(values) from locked \(rest)
      """
  }
}
#endif
