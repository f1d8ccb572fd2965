#if Metrics && Postgres
import Coroutine
public import CoreMetrics
import CoroutinePostgres
public import CoroutineWork

/// Passes the counts and the health of a queue on to swift-metrics.
///
/// ```swift
/// let reporter = QueueReporter(mails)
/// co_launch(name: "metrics") { try reporter.run(every: .seconds(30)) }
/// ```
///
/// All numbers are those of the database, so one program's reports are enough. The dimension `queue` is the queue's
/// name. The meters are `coroutine_work_jobs`, with the dimension `state`; `coroutine_work_oldest_available_seconds`;
/// `coroutine_work_expired_leases`; `coroutine_work_dead_rows`, of the table of all queues; and
/// `coroutine_work_oldest_transaction_seconds`, of the whole server.
///
/// Needs the traits Metrics and Postgres.
public final class QueueReporter: Sendable {
  private let look: @Sendable () throws -> ([WorkState: Int], WorkHealth)
  private let jobs: [WorkState: Meter]
  private let oldestAvailable, expiredLeases, deadRows, oldestTransaction: Meter

  /// Creates a reporter that reports to `factory`; without one, to the process's metrics system.
  ///
  /// - Parameters:
  ///   - queue: The queue, which the reporter keeps alive.
  ///   - factory: The factory; the system must have been bootstrapped before if it is nil.
  public init<Payload>(_ queue: WorkQueue<Payload>, factory: (any MetricsFactory)? = nil) {
    let factory = factory ?? MetricsSystem.factory
    func meter(_ name: String, _ more: [(String, String)] = []) -> Meter {
      Meter(label: "coroutine_work_\(name)", dimensions: [("queue", queue.name)] + more, factory: factory)
    }
    look = { (try queue.counts(), try queue.health()) }
    jobs = Dictionary(uniqueKeysWithValues: WorkState.allCases.map { ($0, meter("jobs", [("state", $0.rawValue)])) })
    (oldestAvailable, oldestTransaction) = (meter("oldest_available_seconds"), meter("oldest_transaction_seconds"))
    (expiredLeases, deadRows) = (meter("expired_leases"), meter("dead_rows"))
  }

  /// Reports once.
  ///
  /// Asks the server, and so suspends; if that throws, nothing is reported.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func report() throws {
    let (counts, health) = try look()
    for (state, meter) in jobs { meter.set(Int64(counts[state] ?? 0)) }
    oldestAvailable.set(health.oldestAvailable / .seconds(1))
    oldestTransaction.set(health.oldestTransaction / .seconds(1))
    expiredLeases.set(Int64(health.expiredLeases))
    deadRows.set(Int64(health.deadRows))
  }

  /// Reports now, and again after each `interval`, until the coroutine is cancelled.
  ///
  /// Suspends the calling coroutine, and never returns. While the server is not there, nothing is reported. Throws the
  /// coroutine's cancellation error, or `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(every interval: Duration) throws -> Never {
    while true {
      do { try report() } catch is PostgresError {}
      try co_delay(interval)
    }
  }
}
#endif
