#if Postgres
import Coroutine
public import CoroutinePostgres
public import FoundationEssentials

/// A queue of jobs with one type of payload, stored as jsonb.
///
/// Any number of programs may add and work.
///
/// ```swift
/// let mails = WorkQueue<Welcome>("mails", on: db)
/// try db.transaction { t in try mails.enqueue(Welcome(order: "7"), in: t) }
/// try mails.work { job in
///   try send(job.payload, key: job.id)
///   try job.finish { t in try t.run("update orders set mailed = now() where id = \(job.payload.order)") }
/// }
/// ```
public final class WorkQueue<Payload: Codable & Sendable>: Sendable {
  let core: QueueCore
  /// The name in the tables.
  package var name: String { core.queue }

  /// Creates a queue.
  ///
  /// Never connects, never suspends; any thread.
  ///
  /// Traps unless `name` has 1 to 57 bytes, none of them zero.
  public init(_ name: String, on db: PostgresPool, schema: String = "work", options: WorkOptions = .init()) {
    if !(1...57).contains(name.utf8.count) {
      misuse("the name of a queue has 1 to 57 bytes, because of its channel's; this one has \(name.utf8.count)")
    }
    if name.utf8.contains(0) { misuse("the name of a queue has no zero byte, because no text of the server has one") }
    core = QueueCore(name, on: db, schema: schema, options: options)
  }
}

/// What queues of all payloads have in common.
final class QueueCore: Sendable {
  let db: PostgresPool
  let schema: String
  let options: WorkOptions
  let table: JobTable
  let wakeUps: WakeUps
  let station: Station

  var queue: String { table.queue }

  init(_ queue: String, on db: PostgresPool, schema: String, options: WorkOptions) {
    self.db = db
    self.schema = schema
    self.options = options
    table = JobTable(queue: queue, schema: schema, memory: db.link)
    wakeUps = WakeUps.shared(db, schema: schema, queue: queue)
    station = Station.shared(db, schema: schema)
  }

  /// Wakes workers, after a commit.
  func wake() { wakeUps.notify(db, isSent: options.usesNotifications) }
}

/// A value as JSON text.
///
/// Throws `.decoding` with the reason if it cannot be encoded, and for a text with a zero byte, which `jsonb` refuses.
func jsonText(_ value: some Encodable) throws -> String {
  var bytes: [UInt8] = []
  try JSONFormat.encode(value, into: &bytes)
  return String(decoding: bytes, as: UTF8.self)
}

/// The payload of a job, or the reason why it cannot be decoded; without a value of it.
func decoded<Payload: Decodable>(_ text: String, of job: Int64) -> Result<Payload, WorkError> {
  do { return .success(try JSONFormat.decode(text)) } catch {
    return .failure(.payload(job: job, storable("the JSON is no \(Payload.self)\(JSONFormat.path(to: error))")))
  }
}

