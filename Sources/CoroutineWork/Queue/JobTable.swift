#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

// The statements that change jobs. Each is one update of rows that it has locked, and does what `JobRules` says.
//
// What ends attempts otherwise is in JobEnd.swift, and what anybody does for all jobs in Station.swift.
//
// Locks, and why no statement waits for a handler:
// - `finish` locks its row `for key share` while the effects run. Extensions change no key, so they pass; claims and
//   rescues lock `for update skip locked`, so they leave the row alone: a job that is being finished is not taken
//   away.
// - An extension skips rows that are locked: those are being finished, and still belong to this worker.
// - What goes over the reserve waits for no row at all, also of others: an operator's lock of one row, or of a program
//   that was stopped, would hold up the leases and claims of all jobs.
// - Time is the server's: `now()`, the start of the statement's transaction.

/// The jobs of one queue, as rows.
struct JobTable: Sendable {
  /// The queue's name.
  let queue: String
  let schema: String
  /// Where the rows are, if not on a server.
  let memory: MemoryLink?

  init(queue: String, schema: String, memory: MemoryLink? = nil) {
    (self.queue, self.schema, self.memory) = (queue, schema, memory)
  }

  static let unfinished = SQL("('available', 'scheduled', 'running', 'retryable')")

  var job: SQL { "\(identifier: schema).job" }

  /// A claimed job.
  struct Claimed: Sendable {
    let id: Int64, attempt: Int, attempts: Int, fence: Int64
    /// nil if it is so large that the claim has left it behind: `payload(of:)` reads it.
    let payload: String?
    let enqueuedAt: Date
    let checkpoint: [UInt8]?, key: String?
  }

  /// For how many jobs to ask if there is room for `room`: that number, or above 8 the next lower power of two.
  ///
  /// The number is part of the claim's text, so there must be few of them. As a parameter it would have the server plan
  /// each claim anew, for twice the time that the claim takes: a plan for any limit reads the whole table.
  static func batch(_ room: Int) -> Int { room <= 8 ? room : 1 << (Int.bitWidth - 1 - room.leadingZeroBitCount) }

  /// Claims the jobs that are next, at most `limit`, a number of `batch`.
  ///
  /// Asks the server.
  ///
  /// Of a key, only the earliest unfinished job may run, and none beside one that runs: an earlier one may have been
  /// retried. The subqueries see the jobs that were committed when the
  /// statement began; the index `job_key_runs` refuses the rest (23505), after which the claim is repeated.
  func claim(_ limit: Int, lease: Duration, worker: String, _ session: some PostgresSession) throws -> [Claimed] {
    if let memory { return try memory.claim(limit, lease: lease, worker: worker, memoryKey) }
    let rows = try session.run(
      """
      with next as materialized (
        select j.id from \(job) j
        where j.queue = \(queue) and j.state = 'available' and not j.waits and j.limit_key is null
          and not exists (select from \(identifier: schema).queue where name = \(queue) and paused)
          and (j.order_key is null or j.id = (\(next(of: "j.order_key", in: "j.queue", "1")))
            and not exists (
              select from \(job) r
              where r.queue = j.queue and r.order_key = j.order_key and r.order_key is not null and r.state = 'running'))
        order by j.priority, j.at, j.id limit \(SQL(unchecked: String(limit))) for update of j skip locked)
      update \(job) j set \(claimed(lease, worker)) from next where j.id = next.id returning \(Self.ofClaim)
      """
    )
    return try decode(rows)
  }

  /// What a claim changes.
  func claimed(_ lease: Duration, _ worker: String) -> SQL {
    """
    state = 'running', attempt = attempt + 1, fence = nextval(\(fenceName)::regclass),
      lease_ends = now() + \(lease.milliseconds) * interval '1 ms', worker = \(worker), ended_at = null
    """
  }

  /// What a claim returns.
  ///
  /// Not a payload of more than 16 KiB, as the server stores it: jobs whose leases are not extended yet, and all other
  /// claims, would wait for it, on a slow line for longer than a lease.
  static let ofClaim = SQL(
    """
    j.id, j.attempt, j.attempts, j.fence, case when pg_column_size(j.payload) <= 16384 then j.payload::text end,
      j.enqueued_at, j.checkpoint,
      coalesce(j.order_key, j.limit_key), j.priority, j.at
    """
  )

