#if Postgres
import Coroutine
import CoroutinePostgres

// What the workers of one database and schema share in this program: one coroutine that looks for all of their queues,
// and the ends of their jobs. An idle program costs one transaction each `poll`, whatever the number of its queues.
//
// Invariants, under the lock
//  1. If there are members, `looker` is a coroutine that looks. The first member launches it, the last one cancels it.
//  2. `soon` is not later than any time that was told since the last look, so the next look is not later either.
//
// A member is told of what a look has found by its bell, of outages by its link, and of an error that ends workers by
// `end`, once.

/// One worker, as far as the station knows it.
final class StationMember: Sendable {
  let core: QueueCore
  let bell: WakeUps.Bell
  let link: Link
  /// Fails when the worker cannot go on; never fulfilled.
  let end = Promise<Void>()

  init(_ core: QueueCore, bell: WakeUps.Bell, link: Link) {
    self.core = core
    self.bell = bell
    self.link = link
  }
}

final class Station: Sendable {
  private struct State {
    /// In the order of coming.
    var members: [StationMember] = []
    var looker: Job<Void>?
    var soon: ContinuousClock.Instant?
  }
  private let state = ThreadMutex(State())
  private let db: PostgresPool
  private let schema: String
  private let bell = Channel<Void>(.dropOldest(1))
  let ends: JobEnds

  private init(_ db: PostgresPool, schema: String) {
    self.db = db
    self.schema = schema
    ends = JobEnds(db, schema: schema)
  }

  /// The one of this database and schema.
  static func shared(_ db: PostgresPool, schema: String) -> Station {
    known.value(for: SharedKey(db: ObjectIdentifier(db), schema: schema, queue: "")) { Station(db, schema: schema) }
  }
  private static let known = SharedObjects<Station>()

  /// Never suspends.
  func join(_ member: StationMember) {
    state.withLock { state in
      state.members.append(member)
      if state.looker == nil { launchLooker(&state) } else { _ = bell.trySend(()) }
    }
  }

  /// Never suspends.
  func leave(_ member: StationMember) {
    state.withLock { state in
      state.members.removeAll { $0 === member }
      guard state.members.isEmpty else { return }
      state.looker?.cancel()
      state.looker = nil
    }
  }

  /// A job is due after this time: the next look is not later.
  ///
  /// Never suspends; any thread.
  func expect(after wait: Duration) {
    // A little later than due: the two clocks do not tick at once.
    let due = ContinuousClock.Instant.steady + min(wait, .seconds(86_400)) + .milliseconds(2)
    let isSooner = state.withLock { state in
      guard state.looker != nil, state.soon.map({ due < $0 }) ?? true else { return false }
      state.soon = due
      return true
    }
    if isSooner { _ = bell.trySend(()) }
  }

  private func launchLooker(_ state: inout State) {
    state.looker = co_launch(name: "queues of \(schema)") { [self] in
      do { try lookUntilCancelled() } catch {
        if !co_isCancelled { end(error) }
      }
    }
  }

  /// Ends all workers with an error that no repetition mends.
  private func end(_ error: any Error) {
    let members = state.withLock { state in
      defer { (state.members, state.looker) = ([], nil) }
      return state.members
    }
    for member in members { member.end.reject(error) }
  }

  // MARK: Looking

  /// Looks, and prunes beside that: a slow deletion must not make a job late.
  ///
  /// Suspends. Throws what ends workers, and the cancellation error.
  private func lookUntilCancelled() throws {
    let upkeep = Upkeep(schema: schema, memory: db.link)
    try co_scope { scope in
      scope.launch(name: "pruning of \(schema)") { [self] in
        let size = BatchSize(1_000)
        while true { try co_delay(prune(upkeep, size)) }
      }
      try look(upkeep)
    }
  }

