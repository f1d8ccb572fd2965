#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Testing

/// Notifications that the server refuses.
///
/// Its queue of notifications is full when a listener has kept a transaction open for 8 GB of them. Here a function of
/// the same name refuses them with the same code.
@Suite("A full queue of notifications", .timeLimit(.minutes(10)))
struct NotifyTests {
  @Test func `jobs are added and found, and a transaction that notifies fails with the server's code`() async throws {
    let address = try Cluster.shared.get().address
    try await withSchema { db, schema in
      let full = uniqueName("full")
      try db.run("create schema \(identifier: full)")
      defer { _ = co_shield { try? db.run("drop schema \(identifier: full) cascade") } }
      try db.run(
        """
        create function \(identifier: full).pg_notify(text, text) returns void language plpgsql as
        $$ begin raise exception 'too many notifications in the NOTIFY queue' using errcode = '54000'; end $$
        """
      )
      let crowded = try PostgresPool(address + " options='-c search_path=\(full),pg_catalog'")
      defer { co_shield { try? crowded.close(drain: .zero) } }
      let error = #expect(throws: PostgresError.self) { try crowded.transaction { try $0.notify("channel") } }
      #expect(error?.kind == .server && error?.sqlState?.rawValue == "54000")
      let queue = WorkQueue<Task>(uniqueName("q"), on: crowded, schema: schema, options: quick())
      let handled = Log<Int>()
      try beside {
        try queue.work { job in handled.add(job.payload.number) }
      } _: {
        for number in 0..<5 { try queue.add(Task(number: number), on: crowded) }
        try eventually { handled.all.count == 5 }
      }
      // The connections work on.
      #expect(crowded.statistics.discarded == 0)
    }
  }
}
#endif