// MARK: - Adding jobs

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
  ///   - key: With ``WorkOptions/keyLimit``, what that limits. Else jobs of one key run one at a time, in the order of
  ///     their ids. A failed one holds up those behind it, and so does one with a later date.
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
    if table.memory != nil {
      let draft = WorkDraft(core: self, payload: payload, unique: unique, key: key, priority: priority, at: at)
      return try Work.enqueue([draft], on: t)[0]
    }
    while true {
      let added = try t.first(
        insert(payload, unique: unique, key: key, priority: priority, at: at),
        as: (Int64, String).self
      )
      if let (id, state) = added {
        t.afterCommit { [self] in
          // By this program's clock: if that is wrong, the job is found by the next look.
          if state == "available" { wake() } else if let at { station.expect(after: .seconds(at.timeIntervalSinceNow)) }
        }
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
    if table.memory != nil {
      try Work.enqueue(payloads.map { WorkDraft(core: self, payload: $0, priority: priority) }, on: t)
      return
    }
    try t.run(
      """
      insert into \(table.job) (queue, state, priority, attempts, payload)
      select \(queue), 'available', \(priority)::int, \(options.usedAttempts)::int, p::jsonb
      from unnest(\(payloads)) with ordinality as u (p, n) order by n
      """
    )
    t.afterCommit { [self] in wake() }
  }

  /// With a key, its row is locked before the id is drawn: the id is computed for the row that the lock has given.
  private func insert(_ payload: String, unique: String?, key: String?, priority: Int, at: Date?) -> SQL {
    let (limitKey, key) = options.keyLimit == nil ? (nil, key) : (key, nil)
    let columns: SQL = "(queue, state, priority, at, attempts, payload, unique_key, limit_key, order_key, waits)"
    let waits: SQL =
      key.map { key in
        """
        (select count(*) from (\(table.next(of: "\(key)::text", in: "\(queue)::text", JobTable.ahead))) n)
          = \(JobTable.ahead)
        """
      } ?? "false"
    let values: SQL = """
      \(queue), case when coalesce(\(at), now()) <= now() then 'available' else 'scheduled' end, \(priority)::int,
      coalesce(\(at), now()), \(options.usedAttempts)::int, \(payload)::text::jsonb, \(unique), \(limitKey), \(key),
      \(waits)
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

// MARK: - Working

extension WorkQueue {
  /// Claims jobs and runs `handle` for each in its own coroutine, `concurrency` at a time, until cancelled.
  ///
  /// Suspends. It claims as many jobs as it has room for, in one statement, and none ahead, but for those that take the
  /// places of handlers of which only the COMMIT is left: they begin when these have ended, and are given back if that
  /// takes a second. Once asked to stop (`co_isStopping`) it claims no more, lets handlers finish, and returns; once
  /// cancelled, it cancels them. Jobs of cancelled handlers become available again at once, and the attempt does not
  /// count.
  ///
  /// A handler that returns without `finish` has finished with no effects. One that throws has failed its attempt. If
  /// its lease is lost, its coroutine is cancelled; what it then tries to commit by `finish` is refused.
  ///
  /// It survives losses: it tries again from 50 ms up to 5 s later, and tells `onEvent`.
  ///
  /// Leases, claims and ends of jobs go over up to two connections beside those of the pool, so handlers may use all of
  /// these. A payload that the server stores in more than 16 KiB is not part of the claim: its attempt reads it before
  /// `handle` begins, over one of the pool's connections and within `timeout`. All workers of a program share one look
  /// at the tables each `poll`. An attempt has a stack of 4 MiB, as a request of an HTTP server has: a payload may be
  /// nested as deeply as the decoder allows.
  /// - Parameters:
  ///   - concurrency: How many handlers run at a time; traps below 1.
  ///   - onEvent: Told what happens.
  ///   - onDiscard: Runs in the transaction that gives a job up, after its last failure or by ``WorkJob/discard(_:)``:
  ///     what it writes is there once, if and when the job is discarded. If it throws, the job is not discarded: it
  ///     runs again after `backoff`, and the attempt does not count. Not for a job whose payload cannot be read or
  ///     decoded, nor for one whose last worker has died.
  ///   - handle: Runs for each job.
  /// - Throws: The cancellation error; `WorkError.olderTables` and `newerTables`; the server's error if a right is
  ///   missing; `.ended` if the pool is closed.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func work(
    concurrency: Int = 16,
    onEvent: @escaping @Sendable (WorkEvent) -> Void = { _ in },
    onDiscard: (@Sendable (WorkJob<Payload>, any Error, PostgresTransaction) throws -> Void)? = nil,
    _ handle: @escaping @Sendable (WorkJob<Payload>) throws -> Void
  ) throws {
    try Worker(core, concurrency: concurrency, onEvent: onEvent, onDiscard: onDiscard, handle).run()
  }
}

// MARK: - Inspection and repair

// Inspection and repair.

extension WorkQueue {
  /// Returns how many jobs are in each state.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func counts() throws -> [WorkState: Int] {
    if let memory = core.table.memory { return try memory.counts(core.table.memoryKey) }
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
    if let memory = core.table.memory {
      let all: [WorkRecord<Payload>] = try memory.records(core.table.memoryKey) {
        $0.rules.state == state && $0.id > id
      }
      return Array(all.prefix(max(limit, 0)))
    }
    let condition: SQL = "queue = \(core.queue) and state = \(state.rawValue) and id > \(id)"
    return try records("\(condition) order by id limit \(max(limit, 0))")
  }

  /// Returns a job, or nil if there is none of this number in the queue.
  ///
  /// Asks the server.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func job(_ id: Int64) throws -> WorkRecord<Payload>? {
    if let memory = core.table.memory {
      let found: [WorkRecord<Payload>] = try memory.records(core.table.memoryKey) { $0.id == id }
      return found.first
    }
    return try records("queue = \(core.queue) and id = \(id)").first
  }

  /// Makes a discarded, cancelled or completed job available, with one attempt more.
  ///
  /// Asks the server.
  ///
  /// - Throws: `WorkError.noSuchJob`, also while it runs or waits. `.server` with 23505 if an unfinished job has its
  ///   unique key.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func retry(_ id: Int64) throws {
    if let memory = core.table.memory {
      try memory.retry(id, core.table.memoryKey)
      return core.wake()
    }
    let changed = try core.db.run(
      """
      update \(core.table.job) set state = 'available', attempts = attempt + 1, at = now(), ended_at = null,
        cancel_asked = false, waits = false
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
    if let memory = core.table.memory {
      try memory.cancel(id, core.table.memoryKey)
      return core.wake()
    }
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
    if let memory = core.table.memory { return try memory.setPaused(isPaused, core.table.memoryKey) }
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
    if let memory = core.table.memory { return try memory.health(core.table.memoryKey) }
    let job = core.table.job
    let relation = "\(SQL.quoted(core.schema)).job"
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

// MARK: - Options

/// How a queue treats its jobs.
public struct WorkOptions: Sendable {
  /// How long a worker that says nothing keeps a job.
  ///
  /// Extended every third of it while the handler runs; at least 1 s.
  public var lease: Duration = .seconds(30)
  /// How often a job is tried, at least once; then it is discarded.
  ///
  /// A crash of the worker counts, so a job that kills it ends too.
  public var attempts = 20
  /// The limit of one attempt: the handler is cancelled, and the attempt has failed.
  public var timeout: Duration? = .seconds(900)
  /// How long a job waits after its failed attempt of this number: attempt⁴ s, and up to 10 % more by chance.
  public var backoff: @Sendable (_ attempt: Int) -> Duration = { attempt in
    let seconds = Double(min(max(attempt, 1), 100))
    return .seconds(seconds * seconds * seconds * seconds * chance(1...1.1))
  }
  /// How many jobs of one key may run in all programs; nil, and they run one at a time and in their order.
  ///
  /// Programs that add jobs need it as well as those that work them, because it says what their `key` is for.
  public var keyLimit: WorkKeyLimit?
  /// How often an idle worker looks for jobs; notifications only shorten it.
  public var poll: Duration = .seconds(1)
  /// Whether idle workers listen.
  ///
  /// False behind a pooler in transaction mode; then polling is all.
  public var usesNotifications = true
  /// How long completed jobs are kept; then they are deleted, in batches.
  ///
  /// Zero deletes them in `finish`.
  public var keepCompleted: Duration = .seconds(86_400)
  /// How long discarded and cancelled jobs are kept.
  public var keepDiscarded: Duration = .seconds(7 * 86_400)
  /// Creates the defaults.
  public init() {}

  /// The number of attempts that is used; the column has 32 bits.
  var usedAttempts: Int { min(max(attempts, 1), Int(Int32.max)) }

  /// The lease that is used.
  var usedLease: Duration { max(lease, .seconds(1)) }
}

extension Duration {
  /// Whole milliseconds, rounded down; at most those of 1,000 years, which the server can add to a date, or take from
  /// it.
  var milliseconds: Int {
    let most = Duration.seconds(31_557_600_000)
    // `components` traps beyond 2⁶³ seconds.
    let (seconds, attoseconds) = min(max(self, .zero - most), most).components
    return Int(seconds) * 1_000 + Int(attoseconds / 1_000_000_000_000_000)
  }
}
#endif
