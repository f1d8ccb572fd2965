#if Postgres
import Coroutine
import CoroutinePostgres
import Dispatch
import Testing

@Suite(.timeLimit(.minutes(10)))
struct CloseTests {
  @Test(arguments: [CancellationError(), TimeoutError()] as [any Error])
  func `a close in a cancelled coroutine closes at once, and throws`(_ reason: any Error) async throws {
    let other = try PostgresPool(Cluster.shared.get().address)
    try await withPool { db in
      try db.run("select 1")
      let text = uniqueName("slow")
      let running = co_launch { kind { try db.run("select pg_sleep(600) /* \(SQL(unchecked: text)) */") } }
      try other.waitForBackend(text)
      let closing = co_launch(start: .immediate) {
        try? co_delay(.seconds(600))
        try db.close(drain: .seconds(600))
      }
      closing.cancel(reason)
      var thrown: (any Error)?
      do { try closing.join() } catch { thrown = error }
      #expect(thrown.map { type(of: $0) == type(of: reason) } == true)
      #expect(try running.join() == .lost)
      #expect(kind { try db.run("select 1") } == .ended)
      while db.statistics.opened != db.statistics.closed { try co_delay(.milliseconds(2)) }
      try other.close()
    }
  }

  @Test func `a close outside of a coroutine closes nothing`() async throws {
    try await withPool { db in
      let notifications = try db.listen("outside")
      #expect(try notifications.receive() == .gap)
      try co_await { await Self.closeOutside(db) }
      #expect(try db.first("select 1", as: Int.self) == 1)
      #expect(try db.pipeline.first("select 1", as: Int.self) == 1)
      try db.run("notify outside")
      let next = try notifications.receive()
      #expect(next != .gap && next != nil)
    }
  }

  private static func closeOutside(_ db: PostgresPool) async {
    func close() { #expect(throws: CoroutineError.self) { try db.close() } }
    close()
  }

  @Test func `a close waits for statements of the pipeline, and lets nobody listen`() async throws {
    let other = try PostgresPool(Cluster.shared.get().address)
    try await withPool { db in
      let key = Int.random(in: 1...1_000_000_000)
      let notifications = try db.listen("somewhere")
      try other.withConnection { holder in
        try holder.run("select pg_advisory_lock(\(key))")
        try co_scope { scope in
          let running = scope.launch { try db.pipeline.first("select 7 from pg_advisory_lock(\(key))", as: Int.self) }
          let locks: SQL =
            "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid::int8 = \(key)"
          while try other.first(locks, as: Int.self) == 0 { try co_delay(.milliseconds(2)) }
          let closing = scope.launch { try db.close(drain: .seconds(600)) }
          while kind({ try db.run("select 1") }) != .ended { try co_yield() }
          #expect(kind { _ = try db.listen("elsewhere") } == .ended)
          #expect(kind { try db.pipeline.run("select 1") } == .ended)
          #expect(!closing.isFinished)
          try holder.run("select pg_advisory_unlock(\(key))")
          #expect(try running.join() == 7)
          try closing.join()
        }
      }
      // The connections of the pipeline and of the listener have ended with the close, not after it.
      #expect(db.statistics.opened == db.statistics.closed)
      while try notifications.receive() != nil {}
      try other.close()
    }
  }

  @Test func `a close after a listener has begun does not throw`() async throws {
    let address = try Cluster.shared.get().address
    // On one queue, so that the listener's reader has not begun.
    try await co_launch(on: DispatchQueue(label: "one")) {
      let db = try PostgresPool(address)
      _ = try db.listen("somewhere")
      try db.close()
      #expect(db.statistics.opened == db.statistics.closed)
    }.value
  }

  @Test func `nothing is received after a listener was stopped`() async throws {
    try await withPool { db in
      let notifications = try db.listen("nobody")
      notifications.stop()
      #expect(try notifications.receive() == nil)
    }
  }
}
#endif
