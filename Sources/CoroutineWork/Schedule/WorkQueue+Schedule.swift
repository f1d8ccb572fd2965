#if Postgres
import Coroutine
import CoroutinePostgres
public import FoundationEssentials

// Each tick once, in all programs.
//
// A row for each schedule has the last tick that was dealt with. A program that has a tick to add locks the row,
// computes the ticks that follow the last one, adds jobs for them and moves the last tick on, in one transaction. So
// a tick is computed from the tick before, not from a window of time; of two programs one adds it, and the other
// finds it done.
//
// A program "is there" from its first look on. Ticks after that are added, however late the look is, unless it is
// more than `patience` late: then the program was stopped, or the server was away, and they count as missed. Ticks
// before the first look that no program has dealt with are missed. Time is the server's: a program's clock only says
// when to look.

extension WorkQueue {
  /// Adds jobs by time until cancelled.
  ///
  /// Each program may run it: it needs no leader. Suspends, also while the server is not there; asked to stop
  /// (`co_isStopping`), it returns.
  ///
  /// Another schedule under the same `name` replaces the old one from its next tick on. The coroutines that run the
  /// old one add nothing from then on.
  /// - Parameters:
  ///   - name: The schedule's name, of which each queue has its own.
  ///   - schedule: When jobs are added.
  ///   - missed: What becomes of ticks that no program was there for.
  ///   - payload: Makes the job of a tick, inside of a transaction: it must not wait.
  ///
  /// Ticks that are due are added in their order by several transactions if they are many.
  /// - Throws: As `work` does; `.decoding` for a payload that cannot be encoded; and the server's error where no
  ///   repetition mends it, as for a name that is too long or has a zero byte.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func schedule(
    _ name: String,
    _ schedule: WorkSchedule,
    missed: WorkSchedule.Missed = .latest,
    _ payload: @escaping @Sendable (_ tick: Date) -> Payload
  ) throws {
    let core = core
    let clock = ScheduleClock(core, name: name, schedule: schedule, missed: missed)
    let link = Link(core, onEvent: { _ in })
    guard try link.persistUntilStop({ try Tables.check(core.db.reserve, schema: core.schema) }) != nil else { return }
    // So that a transaction ends in time, however many ticks are due.
    let size = BatchSize(1_000)
    var isFirst = true
    while !co_isStopping {
      // Nothing is told of what is repeated here, so what lasts is thrown.
      let lasts = { @Sendable (error: PostgresError) in error.kind == .decoding || error.isLasting }
      let wait = try link.persistUntilStop(unless: lasts) {
        try size.running { most in
          try core.db.reserve.transaction(retries: 3) { t in
            try clock.look(t, isFirst: isFirst, most: most) { ticks, t in
              try Work.enqueue(
                ticks.map { tick in
                  let text = try jsonText(payload(Date(timeIntervalSince1970: tick)))
                  return WorkDraft(core: core, payload: text, unique: "\(name) \(Int((tick * 1_000).rounded()))")
                },
                on: t
              )
            }
          }
        }
      }
      guard let wait else { return }
      if clock.hasLooked { isFirst = false }
      let stopping = co_stopping
      try co_select {
        stopping.onAwait { _ in }
        core.db.closing.onAwait { _ in try core.db.checkOpen() }
        SelectCase.onTimeout(wait) {}
      }
    }
  }
}

extension PostgresError {
  /// Whether the server has refused the statement for what it is: the next try would be refused as well.
  ///
  /// Not so what depends on others and on time: connections (08), resources (53), objects in use (55), an end by an
  /// operator or a limit (57), the disk (58), a server that has become a standby (25006), and a prepared statement that
  /// other code has removed (26000).
  fileprivate var isLasting: Bool {
    guard kind == .server, !isRetryable else { return false }
    let state = sqlState?.rawValue ?? ""
    return !["08", "53", "55", "57", "58"].contains(state.prefix(2)) && !["25006", "26000"].contains(state)
  }
}

/// One program's part in a schedule.
///
/// Used by one coroutine.
final class ScheduleClock {
  private let core: QueueCore
  private let name: String
  private let schedule: WorkSchedule
  private let missed: WorkSchedule.Missed
  /// The server's clock, as an expression; tests have another one.
  private let clock: SQL
  /// The server's time of the first look; ticks after it are not missed.
  private var since: Double?
  /// Whether a look has found the row, and no other program at it.
  var hasLooked: Bool { since != nil }
  /// How late a tick may be added by a program that was there.
  private let patience = 30.0
  /// The tick after which the last transaction has left some of those it had found.
  ///
  /// What follows it is not missed by more than was asked for, so it need not be counted again to its end.
  private var unfinished: Double?