  /// Looks each `poll`, and when a job is due or a lease ends.
  private func look(_ upkeep: Upkeep) throws {
    let looking = BatchSize(1_000)
    var pause = Duration.milliseconds(50)
    var lastKey: (queue: String, key: String)?
    while true {
      let members = state.withLock { state in
        state.soon = nil
        return state.members
      }
      var wait = members.map { min($0.core.options.poll, $0.core.options.usedLease) }.min() ?? .seconds(1)
      do {
        let queues = Set(members.map(\.core.queue))
        var found = try looking.running { most in
          try co_timeout(.seconds(8)) { try upkeep.look(queues, most: most, db.reserve) }
        }
        if found.values.contains(where: \.hasMarks) {
          let (freed, last) = try co_timeout(.seconds(8)) { try upkeep.free(queues, after: lastKey, db.reserve) }
          lastKey = last
          for queue in freed { found[queue]?.isReady = true }
        }
        pause = .milliseconds(50)
        for member in members {
          member.link.tell(nil)
          guard let queue = found[member.core.queue] else { continue }
          if queue.isReady { _ = member.bell.trySend(()) }
          if let next = queue.next { wait = min(wait, next + .milliseconds(2)) }
        }
      } catch {
        try failed(error, members)
        wait = min(pause, wait)
        pause = min(pause * 2, .seconds(5))
      }
      try waitForNext(wait)
    }
  }

  private func waitForNext(_ longest: Duration) throws {
    // Not at once again, however often it is asked for.
    let start = ContinuousClock.Instant.steady
    var wait = max(longest, .milliseconds(5))
    while wait > .zero {
      let isOver = try co_select {
        bell.onReceive { _ in false }
        db.closing.onAwait { _ in true }
        SelectCase.onTimeout(wait) { true }
      }
      if isOver { return try db.checkOpen() }
      let soon = state.withLock { $0.soon } ?? .steady
      wait = min(max(soon - .steady, .milliseconds(5) - (.steady - start)), longest - (.steady - start))
    }
  }

  /// Throws an error that no repetition mends; tells members of the others.
  private func failed(_ error: any Error, _ members: [StationMember]) throws {
    try co_checkCancelled()
    try Link.checkLasting(error, db, schema: schema)
    for member in members { member.link.tell(error) }
  }

  /// Deletes what was kept for long enough; returns after what time to do it again.
  ///
  /// Nothing else waits for it: what it cannot do now, it does next time.
  private func prune(_ upkeep: Upkeep, _ size: BatchSize) throws -> Duration {
    let members = state.withLock { $0.members }
    do {
      var (more, keys) = (true, true)
      let end = ContinuousClock.Instant.steady + .seconds(1)
      while more || keys, ContinuousClock.Instant.steady < end {
        let count = size.count
        let limits = members.map { ($0.core.queue, $0.core.options) }
        if more {
          more =
            try size.running { most in
              try co_timeout(.seconds(8)) { try upkeep.prune(limits, most: most, db.reserve) }
            } >= count
        }
        if keys { keys = try co_timeout(.seconds(8)) { try upkeep.pruneKeys(limits.map(\.0), db.reserve) } >= 1_000 }
      }
      if more || keys { return .milliseconds(50) }
    } catch { try failed(error, members) }
    // Not all programs at once.
    return .seconds(chance(30...60))
  }
}

// MARK: - Statements

/// What keeps the tables in order, for many queues by one statement.
struct Upkeep: Sendable {
  let schema: String
  private let memory: MemoryLink?
  private var table: JobTable { JobTable(queue: "", schema: schema) }

  struct Found: Sendable {
    /// Whether there is something to claim.
    var isReady: Bool
    /// Whether jobs are marked as waiting far behind others of their key.
    var hasMarks: Bool
    /// When there is more to do.
    var next: Duration?
  }

  init(schema: String, memory: MemoryLink? = nil) { (self.schema, self.memory) = (schema, memory) }

