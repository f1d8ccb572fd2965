#if Postgres
import Coroutine
import CoroutinePostgres
import Glibc
import Testing

@Suite(.timeLimit(.minutes(10)))
struct CancellationTests {
  @Test func `a cancelled statement is ended in the server before the call throws`() async throws {
    try await withPool { db in
      let text = uniqueName("marker")
      try co_scope { scope in
        let job = scope.launch {
          #expect(throws: (any Error).self) {
            try db.run("select pg_sleep(60), \(text)::text /* \(SQL(unchecked: text)) */")
          }
        }
        try db.waitForBackend(text)
        job.cancel()
        _ = try? job.join()
      }
      let active: SQL =
        "select count(*) from pg_stat_activity where query like \("%" + text + "%") and state = 'active' and pid <> pg_backend_pid()"
      #expect(try db.first(active, as: Int.self) == 0)
      #expect(db.statistics.cancelled == 1 && db.statistics.discarded == 0)
    }
  }

  @Test func `no cancellation hits a later statement`() async throws {
    var options = PostgresPool.Options()
    options.connections = 0...4
    try await withPool(options) { db in
      let hit = ThreadMutex(0)
      try co_scope { scope in
        for worker in 0..<4 {
          scope.launch {
            for round in 0..<60 {
              do {
                try co_timeout(.microseconds(Int64((round * 97 + worker * 31) % 4500))) {
                  _ = try db.run("select pg_sleep(0.003)")
                }
              } catch is TimeoutError { hit.withLock { $0 += 1 } }
              for _ in 0..<2 { #expect(try db.first("select \(round) + 0", as: Int.self) == round) }
            }
          }
        }
      }
      #expect(hit.withLock { $0 } > 20)
      #expect(db.statistics.discarded == 0)
    }
  }

  @Test func `a server that does not answer a cancellation costs its time limit and the connection`() async throws {
    var options = PostgresPool.Options()
    (options.cancelTimeout, options.acquireTimeout) = (.milliseconds(200), .seconds(2))
    let cluster = try Cluster()
    try await withPool(on: cluster) { [options] other in
      let db = try PostgresPool(cluster.address, options: options)
      defer { co_shield { try? db.close(drain: .zero) } }
      // Both have their connections before the server stands: it answers to those as before.
      while kind({ try db.run("select 1") }) == .cannotConnect {}
      try other.run("select 1")
      kill(cluster.postmaster, SIGSTOP)
      defer { kill(cluster.postmaster, SIGCONT) }
      let text = uniqueName("marker")
      let job = co_launch { try db.run("select pg_sleep(600) /* \(SQL(unchecked: text)) */") }
      try other.waitForBackend(text)
      let start = co_now
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(co_now - start >= .milliseconds(200))
      #expect(db.statistics.discarded == 1 && db.statistics.inUse == 0)
      // The main process makes new connections.
      #expect(kind { try db.run("select 1") } == .cannotConnect)
      kill(cluster.postmaster, SIGCONT)
      while kind({ try db.run("select 1") }) == .cannotConnect {}
      #expect(try db.first("select 1", as: Int.self) == 1)
    }
  }
}
#endif