  init(
    _ core: QueueCore,
    name: String,
    schedule: WorkSchedule,
    missed: WorkSchedule.Missed,
    clock: SQL = "clock_timestamp()"
  ) {
    self.core = core
    self.name = name
    self.schedule = schedule
    self.missed = missed
    self.clock = clock
  }

  /// Adds what is due, and returns how long to wait before the next look.
  ///
  /// Asks the server.
  func look(
    _ t: PostgresTransaction,
    isFirst: Bool,
    most: Int = .max,
    _ add: ([Double], PostgresTransaction) throws -> Void
  ) throws -> Duration {
    // Another program is at it.
    guard let (rule, last, now) = try lock(t) else { return .milliseconds(250) }
    var done = last
    if rule != schedule.rule {
      // Replaced by another program's schedule; or this one replaces it, with no ticks of the time before.
      guard isFirst else { return .seconds(1) }
      done = now
      try set(now, t)
    }
    let here = since ?? now
    let ticks = due(after: done, here: here, now: now, most: unfinished == done ? most : nil)
    let added = ticks.added.prefix(most)
    let isCut = added.count < ticks.added.count || unfinished == done && added.count == most
    if !added.isEmpty { try add(Array(added), t) }
    if isCut, let tick = added.last {
      try set(tick, t)
      (since, unfinished) = (here, tick)
      return .milliseconds(1)
    }
    if ticks.last > done { try set(ticks.last, t) }
    // Not before the commit is certain to have read the clock; a repeated body finds the same or an earlier moment.
    since = here
    unfinished = nil
    guard let next = schedule.next(now) else { return .seconds(30) }
    // Not for longer: the server's clock may be set. A little later than the tick, because two clocks differ.
    return .seconds(min(max(next - now, 0) + 0.002, 30))
  }

  private var table: SQL { "\(identifier: core.schema).schedule" }
  private var key: MemoryState.Key { MemoryState.Key(queue: core.table.memoryKey, name: name) }

  /// Locks the row, which is made if it is not there; returns the rule, the last tick, and the server's time, or nil if
  /// another program has locked it.
  ///
  /// It does not wait for that one, which may have been stopped: the connection is of the reserve.
  private func lock(_ t: PostgresTransaction) throws -> (rule: String, last: Double, now: Double)? {
    if let memory = core.table.memory { return try memory.schedule(key, rule: schedule.rule, t) }
    try t.run(
      """
      insert into \(table) (queue, name, rule, last_tick) values (\(core.queue), \(name), \(schedule.rule), \(clock))
      on conflict do nothing
      """
    )
    // The clock is read after the lock was taken, which may have taken a while.
    return try t.first(
      """
      select rule, extract(epoch from last_tick)::float8, extract(epoch from \(clock))::float8
      from (select rule, last_tick from \(table) where queue = \(core.queue) and name = \(name)
        for update skip locked) locked
      """,
      as: (String, Double, Double).self
    )
  }

  /// Notes the last tick, of this rule.
  private func set(_ tick: Double, _ t: PostgresTransaction) throws {
    if let memory = core.table.memory { return memory.setSchedule(key, rule: schedule.rule, last: tick, t) }
    try t.run(
      """
      update \(table) set rule = \(schedule.rule), last_tick = to_timestamp(\(tick))
      where queue = \(core.queue) and name = \(name)
      """
    )
  }

  /// The ticks to add, in order, and the last one that is dealt with.
  ///
  /// - Parameter most: How many to look for, if all of them are to be added; nil for all.
  func due(after done: Double, here: Double, now: Double, most: Int? = nil) -> (added: [Double], last: Double) {
    let limit = min(missed.most, 1 << 40)
    let edge = max(here, now - patience)
    var (late, onTime, last) = ([Double](), [Double](), done)
    // After a long outage, ticks that would not be added are not counted one by one.
    var moment = max(done, schedule.period.map { now - patience - $0 * Double(min(limit, 1_000_000) + 2) } ?? done)
    while let tick = schedule.next(moment), tick <= now, late.count + onTime.count < most ?? .max {
      moment = tick
      if tick > edge {
        onTime.append(tick)
      } else if limit > 0 {
        late.append(tick)
        if late.count > 2 * limit + 16 { late.removeFirst(late.count - limit) }
      } else {
        // Not dealt with: another program may have been there for it, and be about to add it.
        continue
      }
      last = tick
    }
    return (Array(late.suffix(limit)) + onTime, last)
  }
}
#endif