  /// Makes jobs available whose time has come, or whose worker's lease has ended, and says which queues have jobs.
  ///
  /// Asks the server. Of each queue and kind it takes `most` jobs; if there are more, the next look is to follow at
  /// once.
  ///
  /// The questions for jobs that are ready are scalars with a limit, or the server would read all of them.
  func look(_ queues: Set<String>, most: Int, _ session: some PostgresSession) throws -> [String: Found] {
    if let memory { return try memory.look(queues, schema: schema, most: most) }
    let job = table.job
    let rows = try session.all(
      """
      with q as (select * from unnest(\(queues.sorted())) as q (name)),
      due as (
        update \(job) set state = 'available' where id in (
          select d.id from q cross join lateral (
            select id from \(job) where queue = q.name and state in ('scheduled', 'retryable') and at <= now()
            order by at limit \(most)::int for update skip locked) d)
        returning queue),
      rescued as (
        update \(job) set
          state = case when cancel_asked then 'cancelled' when attempt >= attempts then 'discarded'
            else 'available' end,
          ended_at = case when cancel_asked or attempt >= attempts then now() end, lease_ends = null,
          errors = \(table.adding("the lease of the worker has ended"))
        where id in (
          select r.id from q cross join lateral (
            select id from \(job) where queue = q.name and state = 'running' and lease_ends < now()
            order by lease_ends limit \(most)::int for update skip locked) r)
        returning queue),
      changed as (
        select queue, max(count) as most from (
          select queue, count(*) as count from due group by queue
          union all select queue, count(*) from rescued group by queue) c group by queue),
      found as (
        select q.name, c.most,
          (select true from \(job) where queue = q.name and waits and state in \(JobTable.unfinished) limit 1)
            is not null as has_marks,
          (select true from \(job) j where j.queue = q.name and j.state = 'available' and not j.waits and j.limit_key is null
            and not exists (select from \(identifier: schema).queue p where p.name = q.name and p.paused) limit 1)
            is not null
          or (select true from \(job) j where j.queue = q.name and j.state = 'available' and j.limit_key is not null
            and not exists (select from \(identifier: schema).queue p where p.name = q.name and p.paused) limit 1)
            is not null as is_ready,
          (select extract(epoch from min(at) - now())::float8 from \(job)
            where queue = q.name and state in ('scheduled', 'retryable') and at > now()) as due,
          (select extract(epoch from min(lease_ends) - now())::float8 from \(job)
            where queue = q.name and state = 'running' and lease_ends >= now()) as lease
        from q left join changed c on c.queue = q.name)
      select name, is_ready or most is not null, has_marks,
        case when most >= \(most) then 0 else least(due, lease) end
      from found where is_ready or has_marks or most is not null or due is not null or lease is not null
      """,
      as: (String, Bool, Bool, Double?).self
    )
    return Dictionary(
      rows.map { name, isReady, hasMarks, next in
        (name, Found(isReady: isReady, hasMarks: hasMarks, next: next.map { .seconds(min(max($0, 0), 1e9)) }))
      },
      uniquingKeysWith: { first, _ in first }
    )
  }

  /// Takes the mark from jobs that are among the next ones of their key, and have kept it: an end of a job has not seen
  /// them yet, or was an old program's, or the jobs before them were cancelled.
  ///
  /// Asks the server. Looks at 100 keys after `last`.
  /// - Returns: The queues of jobs that are free now, and the last key; nil after the last one of all.
  func free(
    _ queues: Set<String>,
    after last: (queue: String, key: String)?,
    _ session: some PostgresSession
  ) throws -> (Set<String>, last: (queue: String, key: String)?) {
    let marked: SQL = """
      select queue, order_key, id from \(table.job)
      where waits and state in \(JobTable.unfinished) and queue = any(\(queues.sorted()))
      """
    let rows = try session.all(
      """
      with recursive k as (
        (select m.*, 1 as n from (\(marked) and (queue, order_key) > (\(last?.queue ?? ""), \(last?.key ?? ""))
          order by queue, order_key, id limit 1) m)
        union all
        select m.*, k.n + 1 from k cross join lateral (
          \(marked) and (queue, order_key) > (k.queue, k.order_key) order by queue, order_key, id limit 1) m
        where k.n < 100),
      freed as (
        update \(table.job) w set waits = false where w.id in (
          select w.id from \(table.job) w where w.waits and w.id in (
            select f.id from k cross join lateral (
              \(table.next(of: "k.order_key", in: "k.queue", JobTable.ahead))) f)
          for update skip locked)
        returning queue, order_key)
      select k.queue, k.order_key, exists (select from freed f where f.queue = k.queue and f.order_key = k.order_key)
      from k order by k.n
      """,
      as: (String, String, Bool).self
    )
    let next = rows.count < 100 ? nil : rows.last.map { (queue: $0.0, key: $0.1) }
    return (Set(rows.filter(\.2).map(\.0)), next)
  }

