#if Postgres
import Coroutine
@testable import CoroutinePostgres
import Testing

/// A transaction begins with its first statement; the second use of a statement goes together with the `begin`.
@Suite(.timeLimit(.minutes(10)))
struct BeginTests {
  private struct Failure: Error {}

  @Test func `the first statement is inside of its transaction, each time it is used`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        for number in 1...4 {
          #expect(throws: Failure.self) {
            try db.transaction { t in
              try t.run("insert into \(table) values (\(number))")
              throw Failure()
            }
          }
          try db.transaction { t in try t.run("insert into \(table) values (\(-number))") }
        }
        #expect(try db.all("select a from \(table) order by a", as: Int.self) == [-4, -3, -2, -1])
        for _ in 0..<2 {
          let level = try db.transaction(.serializable) { try $0.first("show transaction_isolation", as: String.self) }
          #expect(level == "serializable")
        }
        #expect(db.statistics.opened == 1)
      }
    }
  }

  // COMMIT's outcome is looked up by this number if its answer is lost.
  @Test func `the number that the first statement tells is that of the transaction, until it ends`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        for round in 0..<3 {
          try db.transaction { t in
            try t.run("insert into \(table) values (\(round))")
            let number = try t.first("select pg_current_xact_id()::text", as: String.self)
            // The first use of a statement is not sent together with `begin`.
            if round > 0 { #expect(t.wire?.transactionID == number) }
            #expect(try t.savepoint { try $0.first("select pg_current_xact_id()::text", as: String.self) } == number)
            // Savepoints and what may end a transaction forget it.
            #expect(t.wire?.transactionID == nil)
          }
          try db.transaction { t in
            try t.run("insert into \(table) values (\(round))")
            // As code of the server may do it.
            try t.wire?.command("rollback and chain")
            #expect(t.wire?.transactionID == nil)
            try t.run("insert into \(table) values (\(round + 10))")
          }
          try db.transaction { t in
            // It has no number yet, so COMMIT asks.
            _ = try t.run("update \(table) set a = a where a = \(-1)")
            #expect(t.wire?.transactionID == nil)
            try t.run("insert into \(table) values (\(round + 20))")
          }
        }
        #expect(try db.all("select a from \(table) order by a", as: Int.self) == [0, 1, 2, 10, 11, 12, 20, 21, 22])
        #expect(db.statistics.opened == 1)
      }
    }
  }

  // Neither the statement nor `begin` was sent. The body goes on, and its statements are in the transaction.
  @Test func `a first statement that is cancelled before it is sent leaves no statement outside`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        for round in 0..<2 {
          let plain = Result {
            try db.transaction { t in
              // Not prepared yet, and so not sent together with `begin`.
              #expect(throws: TimeoutError.self) { try late { try t.run("select 'first', \(round)") } }
              try t.run("insert into \(table) values (\(round))")
              throw Failure()
            }
          }
          #expect(throws: Failure.self) { try plain.get() }
          let serializable = Result {
            try db.transaction(.serializable) { t in
              #expect(throws: TimeoutError.self) { try late { try t.savepoint { _ in } } }
              let level = try t.first("show transaction_isolation", as: String.self)
              #expect(level == "serializable")
              try t.run("insert into \(table) values (\(round))")
              throw Failure()
            }
          }
          #expect(throws: Failure.self) { try serializable.get() }
        }
        let rows = try db.all("select a from \(table)", as: Int.self)
        #expect(rows.isEmpty)
        #expect(db.statistics.discarded == 0)
      }
    }
  }

  /// Runs `body` behind its deadline.
  private func late<R>(_ body: () throws -> R) throws -> R {
    try co_timeout(.milliseconds(1)) {
      try? co_delay(.seconds(60))
      return try body()
    }
  }

  @Test func `texts that Swift takes as equal are statements of their own`() async throws {
    try await withPool { db in
      for _ in 0..<3 {
        let composed = try db.first("select length('\u{E9}')", as: Int.self)
        let decomposed = try db.first("select length('e\u{301}')", as: Int.self)
        #expect(composed == 1 && decomposed == 2)
      }
    }
  }

  @Test func `a transaction without a statement sends nothing`() async throws {
    try await withPool { db in
      let backend = try db.first("select pg_backend_pid() /* mark */", as: Int32.self)!
      #expect(try db.transaction { _ in 1 } == 1)
      #expect(throws: Failure.self) { try db.transaction { _ in throw Failure() } }
      try expectLast(backend, db)
    }
  }

  /// The last statement of the only idle backend is the one that was marked.
  private func expectLast(_ backend: Int32, _ db: PostgresPool) throws {
    try db.withConnection { _ in
      let last = try db.first("select query from pg_stat_activity where pid = \(backend)", as: String.self)
      #expect(last == "select pg_backend_pid() /* mark */")
    }
  }

  @Test func `a first statement that fails fails its transaction alone`() async throws {
    try await withPool { db in
      for _ in 0..<3 {
        let end = kind {
          try db.transaction { t in
            #expect(state { try t.run("select 1 / \(0)") } == "22012")
            #expect(state { try t.run("select 1") } == "25P02")
          }
        }
        #expect(end == .rolledBack)
        let one = try db.first("select 1", as: Int.self)
        #expect(one == 1)
      }
      #expect(db.statistics.opened == 1 && db.statistics.discarded == 0)
    }
  }

  @Test func `a first statement that is cancelled ends with its transaction, and the connection lives`() async throws {
    try await withPool { db in
      let text = uniqueName("marker")
      for round in 0..<4 {
        try co_scope { scope in
          let job = scope.launch {
            #expect(throws: (any Error).self) {
              try db.transaction { t in try t.run("select pg_sleep(\(60.0)) /* \(SQL(unchecked: text)) */") }
            }
          }
          try db.waitForBackend(text)
          job.cancel()
          _ = try? job.join()
        }
        let number = try db.transaction { try $0.first("select \(round) + 0", as: Int.self) }
        #expect(number == round)
      }
      // One for the statement, and one that looks at it.
      #expect(db.statistics.opened == 2 && db.statistics.cancelled == 4 && db.statistics.discarded == 0)
    }
  }

  @Test func `copies, streams and savepoints begin their transaction too`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        for _ in 0..<2 {
          #expect(throws: Failure.self) {
            try db.transaction { t in
              #expect(try t.copyIn("copy \(table) from stdin") { write in try write(Array("1\n2\n".utf8)) } == 2)
              throw Failure()
            }
          }
          try db.transaction { t in try t.savepoint { try $0.run("insert into \(table) values (3)") } }
          let read = ThreadMutex(0)
          try db.transaction { t in try t.forEach("select a from \(table)") { _ in read.withLock { $0 += 1 } } }
          #expect(read.withLock { $0 } > 0)
          #expect(kind { try db.transaction { try $0.run("copy \(table) from stdin") } } == .server)
        }
        #expect(try db.all("select a from \(table)", as: Int.self) == [3, 3])
      }
    }
  }
}
#endif
