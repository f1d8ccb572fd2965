#if Postgres
import CoroutinePostgres

// Limits of a key, in all programs together.
//
// A claim locks the rows of the keys that it takes jobs of, in one statement, and counts and claims in the next one of
// the same transaction. That one sees what was committed before it began, and so all claims of those keys: nobody else
// claims jobs of them until this transaction ends. It passes over keys that others have locked. An end of a job only
// makes room, so it needs no lock.

/// How many jobs of one key may run, in all programs together.
///
/// Jobs of a key then run in any order, and one that has failed holds up no other.
public struct WorkKeyLimit: Sendable, Hashable {
  /// How many run at a time; at least 1.
  public var concurrency: Int
  /// How many may begin at once, and how many in each ``period`` on the average, at least 1; nil for any number.
  ///
  /// So after a pause, up to twice as many may begin within one period.
  public var count: Int?
  /// The time for ``count``; at least a millisecond.
  ///
  /// What was not used of one period is not added to the next.
  public var period: Duration

  /// Creates a limit: `WorkKeyLimit(concurrency: 4, count: 10, per: .seconds(1))`.
  public init(concurrency: Int, count: Int? = nil, per period: Duration = .seconds(1)) {
    (self.concurrency, self.count, self.period) = (concurrency, count, period)
  }

  /// How long it takes until one more may begin; nil without a rate.
  var interval: Duration? { count.map { max(period, .milliseconds(1)) / max($0, 1) } }
}

extension JobTable {
  /// Claims jobs of keys with a limit, at most `most`, of keys after `last` first.
  ///
  /// Asks the server. Looks at 1,000 keys at most. Returns the last key of which it has claimed a job, or else the last
  /// one of the 1,000; nil if it has seen all.
  func claim(
    _ most: Int,
    limit: WorkKeyLimit,
    after last: String?,
    lease: Duration,
    worker: String,
    _ t: PostgresTransaction
  ) throws -> (jobs: [Claimed], last: String?) {
    if let memory { return try memory.claim(most, limit: limit, after: last, lease: lease, worker: worker, memoryKey) }
    let most = min(most, 200)
    let available: SQL = """
      select j.limit_key from \(job) j where j.queue = \(queue) and j.state = 'available' and j.limit_key is not null
        and not exists (select from \(identifier: schema).queue where name = \(queue) and paused)
      """
    let running: SQL = """
      select count(*) from \(job) r where r.queue = \(queue) and r.limit_key = k.limit_key and r.limit_key is not null
        and r.state = 'running'
      """
    let (count, seconds) = (max(limit.count ?? 1, 1), max(limit.period, .milliseconds(1)) / .seconds(1))
    // Before the limit of keys: those that have used up their rate would keep out all others.
    let mayBegin: SQL =
      limit.count == nil
      ? "true"
      : """
      not exists (select from \(identifier: schema).key s where s.queue = \(queue) and s.key = k.limit_key
        and s.tokens + extract(epoch from now() - s.tokens_at)::float8 * \(Double(count) / seconds) < 1)
      """
    // A key may be empty.
    let isBehind: SQL = last.map { "j.limit_key > \($0)" } ?? "true"
    let found = try t.all(
      """
      with recursive k as (
        (select a.limit_key, 1 as n from (
          \(available) and \(isBehind) order by j.limit_key limit 1) a)
        union all
        select a.limit_key, k.n + 1 from k cross join lateral (
          \(available) and j.limit_key > k.limit_key order by j.limit_key limit 1) a where k.n < 1000),
      wanted as materialized (
        select limit_key from k where (\(running)) < \(max(limit.concurrency, 1)) and \(mayBegin) limit \(most)),
      made as (
        insert into \(identifier: schema).key (queue, key) select \(queue), limit_key from wanted
        on conflict (queue, key) do nothing returning key),
      locked as (
        select key from \(identifier: schema).key where queue = \(queue) and key in (select limit_key from wanted)
        for update skip locked)
      select key, false from locked union select key, false from made
      union all select limit_key, true from k where n = 1000
      """,
      as: (String, Bool).self
    )
    let keys = found.filter { !$0.1 }.map(\.0)
    let seen = found.first(where: \.1)?.0
    guard !keys.isEmpty else { return ([], seen) }
    // A bucket is forgotten some time after `used_at`, so that is not before it is full again.
    let full = max(limit.period, .milliseconds(1)).milliseconds
    let rows = try t.run(
      """
      with k as (
        select key as limit_key, least(\(Double(count)), coalesce(
            tokens + extract(epoch from now() - tokens_at)::float8 * \(Double(count) / seconds), \(Double(count))))
            as tokens
        from \(identifier: schema).key where queue = \(queue) and key = any(\(keys))),
      room as materialized (
        select k.*, least(\(max(limit.concurrency, 1)) - (\(running)),
          case when \(limit.count != nil) then floor(least(tokens, 1000000))::int8 else 1000000 end) as free from k order by limit_key),
      next as materialized (
        select n.id, room.limit_key from room cross join lateral (
          select j.id from \(job) j
          where j.queue = \(queue) and j.limit_key = room.limit_key and j.limit_key is not null and j.state = 'available'
          order by j.priority, j.at, j.id limit greatest(room.free, 0) for update skip locked) n
        limit \(most)),
      spent as (
        update \(identifier: schema).key s set tokens = room.tokens - n.count, tokens_at = now(),
          used_at = now() + \(full) * interval '1 ms'
        from room join (select limit_key, count(*) as count from next group by limit_key) n using (limit_key)
        where s.queue = \(queue) and s.key = room.limit_key)
      update \(job) j set \(claimed(lease, worker)) from next where j.id = next.id returning \(Self.ofClaim)
      """
    )
    let jobs = try decode(rows)
    return (jobs, jobs.compactMap(\.key).max() ?? seen)
  }
}
#endif
