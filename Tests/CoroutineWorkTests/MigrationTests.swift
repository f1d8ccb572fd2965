#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Foundation
import Testing

@Suite("Tables", .serialized, .timeLimit(.minutes(10)))
struct MigrationTests {
  @Test func `several migrations at once make the tables once`() async throws {
    try await withPool { db in
      let schema = uniqueName("w")
      defer { _ = co_shield { try? db.run("drop schema \(identifier: schema) cascade") } }
      try co_scope { scope in
        for _ in 0..<6 { scope.launch { try Work.migrate(db, schema: schema) } }
      }
      #expect(try db.all("select version from \(identifier: schema).version", as: Int.self) == [1, 2])
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
      #expect(Work.migration(from: 2) == "")
    }
  }

  @Test func `a schema that is there needs no right to create schemas, and its name is no SQL`() async throws {
    try await withPool { db in
      let role = uniqueName("role")
      // For Swift, the quote and the mark behind it are one Character.
      let schema = uniqueName("w") + "\"\u{301}; drop table job; --"
      try db.run("create role \(identifier: role) login")
      try db.run("create schema \(identifier: schema) authorization \(identifier: role)")
      defer {
        co_shield {
          _ = try? db.run("drop schema \(identifier: schema) cascade")
          _ = try? db.run("drop role \(identifier: role)")
        }
      }
      let cluster = try Cluster.shared.get()
      let own = try PostgresPool("host=\(cluster.folder) port=\(cluster.port) user=\(role) dbname=postgres")
      defer { co_shield { try? own.close() } }
      for _ in 0..<2 { try Work.migrate(own, schema: schema) }
      let queue = WorkQueue<Task>("q", on: own, schema: schema)
      #expect(try queue.add(Task(number: 1), on: own).isNew)
      #expect(try queue.health().deadRows >= 0)
    }
  }

  @Test func `an old program works on tables of a later version, beside a new one`() async throws {
    try await withSchema { db, schema in
      try db.run("alter table \(identifier: schema).job add column later text not null default 'x'")
      try db.run("insert into \(identifier: schema).version values (99, 1)")
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

  @Test func `tables that are missing, too old, removed or not allowed are an error at once`() async throws {
    try await withSchema { db, schema in
      let none = uniqueName("none")
      func queue(_ schema: String) -> WorkQueue<Task> {
        WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      }
      #expect(throws: WorkError.olderTables(0)) { try queue(none).work { _ in } }
      #expect(throws: WorkError.olderTables(0)) {
        try queue(none).schedule("s", .every(.seconds(1))) { _ in Task(number: 1) }
      }
      try db.run("delete from \(identifier: schema).version where version > 1")
      #expect(throws: WorkError.olderTables(1)) { try queue(schema).work { _ in } }
      try db.run("insert into \(identifier: schema).version values (2, 1)")
      // While it works.
      try queue(schema).add(Task(number: 1), on: db)
      #expect(throws: WorkError.olderTables(0)) {
        try queue(schema).work { _ in try db.run("drop table \(identifier: schema).version, \(identifier: schema).job")
        }
      }
    }
  }

  @Test func `a worker and a schedule without rights for their tables throw the server's error`() async throws {
    let address = try Cluster.shared.get().address
    try await withSchema { db, schema in
      let role = uniqueName("poor")
      try db.run("create role \(identifier: role) login")
      defer { _ = co_shield { try? db.run("drop role \(identifier: role)") } }
      let poor = try PostgresPool(address.replacingOccurrences(of: "user=postgres", with: "user=\(role)"))
      defer { co_shield { try? poor.close(drain: .zero) } }
      let queue = WorkQueue<Task>("q", on: poor, schema: schema, options: quick())
      #expect(state { try queue.work { _ in } } == "42501")
      #expect(state { try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 1) } } == "42501")
      // The right to look at the version alone.
      try db.run("grant usage on schema \(identifier: schema) to \(identifier: role)")
      try db.run("grant select on \(identifier: schema).version to \(identifier: role)")
      defer { _ = co_shield { try? db.run("drop owned by \(identifier: role)") } }
      #expect(state { try queue.work { _ in } } == "42501")
      #expect(state { try queue.schedule("s", .every(.seconds(1))) { _ in Task(number: 1) } } == "42501")
    }
  }
}
#endif