  /// The jobs that were claimed, in their order.
  func decode(_ rows: PostgresRows) throws -> [Claimed] {
    let claimed = try rows.map { row in
      let (id, attempt, attempts, fence, payload, enqueuedAt, checkpoint, key, priority, at) = try row.decode(
        (Int64, Int, Int, Int64, String?, Date, [UInt8]?, String?, Int, Date).self
      )
      let job = Claimed(
        id: id,
        attempt: attempt,
        attempts: attempts,
        fence: fence,
        payload: payload,
        enqueuedAt: enqueuedAt,
        checkpoint: checkpoint,
        key: key
      )
      return (order: (priority, at, id), job: job)
    }
    return claimed.sorted { $0.order < $1.order }.map(\.job)
  }

  /// Reads the payload of a job that this worker holds; nil if it does not.
  ///
  /// Asks the server.
  func payload(of job: Claimed, _ session: some PostgresSession) throws -> String? {
    try session.first("select payload::text from \(self.job) where \(isHeld(job.id, job.fence))", as: String.self)
  }

  /// Extends leases, and returns the state of those jobs that are still this worker's.
  ///
  /// Asks the server.
  func extend(_ jobs: [(id: Int64, fence: Int64)], lease: Duration, _ session: some PostgresSession) throws -> [(
    Int64, String
  )] {
    if let memory { return try memory.extend(jobs, lease: lease) }
    return try session.all(
      """
      with mine as (select * from unnest(\(jobs.map(\.id)), \(jobs.map(\.fence))) as m (id, fence)),
      held as (
        select j.id from \(job) j join mine m on j.id = m.id and j.fence = m.fence
        where j.state = 'running' for no key update of j skip locked),
      extended as (
        update \(job) j set state = case when cancel_asked then 'cancelled' else 'running' end,
          ended_at = case when cancel_asked then now() end,
          lease_ends = case when not cancel_asked then now() + \(lease.milliseconds) * interval '1 ms' end
        from held where j.id = held.id returning j.id, j.state)
      select j.id, coalesce(e.state, j.state)
      from mine m join \(job) j on j.id = m.id and j.fence = m.fence and j.state = 'running'
      left join extended e on e.id = m.id
      """,
      as: (Int64, String).self
    )
  }

  /// Extends the lease of one job; returns whether it is this worker's.
  ///
  /// Asks the server, again and again while the row is locked, as by a rescue that has begun.
  func renew(_ id: Int64, fence: Int64, lease: Duration, _ session: some PostgresSession) throws -> Bool {
    if let memory { return try memory.renew(id, fence: fence, lease: lease) }
    while true {
      do {
        return try session.run(
          """
          update \(job) set lease_ends = now() + \(lease.milliseconds) * interval '1 ms' where id = (
            select id from \(job) where \(isHeld(id, fence)) and not cancel_asked for no key update nowait)
          """
        ).affected == 1
      } catch let error as PostgresError where error.sqlState == .lockNotAvailable { try co_delay(.milliseconds(20)) }
    }
  }

  /// The numbers of the first unfinished jobs of a key.
  ///
  /// Compared as a row, and in the order of one, because only the index `job_key` has that order. Of the key alone the
  /// server would read jobs that have ended as well, in the order of their numbers.
  func next(of key: SQL, in queue: SQL, _ limit: SQL) -> SQL {
    """
    select f.id from (
      select i.queue, i.order_key, i.id from \(job) i
      where i.order_key is not null and i.state in \(Self.unfinished)
        and (i.queue, i.order_key, i.id) > (\(queue), \(key), 0)
      order by i.queue, i.order_key, i.id limit \(limit)) f
    where f.queue = \(queue) and f.order_key = \(key)
    """
  }

  var fenceName: String { "\(SQL.quoted(schema)).fence" }

  /// The texts of the last ten failed attempts, with one more.
  func adding(_ error: String) -> SQL { "(array_append(errors, \(error)))[greatest(1, cardinality(errors) - 8):]" }
}

