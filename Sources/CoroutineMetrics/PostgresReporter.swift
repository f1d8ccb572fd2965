#if Metrics && Postgres
import Coroutine
public import CoreMetrics
public import CoroutinePostgres

/// Passes the statistics of a pool of connections on to swift-metrics.
///
/// ```swift
/// let reporter = PostgresReporter(db, pool: "shop")
/// co_launch(name: "metrics") { try reporter.run(every: .seconds(10)) }
/// ```
///
/// The dimension `pool` is the given name. Numbers of the moment are meters: `coroutine_postgres_connections`, with the
/// dimension `state` (`idle`, `in_use`, `connecting`), `coroutine_postgres_waiting`,
/// `coroutine_postgres_longest_wait_seconds` and `coroutine_postgres_longest_use_seconds`. Counters are
/// `coroutine_postgres_opened_total`, `…_closed_total`, `…_cancelled_total` and `…_discarded_total`.
///
/// Needs the traits Metrics and Postgres.
public final class PostgresReporter: Sendable {
  private let db: PostgresPool
  private let states: [Meter]
  private let waiting, longestWait, longestUse: Meter
  private let counters: ThreadMutex<GrowingCounters>

  /// Creates a reporter that reports to `factory`; without one, to the process's metrics system.
  ///
  /// - Parameters:
  ///   - db: The pool, which the reporter keeps alive.
  ///   - pool: The pool's name in the dimensions.
  ///   - factory: The factory; the system must have been bootstrapped before if it is nil.
  public init(_ db: PostgresPool, pool: String, factory: (any MetricsFactory)? = nil) {
    let factory = factory ?? MetricsSystem.factory
    func meter(_ name: String, _ more: [(String, String)] = []) -> Meter {
      Meter(label: "coroutine_postgres_\(name)", dimensions: [("pool", pool)] + more, factory: factory)
    }
    self.db = db
    states = ["idle", "in_use", "connecting"].map { meter("connections", [("state", $0)]) }
    (waiting, longestWait, longestUse) = (
      meter("waiting"), meter("longest_wait_seconds"), meter("longest_use_seconds")
    )
    counters = ThreadMutex(
      GrowingCounters(
        ["opened", "closed", "cancelled", "discarded"].map { name in
          Counter(label: "coroutine_postgres_\(name)_total", dimensions: [("pool", pool)], factory: factory)
        }
      )
    )
  }

  /// Reports once.
  ///
  /// The first report contains everything since the pool was made. Never suspends; any thread.
  public func report() {
    counters.withLock { counters in
      // Under the lock, so that two reports count in the order in which they have looked.
      let now = db.statistics
      for (meter, number) in zip(states, [now.idle, now.inUse, now.connecting]) { meter.set(Int64(number)) }
      waiting.set(Int64(now.waiting))
      longestWait.set(now.longestWait / .seconds(1))
      longestUse.set(now.longestUse / .seconds(1))
      counters.follow([now.opened, now.closed, now.cancelled, now.discarded].map { UInt64(clamping: $0) })
    }
  }

  /// Reports now, and again after each `interval`, until the coroutine is cancelled.
  ///
  /// Suspends the calling coroutine, and never returns. Throws the coroutine's cancellation error, or
  /// `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "call `report` between the waits of a Task")
  public func run(every interval: Duration) throws -> Never {
    while true {
      report()
      try co_delay(interval)
    }
  }
}
#endif
