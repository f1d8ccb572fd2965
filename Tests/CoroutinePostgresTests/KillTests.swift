#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@Suite(.timeLimit(.minutes(60)))
struct KillTests {
  /// CO_POSTGRES_KILLS: 100, unless it says another number.
  private static let kills = ProcessInfo.processInfo.environment["CO_POSTGRES_KILLS"].flatMap { Int($0) } ?? 100

  @Test func `transactions whose backends are killed are committed once, or said to be lost`() async throws {
    var options = PostgresPool.Options()
    options.connections = 0...8
    try await withPool(options) { [options] db in
      try db.withTable("worker int, round int, unique (worker, round)") { table in
        let name = "kill-\(uniqueName("t"))"
        let isDone = ThreadMutex(false)
        let lost = ThreadMutex(0)
        let victims = try PostgresPool(Cluster.shared.get().address + " application_name=\(name)", options: options)
        defer { co_shield { try? victims.close(drain: .zero) } }
        let rounds = try co_scope { scope in
          let jobs = (0..<8).map { worker in
            scope.launch { () -> Int in
              var round = 0
              while !isDone.withLock({ $0 }) {
                do {
                  try victims.transaction { t in
                    try t.run("insert into \(table) values (\(worker), \(round))")
                    try t.run("select 1")
                  }
                  round += 1
                } catch let error as PostgresError {
                  // Lost: nothing was committed, so the same round is tried again, and no key is there twice.
                  if error.kind == .commitUnknown {
                    let query: SQL = "select count(*) from \(table) where worker = \(worker) and round = \(round)"
                    round += try db.first(query, as: Int.self)!
                  } else {
                    #expect(error.kind == .lost || error.kind == .cannotConnect, "\(error)")
                  }
                  lost.withLock { $0 += 1 }
                }
              }
              return round
            }
          }
          for _ in 0..<Self.kills {
            let victim: SQL = """
              select pg_terminate_backend(pid) from (select pid from pg_stat_activity where application_name = \(name)
              order by random() limit 1) as one
              """
            while try db.run(victim).isEmpty { try co_yield() }
            try co_delay(.milliseconds(5))
          }
          isDone.withLock { $0 = true }
          return try jobs.map { try $0.join() }
        }
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == rounds.reduce(0, +))
        #expect(lost.withLock { $0 } > 0)
      }
    }
  }
}
#endif
