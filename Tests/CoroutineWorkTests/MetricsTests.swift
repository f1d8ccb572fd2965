#if Postgres && Metrics
import Coroutine
import CoroutineMetrics
import CoroutinePostgres
import CoroutineWork
import MetricsTestKit
import Testing

@Suite("Metrics of pools and queues", .timeLimit(.minutes(10)))
struct MetricsTests {
  @Test func `a pool's connections, waits and counters are reported`() async throws {
    let test = TestMetrics()
    let address = try Cluster.shared.get().address
    try await withSchema(connections: 1) { db, _ in
      let reporter = PostgresReporter(db, pool: "p", factory: test)
      func connections(_ state: String) throws -> Double? {
        reporter.report()
        return try test.expectMeter("coroutine_postgres_connections", [("pool", "p"), ("state", state)]).lastValue
      }
      #expect(try connections("idle") == 1)
      try co_scope { scope in
        try db.withConnection { _ in
          #expect(try connections("in_use") == 1)
          let waiter = scope.launch { try db.run("select 1") }
          while db.statistics.waiting == 0 { try co_yield() }
          reporter.report()
          #expect(try test.expectMeter("coroutine_postgres_waiting", [("pool", "p")]).lastValue == 1)
          let wait = try test.expectMeter("coroutine_postgres_longest_wait_seconds", [("pool", "p")]).lastValue
          #expect(try #require(wait) > 0)
          waiter.cancel()
          _ = try? waiter.join()
        }
      }
      #expect(try connections("in_use") == 0)
      let opened = try test.expectCounter("coroutine_postgres_opened_total", [("pool", "p")])
      #expect(opened.totalValue == Int64(db.statistics.opened))
      let other = try PostgresPool(address)
      defer { co_shield { try? other.close(drain: .zero) } }
      let text = uniqueName("marker")
      let cancelled = co_launch { try db.run("select pg_sleep(600) /* \(SQL(unchecked: text)) */") }
      try other.waitForBackend(text)
      cancelled.cancel()
      #expect(throws: CancellationError.self) { try cancelled.join() }
      reporter.report()
      #expect(try test.expectCounter("coroutine_postgres_cancelled_total", [("pool", "p")]).totalValue == 1)
    }
  }

  @Test func `a queue's counts and health are reported`() async throws {
    let test = TestMetrics()
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let reporter = QueueReporter(queue, factory: test)
      func meter(_ name: String, _ more: [(String, String)] = []) throws -> Double? {
        try test.expectMeter("coroutine_work_\(name)", [("queue", "q")] + more).lastValue
      }
      try reporter.report()
      #expect(try meter("jobs", [("state", "available")]) == 0)
      #expect(try meter("oldest_available_seconds") == 0)
      for number in 0..<3 { try queue.add(Task(number: number), on: db) }
      try reporter.report()
      #expect(try meter("jobs", [("state", "available")]) == 3)
      #expect(try #require(try meter("oldest_available_seconds")) > 0)
      #expect(try meter("expired_leases") == 0)
      // An open transaction is seen, by its age.
      try db.transaction { t in
        try t.run("select 1")
        try reporter.report()
        #expect(try #require(try meter("oldest_transaction_seconds")) > 0)
      }
    }
  }

  @Test func `a reporter outlives the loss of the server`() async throws {
    let cluster = try Cluster()
    let test = TestMetrics()
    try await withPool(on: cluster) { db in
      try Work.migrate(db)
      let queue = WorkQueue<Task>("q", on: db)
      let reporter = QueueReporter(queue, factory: test)
      try beside({ try reporter.run(every: .milliseconds(5)) }) {
        func isReported(_ jobs: Double) -> Bool {
          let meter = try? test.expectMeter("coroutine_work_jobs", [("queue", "q"), ("state", "available")])
          return meter?.lastValue == jobs
        }
        try eventually { isReported(0) }
        try co_blocking {
          cluster.stop("immediate")
          try cluster.start()
        }
        try eventually { (try? queue.add(Task(number: 1), on: db)) != nil }
        try eventually { isReported(1) }
      }
    }
  }
}
#endif
