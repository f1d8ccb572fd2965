#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

private struct Failure: Error {}

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