// MARK: - The end of an attempt

// How an attempt ends. Each statement checks the fence and the state; the result says whether the job was still held.

extension JobTable {
  /// Locks the row of a job that is to be finished; false if it is not this worker's.
  ///
  /// Asks the server.
  func lock(_ id: Int64, fence: Int64, _ t: PostgresTransaction) throws -> Bool {
    if let memory { return try memory.lock(id, fence: fence, t) }
    return try t.first(
      "select true from \(job) where \(isHeld(id, fence)) for key share",
      as: Bool.self
    ) == true
  }

  /// Completes the job, which may have a key.
  ///
  /// Asks the server.
  func complete(_ id: Int64, fence: Int64, hasKey: Bool, isDeleted: Bool, _ t: PostgresTransaction) throws -> Bool {
    if let memory { return try memory.complete(id, fence: fence, isDeleted: isDeleted, t) }
    let end: SQL =
      isDeleted
      ? "delete from \(job) where \(isHeld(id, fence))"
      : "update \(job) set state = 'completed', ended_at = now(), lease_ends = null where \(isHeld(id, fence))"
    guard hasKey else { return try t.run(end).affected == 1 }
    return try t.first(
      """
      with done as (\(end) returning id, queue, order_key), freed as (\(freeing("done")))
      select count(*) from done
      """,
      as: Int.self
    ) == 1
  }

  /// Gives back what a claim may have taken whose answer was lost: running jobs of `worker` but those of `held`.
  func releaseUnknown(worker: String, but held: [Int64], _ session: some PostgresSession) throws {
    if let memory { return try memory.releaseUnknown(worker: worker, but: held, memoryKey) }
    try session.run(
      """
      update \(job) set \(Self.released) where id in (
        select id from \(job)
        where queue = \(queue) and state = 'running' and worker = \(worker) and not id = any(\(held))
        for update skip locked)
      """
    )
  }

  /// Stores what the next attempt finds.
  ///
  /// Asks the server.
  func save(_ id: Int64, fence: Int64, checkpoint: [UInt8], _ session: some PostgresSession) throws -> Bool {
    if let memory { return try memory.save(id, fence: fence, checkpoint: checkpoint) }
    return try session.run("update \(job) set checkpoint = \(Bytes(checkpoint)) where \(isHeld(id, fence))").affected
      == 1
  }

  /// What has become of a finish whose COMMIT was lost.
  enum Outcome { case committed, notCommitted, lost, gone }

  /// Waits until the row is not locked, so until the lost transaction has ended.
  ///
  /// Asks the server.
  func outcome(_ id: Int64, fence: Int64, _ t: PostgresTransaction) throws -> Outcome {
    if let memory { return try memory.outcome(id, fence: fence) }
    let row = try t.first("select state, fence from \(job) where id = \(id) for update", as: (String, Int64?).self)
    guard let (state, found) = row else { return .gone }
    guard found == fence else { return .lost }
    return state == "completed" ? .committed : state == "running" ? .notCommitted : .lost
  }

  private static let released: SQL = """
    attempt = attempt - 1, lease_ends = null, state = case when cancel_asked then 'cancelled' else 'available' end,
    ended_at = case when cancel_asked then now() end
    """

  private func isHeld(_ id: Int64, _ fence: Int64) -> SQL {
    "id = \(id) and fence = \(fence) and state = 'running'"
  }
}

/// Bytes as one value: an array of bytes is a list of values in an interpolation.
private struct Bytes: PostgresEncodable {
  let bytes: [UInt8]
  init(_ bytes: [UInt8]) { self.bytes = bytes }
  static var postgresType: UInt32 { 17 }
  func encode(into target: inout [UInt8]) { target += bytes }
}

/// An error as a text that the server takes: without zero bytes, and of 4,000 characters at most.
func errorText(_ error: any Error) -> String { storable("\(error)") }

func storable(_ text: String) -> String {
  String(text.unicodeScalars.lazy.filter { $0 != "\0" }.prefix(4_000).map(Character.init))
}
#endif