  /// Deletes jobs that have been kept for long enough, at most `most` of each queue and state; returns the largest
  /// number.
  ///
  /// Asks the server.
  func prune(_ queues: [(String, WorkOptions)], most: Int, _ session: some PostgresSession) throws -> Int {
    // Two objects of one queue may differ: the shorter time counts.
    let times = Dictionary(queues.map { ($0.0, ($0.1.keepCompleted, $0.1.keepDiscarded)) }) { first, second in
      (min(first.0, second.0), min(first.1, second.1))
    }
    let names = times.keys.sorted()
    if let memory {
      return try memory.prune(
        names.map { ($0, times[$0]?.0 ?? .zero, times[$0]?.1 ?? .zero) },
        schema: schema,
        most: most
      )
    }
    let completed = names.map { times[$0]?.0.milliseconds ?? 0 }
    let discarded = names.map { times[$0]?.1.milliseconds ?? 0 }
    return try session.first(
      """
      with q as (select * from unnest(\(names), \(completed), \(discarded)) as q (name, completed, discarded)),
      gone as (
        delete from \(table.job) where id in (
          select d.id from q cross join (values ('completed'), ('discarded'), ('cancelled')) s (state)
          cross join lateral (
            select id from \(table.job) where queue = q.name and state = s.state and ended_at < now()
              - case when s.state = 'completed' then q.completed else q.discarded end * interval '1 ms'
            order by ended_at limit \(most)::int for update skip locked) d)
        returning queue, state)
      select coalesce(max(n), 0) from (select count(*) as n from gone group by queue, state) g
      """,
      as: Int.self
    ) ?? 0
  }

  /// Deletes keys that were not used for a day; returns how many.
  ///
  /// Asks the server.
  func pruneKeys(_ queues: [String], _ session: some PostgresSession) throws -> Int {
    if memory != nil { return 0 }
    return try session.run(
      """
      delete from \(identifier: schema).key where (queue, key) in (
        select queue, key from \(identifier: schema).key where queue = any(\(queues))
          and used_at < now() - interval '1 day'
        limit 1000 for update skip locked)
      """
    ).affected
  }
}

// MARK: - Objects that are shared

/// What an object is shared for in a program.
struct SharedKey: Hashable, Sendable {
  var db: ObjectIdentifier
  var schema, queue: String
}

/// Objects of which there is one for each key, as long as somebody holds it.
final class SharedObjects<Value: AnyObject & Sendable>: Sendable {
  private struct Weak: Sendable { weak let object: Value? }
  private struct State {
    var known: [SharedKey: Weak] = [:]
    /// How many there may be until those are removed that nobody holds.
    var limit = 64
  }
  private let state = ThreadMutex(State())

  func value(for key: SharedKey, _ make: () -> Value) -> Value {
    state.withLock { state in
      if let found = state.known[key]?.object { return found }
      if state.known.count >= state.limit {
        state.known = state.known.filter { $0.value.object != nil }
        state.limit = max(64, 2 * state.known.count)
      }
      let made = make()
      state.known[key] = Weak(object: made)
      return made
    }
  }
}
#endif
