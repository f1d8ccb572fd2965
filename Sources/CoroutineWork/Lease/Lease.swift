#if Postgres
import Coroutine
public import CoroutinePostgres

// A lease is a row: its holder, its end by the server's clock, and a fence.
//
// Invariants
//  1. Who takes the lease draws a fence from the sequence while it has the row locked, and only after the end of the
//     lease before. Rows are never deleted. So a later holder's fence is greater.
//  2. `Lease.transaction` locks the row `for key share`, with this fence, until its end. A taker locks the row
//     `for update skip locked`: it does not wait, and does not get the lease while such a transaction is open.
//     An extension changes no key, so it passes.
//  3. `until` is measured from before the acquisition or the extension was sent, so it is not later than the server's
//     end, unless one of the clocks jumps or stands; then the fence decides.

/// A lease that this program holds.
public final class Lease: Sendable {
  /// Greater than that of every holder before.
  public let fence: Int64
  let name: String
  let ttl: Duration
  private let db: PostgresPool
  private let until: ThreadMutex<ContinuousClock.Instant>

  init(_ name: String, fence: Int64, ttl: Duration, until: ContinuousClock.Instant, on db: PostgresPool) {
    self.name = name
    self.fence = fence
    self.ttl = ttl
    self.db = db
    self.until = ThreadMutex(until)
  }

  /// Runs `body` in a transaction that commits only while the lease is held: it locks the lease's row first.
  ///
  /// Asks the server, as `PostgresPool.transaction`.
  /// - Throws: `.leaseLost`, before `body` runs, if somebody else has held the lease by now, or may take it.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func transaction<R>(_ body: (PostgresTransaction) throws -> R) throws -> R {
    try db.transaction { t in
      if let memory = db.link {
        guard try memory.shareLease(name, fence: fence, t) else { throw loss }
        return try body(t)
      }
      let isHeld = try t.first(
        "select true from work.lease where name = \(name) and fence = \(fence) and ends > now() for key share",
        as: Bool.self
      )
      guard isHeld == true else { throw loss }
      return try body(t)
    }
  }

  /// Whether less than a sixth of the lease is left.
  var isEnding: Bool { until.withLock { $0 } - ttl / 6 <= ContinuousClock.Instant.steady }
  /// How long the body may run, if nothing extends the lease.
  var untilCut: Duration { max(until.withLock { $0 } - ttl / 6 - ContinuousClock.Instant.steady, .zero) }

  var loss: PostgresError {
    PostgresError(.leaseLost, "the lease \(name) belongs to somebody else by now, or may do so")
  }

  /// Extends the lease; throws `.leaseLost` if it is another's, and `.server` with 55P03 while its row is locked.
  ///
  /// Asks the server.
  func extend() throws {
    let asked = ContinuousClock.Instant.steady
    if let memory = db.link {
      guard try memory.extendLease(name, fence: fence, ttl: ttl) else { throw loss }
      return until.withLock { $0 = asked + ttl }
    }
    let changed = try db.reserve.run(
      """
      update work.lease set ends = now() + \(ttl.milliseconds) * interval '1 ms' where name = (
        select name from work.lease where name = \(name) and fence = \(fence) and ends > now()
        for no key update nowait)
      """
    ).affected
    guard changed == 1 else { throw loss }
    until.withLock { $0 = asked + ttl }
  }

  /// Gives the lease back.
  ///
  /// Asks the server.
  func release() throws {
    if let memory = db.link {
      _ = try memory.extendLease(name, fence: fence, ttl: .zero)
      return
    }
    try db.reserve.run("update work.lease set ends = now(), holder = null where name = \(name) and fence = \(fence)")
  }

  enum Taken {
    case lease(Lease)
    /// Somebody else has it; for how long, unless it is extended or given back.
    case held(Duration)
  }

  /// Takes the lease if it is free.
  ///
  /// Asks the server.
  static func take(_ name: String, holder: String, ttl: Duration, on db: PostgresPool) throws -> Taken {
    try db.checkOpen()
    if let memory = db.link {
      let asked = ContinuousClock.Instant.steady
      let (fence, left) = try memory.takeLease(name, holder: holder, ttl: ttl)
      return fence.map { .lease(Lease(name, fence: $0, ttl: ttl, until: asked + ttl, on: db)) } ?? .held(left)
    }
    for _ in 0..<2 {
      let asked = ContinuousClock.Instant.steady
      let fence = try db.reserve.first(
        """
        with free as (select name from work.lease where name = \(name) and ends <= now() for update skip locked)
        update work.lease l set fence = nextval('work.fence'), holder = \(holder),
          ends = now() + \(ttl.milliseconds) * interval '1 ms'
        from free where l.name = free.name returning l.fence
        """,
        as: Int64.self
      )
      if let fence { return .lease(Lease(name, fence: fence, ttl: ttl, until: asked + ttl, on: db)) }
      // Not without this question: an insertion waits for a transaction that changes the row.
      let left = try db.reserve.first(
        "select extract(epoch from greatest(ends, now()) - now())::float8 from work.lease where name = \(name)",
        as: Double.self
      )
      if let left { return .held(.seconds(left)) }
      try db.reserve.run(
        "insert into work.lease (name, fence, ends) values (\(name), 0, '-infinity') on conflict do nothing"
      )
    }
    return .held(.zero)
  }
}
#endif
