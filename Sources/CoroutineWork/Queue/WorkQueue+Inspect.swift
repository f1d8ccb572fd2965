#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

// Inspection and repair.

extension WorkQueue {
  /// Returns how many jobs are in each state.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func counts() throws -> [WorkState: Int] {
    let found = try core.db.all(
      "select state, count(*) from \(core.table.job) where queue = \(core.queue) group by state",
      as: (String, Int).self
    )
    var counts = Dictionary(uniqueKeysWithValues: WorkState.allCases.map { ($0, 0) })
    for (state, count) in found { if let state = WorkState(rawValue: state) { counts[state] = count } }
    return counts
  }

  /// Returns jobs of a state, in the order of their ids, beginning after `id`.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func jobs(_ state: WorkState, limit: Int = 100, after id: Int64 = 0) throws -> [WorkRecord<Payload>] {
    try records("queue = \(core.queue) and state = \(state.rawValue) and id > \(id) order by id limit \(limit)")
  }

  /// Returns a job, or nil if there is none of this number in the queue.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func job(_ id: Int64) throws -> WorkRecord<Payload>? {
    try records("queue = \(core.queue) and id = \(id)").first
  }

  /// Makes a discarded, cancelled or completed job available, with one attempt more.
  ///
  /// Asks the server.
  ///
  /// - Throws: `WorkError.noSuchJob`, also while it runs or waits. `.server` with 23505 if an unfinished job has its
  ///   unique key.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func retry(_ id: Int64) throws {
    let changed = try core.db.run(
      """
      update \(core.table.job) set state = 'available', attempts = attempt + 1, at = now(), ended_at = null,
        cancel_asked = false
      where id = \(id) and queue = \(core.queue) and state in ('completed', 'discarded', 'cancelled')
      """
    ).affected
    if changed == 0 { throw WorkError.noSuchJob(id) }
    core.wake()
  }

  /// Cancels a job.
  ///
  /// A running one is cancelled when its lease is next extended, within a third of it. Asks the server.
  ///
  /// - Throws: `WorkError.noSuchJob`, also if it has ended.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func cancel(_ id: Int64) throws {
    let changed = try core.db.run(
      """
      update \(core.table.job) set cancel_asked = state = 'running',
        ended_at = case when state <> 'running' then now() end,
        state = case when state = 'running' then state else 'cancelled' end
      where id = \(id) and queue = \(core.queue) and state in \(JobTable.unfinished)
      """
    ).affected
    if changed == 0 { throw WorkError.noSuchJob(id) }
    // The next job of its key may run now.
    core.wake()
  }

  /// Lets no program claim jobs of this queue, until ``resume()``; running jobs continue.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func pause() throws { try setPaused(true) }

  /// Ends a ``pause()``.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func resume() throws {
    try setPaused(false)
    core.wake()
  }

  private func setPaused(_ isPaused: Bool) throws {
    try core.db.run(
      """
      insert into \(identifier: core.schema).queue (name, paused) values (\(core.queue), \(isPaused))
      on conflict (name) do update set paused = excluded.paused
      """
    )
  }

  /// Returns how the queue is.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func health() throws -> WorkHealth {
    let job = core.table.job
    let relation = "\(Tables.quoted(core.schema)).job"
    let found = try core.db.first(
      """
      select
        coalesce((select extract(epoch from now() - at)::float8 from \(job)
          where queue = \(core.queue) and state = 'available' order by priority, at, id limit 1), 0),
        (select count(*) from \(job) where queue = \(core.queue) and state = 'running' and lease_ends < now()),
        coalesce((select n_dead_tup from pg_stat_all_tables where relid = \(relation)::regclass), 0),
        coalesce((select extract(epoch from max(clock_timestamp() - xact_start))::float8 from pg_stat_activity
          where pid <> pg_backend_pid() and backend_type = 'client backend'), 0)
      """,
      as: (Double, Int, Int, Double).self
    )
    let (oldest, expired, dead, transaction) = found ?? (0, 0, 0, 0)
    return WorkHealth(
      oldestAvailable: .seconds(max(oldest, 0)),
      expiredLeases: expired,
      deadRows: dead,
      oldestTransaction: .seconds(max(transaction, 0))
    )
  }

  private func records(_ condition: SQL) throws -> [WorkRecord<Payload>] {
    let rows = try core.db.run(
      """
      select id, state, payload::text, attempt, attempts, at, enqueued_at, lease_ends, ended_at, worker,
        to_jsonb(errors) from \(core.table.job) where \(condition)
      """
    )
    return try rows.map { row in
      let (id, state, payload, attempt, attempts, at, enqueuedAt, leaseEnds, endedAt, worker, errors) = try row.decode(
        (
          Int64, String, String, Int, Int, Date, Date, Date?, Date?, String?, JSON<[String]>
        ).self
      )
      return WorkRecord(
        id: id,
        state: WorkState(rawValue: state) ?? .cancelled,
        payload: decoded(payload, of: id),
        attempt: attempt,
        attempts: attempts,
        at: at,
        enqueuedAt: enqueuedAt,
        leaseEnds: leaseEnds,
        endedAt: endedAt,
        worker: worker,
        errors: errors.value
      )
    }
  }
}
#endif
