#if Postgres
public import CoroutinePostgres
public import FoundationEssentials

/// A job that is to be added, with its queue: ``Work/enqueue(_:on:)`` adds it.
public struct WorkDraft: Sendable {
  let core: QueueCore
  let payload: String
  var unique: String?
  var key: String?
  var priority = 0
  var at: Date?

  /// When it is due, in seconds since 1970.
  ///
  /// Of a date that is infinite, or no number, one that the server refuses: no look at the queue could compute with it.
  var seconds: Double? {
    at.map { $0.timeIntervalSince1970.isNaN ? 1e15 : min(max($0.timeIntervalSince1970, -1e15), 1e15) }
  }
}

extension WorkQueue {
  /// Makes a job for ``Work/enqueue(_:on:)``, which adds jobs of several queues at once.
  ///
  /// Never suspends; any thread. The parameters are those of ``enqueue(_:in:unique:key:priority:at:)``.
  /// - Throws: `.decoding` for a payload that cannot be encoded.
  public func draft(
    _ payload: Payload,
    unique: String? = nil,
    key: String? = nil,
    priority: Int = 0,
    at: Date? = nil
  ) throws -> WorkDraft {
    WorkDraft(core: core, payload: try jsonText(payload), unique: unique, key: key, priority: priority, at: at)
  }
}

