#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Testing

@Suite("Tables", .serialized, .timeLimit(.minutes(5)))
struct MigrationTests {
  @Test func `several migrations at once make the tables once`() async throws {
    try await withPool { db in
      let schema = uniqueName("w")
      defer { _ = co_shield { try? db.run("drop schema \(identifier: schema) cascade") } }
      try co_scope { scope in
        for _ in 0..<6 { scope.launch { try Work.migrate(db, schema: schema) } }
      }
      #expect(try db.all("select version from \(identifier: schema).version", as: Int.self) == [1])
    }
  }

  @Test func `the text of the migration makes the same tables, and is empty for the newest version`() async throws {
    try await withPool { db in
      let schema = uniqueName("w")
      defer { _ = co_shield { try? db.run("drop schema \(identifier: schema) cascade") } }
      for statement in Work.migration(schema: schema).split(separator: ";\n") {
        try db.run(SQL(unchecked: String(statement)))
      }
      try Work.migrate(db, schema: schema)
      let queue = WorkQueue<Task>("q", on: db, schema: schema)
      #expect(try queue.add(Task(number: 1), on: db).isNew)
      #expect(Work.migration(from: 1) == "")
    }
  }

  @Test func `an old program works on tables of a later version, beside a new one`() async throws {
    try await withSchema { db, schema in
      try db.run("alter table \(identifier: schema).job add column later text not null default 'x'")
      try db.run("insert into \(identifier: schema).version values (2, 1)")
      try Work.migrate(db, schema: schema)
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      try beside {
        try queue.work { job in try job.finish { _ in } }
      } _: {
        // The tables change while the worker has statements prepared.
        let (first, _) = try queue.add(Task(number: 1), on: db)
        try eventually { try queue.job(first)?.state == .completed }
        try db.run("alter table \(identifier: schema).job add column latest int not null default 0")
        let (second, _) = try queue.add(Task(number: 2), on: db)
        try eventually { try queue.job(second)?.state == .completed }
      }
    }
  }

  @Test func `tables of a later major version are refused`() async throws {
    try await withSchema { db, schema in
      try db.run("insert into \(identifier: schema).version values (9, 2)")
      #expect(throws: WorkError.newerTables(2)) { try Work.migrate(db, schema: schema) }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      #expect(throws: WorkError.newerTables(2)) { try queue.work { _ in } }
    }
  }

  @Test func `a worker that finds no tables waits for them`() async throws {
    try await withPool { db in
      let schema = uniqueName("w")
      defer { _ = co_shield { try? db.run("drop schema \(identifier: schema) cascade") } }
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let log = Log<PostgresError>()
      try beside {
        try queue.work(onEvent: { if case .disconnected(let error) = $0 { log.add(error) } }, { _ in })
      } _: {
        try eventually { !log.all.isEmpty }
        try Work.migrate(db, schema: schema)
        let (id, _) = try queue.add(Task(number: 1), on: db)
        try eventually { try queue.job(id)?.state == .completed }
      }
    }
  }
}
#endif
