#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

private struct Failure: Error {}

@Suite(.timeLimit(.minutes(10)))
struct StreamTests {
  @Test func `rows of any statement are streamed`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        let statements: [SQL] = [
          "insert into \(table) select generate_series(1, 1000) returning a",
          "select a from \(table) order by a",
          "-- a comment\n  /* and /* another */ */ (select a from \(table) order by a)",
          "with all_of_them as (select a from \(table)) select a from all_of_them order by a",
          "with changed as (update \(table) set a = a returning a) select a from changed order by a",
          "values (1)",
          "delete from \(table) returning a",
        ]
        for statement in statements {
          var sum = 0
          try db.transaction { t in try t.forEach(statement, batch: 64) { sum += try $0.decode(Int.self) } }
          #expect(sum == (statement.description.hasPrefix("values") ? 1 : 500_500), "\(statement)")
        }
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == 0)
        #expect(db.statistics.opened == 1)
      }
    }
  }

  @Test func `a body that throws ends a statement that changes rows, and undoes it`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) select generate_series(1, 100000)")
        var count = 0
        #expect(throws: Failure.self) {
          try db.transaction { t in
            try t.forEach("delete from \(table) returning a") { _ in
              count += 1
              if count == 10 { throw Failure() }
            }
          }
        }
        #expect(count == 10)
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == 100_000)
        #expect(db.statistics.opened == 1)
      }
    }
  }

  @Test(arguments: [Int.min, 0, 1, Int(Int32.max) + 1, Int.max])
  func `a batch of any size is one that the server takes`(_ batch: Int) async throws {
    try await withPool { db in
      var sum = 0
      try db.transaction { t in
        try t.forEach("select generate_series(1, 4)", batch: batch) { sum += try $0.decode(Int.self) }
      }
      #expect(sum == 10)
    }
  }

  // A short statement has ended in the server when its first row is looked at, and a long one has not.
  @Test(arguments: [3, 100_000])
  func `a body that throws fails the transaction, also if the error is caught`(_ count: Int) async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) select generate_series(1, \(count))")
        let end = kind {
          try db.transaction { t in
            let delete: SQL = "delete from \(table) returning a"
            #expect(throws: Failure.self) { try t.forEach(delete) { _ in throw Failure() } }
          }
        }
        #expect(end == .rolledBack)
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == count)
      }
    }
  }

  @Test func `a query whose names look like changes has a cursor, so its transaction goes on`() async throws {
    try await withPool { db in
      try db.transaction { t in
        let rows: SQL = "with r as (select a as updated_at from generate_series(1, 3) a) select updated_at from r"
        #expect(throws: Failure.self) { try t.forEach(rows, batch: 1) { _ in throw Failure() } }
        let one = try t.first("select 1", as: Int.self)
        #expect(one == 1)
      }
      #expect(kind { try db.transaction { try $0.forEach("copy pg_class to stdout") { _ in } } } == .server)
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `the loss of another connection in a body is not taken for one of the transaction`() async throws {
    try await withPool { db in
      var runs = 0
      let error = #expect(throws: PostgresError.self) {
        try db.transaction(retries: 3) { t in
          runs += 1
          try t.forEach("select 1") { _ in
            _ = try db.withConnection { try $0.run("select pg_terminate_backend(\($0.backend))") }
          }
        }
      }
      #expect(error?.isRetryable == false)
      #expect(runs == 1)
    }
  }

  @Test func `an error in the middle of the rows has its statement, and one of the body is as it was`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) select generate_series(1, 3)")
        let update: SQL = "update \(table) set a = 1 / (3 - a) returning a"
        let error = #expect(throws: PostgresError.self) {
          try db.transaction { t in try t.forEach(update) { _ in } }
        }
        #expect(error?.sqlState?.rawValue == "22012")
        #expect(error?.statement == update.description)
        let misfit = #expect(throws: PostgresError.self) {
          try db.transaction { t in
            try t.forEach("update \(table) set a = a returning 'x'") { _ = try $0.decode(Int.self) }
          }
        }
        #expect(misfit?.kind == .decoding)
      }
    }
  }
}
#endif