extension Work {
  /// Adds jobs of any queues, keys and dates by one statement, in a transaction or without one.
  ///
  /// Asks the server; once more if jobs of unique keys were there.
  ///
  /// ```swift
  /// try Work.enqueue([mails.draft(welcome, unique: "7"), bills.draft(bill, key: customer)], on: db)
  /// ```
  ///
  /// Keys are locked in their order, so several of these calls do not wait for each other in a circle.
  /// - Parameters:
  ///   - drafts: The jobs. Ids grow in this order.
  ///   - session: A transaction: the jobs exist if and when it commits. A pool: they exist when this returns; after
  ///     `.lost` they may exist, so add them again with the same `unique`.
  /// - Returns: The id of each job, or that of the job that was there, in the order of `drafts`.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func enqueue(
    _ drafts: [WorkDraft],
    on session: some PostgresSession
  ) throws -> [(id: Int64, isNew: Bool)] {
    if let memory = drafts.first?.core.table.memory {
      let results = try memory.add(drafts, session)
      let now = memory.memory.now
      wake(drafts, ready: Set(drafts.filter { $0.at.map { $0 <= now } ?? true }.map(\.core.queue)), session)
      return results
    }
    let schemas = Set(drafts.map(\.core.schema))
    if schemas.count > 1, let db = session as? PostgresPool {
      return try db.transaction { t in try enqueue(drafts, on: t) }
    }
    var results = [(id: Int64, isNew: Bool)?](repeating: nil, count: drafts.count)
    for schema in schemas.sorted() {
      var open = drafts.indices.filter { drafts[$0].core.schema == schema }
      // A job of a unique key may have ended between the two statements.
      while !open.isEmpty {
        try add(drafts, open, schema, session, &results)
        open.removeAll { results[$0] != nil }
      }
    }
    return results.compactMap { $0 }
  }

  private struct UniqueKey: Hashable {
    var queue: String
    var key: String
  }

  /// Adds the drafts at `open`, and finds those that are there.
  private static func add(
    _ drafts: [WorkDraft],
    _ open: [Int],
    _ schema: String,
    _ session: some PostgresSession,
    _ results: inout [(id: Int64, isNew: Bool)?]
  ) throws {
    let table = JobTable(queue: "", schema: schema)
    let job = table.job
    let all = open.map { drafts[$0] }
    // A text in front tells an empty key from none.
    func marked(_ text: String?) -> String { text.map { "=" + $0 } ?? "" }
    let added = try session.all(
      """
      with d as (
        select n, queue, payload::jsonb as payload, priority, attempts,
          case when u <> '' then substr(u, 2) end as unique_key, case when k <> '' then substr(k, 2) end as order_key,
          case when l <> '' then substr(l, 2) end as limit_key,
          case when at = 'NaN' then now() else to_timestamp(at) end as at
        from unnest(\(all.map(\.core.queue)), \(all.map(\.payload)), \(all.map { marked($0.unique) }),
          \(all.map { marked($0.core.options.keyLimit == nil ? $0.key : nil) }),
          \(all.map { marked($0.core.options.keyLimit == nil ? nil : $0.key) }), \(all.map(\.priority)), \(all.map(\.core.options.usedAttempts)),
          \(all.map { $0.seconds ?? .nan })) with ordinality
          as d (queue, payload, u, k, l, priority, attempts, at, n)),
      locked as (
        insert into \(identifier: schema).key as k (queue, key)
        select distinct queue, order_key from d where order_key is not null order by queue, order_key
        on conflict (queue, key) do update set used_at = now() returning 1),
      added as (
        insert into \(job) (queue, state, priority, at, attempts, payload, unique_key, limit_key, order_key, waits)
        select d.queue, case when d.at <= now() then 'available' else 'scheduled' end, d.priority::int, d.at,
          d.attempts::int, d.payload, d.unique_key, d.limit_key, d.order_key,
          d.order_key is not null and \(JobTable.ahead) < row_number() over (partition by d.queue, d.order_key order by n)
            + (select count(*) from (\(table.next(of: "d.order_key", in: "d.queue", JobTable.ahead))) e)
        from d cross join (select count(*) from locked) l order by n
        on conflict (queue, unique_key) where state in \(JobTable.unfinished) do nothing
        returning id, queue, unique_key, state)
      select id, queue, case when unique_key is null then '' else '=' || unique_key end, state from added order by id desc
      """,
      as: (Int64, String, String, String).self
    )
    // Without a unique key all are added, in their order; the last one comes first here, so that each list ends with
    // the next.
    var plain: [String: [Int64]] = [:]
    var unique: [UniqueKey: Int64] = [:]
    for (id, queue, key, _) in added {
      if key.isEmpty { plain[queue, default: []].append(id) } else { unique[UniqueKey(queue: queue, key: key)] = id }
    }
    for index in open {
      let queue = drafts[index].core.queue
      if let key = drafts[index].unique {
        let found = unique.removeValue(forKey: UniqueKey(queue: queue, key: marked(key)))
        results[index] = found.map { ($0, true) }
      } else {
        results[index] = plain[queue]?.popLast().map { ($0, true) }
      }
    }
    let ready = Set(added.filter { $0.3 == "available" }.map(\.1))
    wake(all, ready: ready, session)
    let missing = open.filter { results[$0] == nil }
    guard !missing.isEmpty else { return }
    let there = try session.all(
      """
      select queue, unique_key, id from \(job)
      where (queue, unique_key) in (
        select * from unnest(\(missing.map { drafts[$0].core.queue }), \(missing.map { drafts[$0].unique ?? "" })))
        and state in \(JobTable.unfinished)
      """,
      as: (String, String, Int64).self
    )
    let known = Dictionary(there.map { (UniqueKey(queue: $0.0, key: $0.1), $0.2) }) { first, _ in first }
    for index in missing {
      let key = UniqueKey(queue: drafts[index].core.queue, key: drafts[index].unique ?? "")
      results[index] = known[key].map { ($0, false) }
    }
  }

  /// Wakes workers: now, or after the commit.
  private static func wake(_ drafts: [WorkDraft], ready: Set<String>, _ session: some PostgresSession) {
    let hook: @Sendable () -> Void = {
      var woken: Set<String> = []
      for draft in drafts {
        let now = draft.core.table.memory?.memory.now ?? Date()
        if let wait = draft.at?.timeIntervalSince(now), wait > 0, wait < 1e9 {
          draft.core.station.expect(after: .seconds(wait))
        }
        if ready.contains(draft.core.queue), woken.insert(draft.core.queue).inserted { draft.core.wake() }
      }
    }
    if let t = session as? PostgresTransaction { t.afterCommit(hook) } else { hook() }
  }
}
#endif
