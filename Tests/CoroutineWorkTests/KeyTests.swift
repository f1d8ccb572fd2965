#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

@testable import CoroutineWork

@Suite("Many jobs of one key", .serialized, .timeLimit(.minutes(10)))
struct KeyTests {
  /// How many jobs of the key have not ended, and how many of those are marked.
  private func marks(_ db: PostgresPool, _ table: JobTable) throws -> (unfinished: Int, marked: Int) {
    let found = try db.first(
      """
      select count(*), count(*) filter (where waits) from \(table.job)
      where queue = \(table.queue) and state in \(JobTable.unfinished)
      """,
      as: (Int, Int).self
    )
    return found ?? (0, 0)
  }

  enum Route: String, CaseIterable, Sendable {
    case finish, finishDeletes, complete, delete, lastFailure, discard, cancel, cancelled, rescue, oldProgram
  }

  @Test(arguments: Route.allCases)
  func `each end of a job frees one that waits far behind it`(route: Route) async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick(attempts: 1))
      let table = queue.core.table
      for number in 0..<20 { try queue.add(Task(number: number), on: db, key: "k") }
      // Others, which have no part in it.
      for number in 0..<3 { try queue.add(Task(number: number), on: db) }
      try db.run("update \(table.job) set state = 'cancelled', ended_at = now() where order_key is null")
      #expect(try marks(db, table) == (20, 12))
      var last: (queue: String, key: String)?
      for left in (10..<20).reversed() {
        let claimed = try table.claim(4, lease: .seconds(60), worker: "w", db)
        #expect(claimed.count == 1)
        let (id, fence) = (claimed[0].id, claimed[0].fence)
        func end(_ kind: JobEnd.Kind) throws { _ = try table.end([JobEnd(id: id, fence: fence, kind: kind)], db) }
        switch route {
        case .finish, .finishDeletes:
          _ = try db.transaction { t in
            try table.complete(id, fence: fence, hasKey: true, isDeleted: route == .finishDeletes, t)
          }
        case .complete: try end(.complete)
        case .delete: try end(.delete)
        case .lastFailure: try end(.fail)
        case .discard: try end(.discard)
        case .cancel:
          try end(.release)
          try queue.cancel(id)
        case .cancelled:
          try queue.cancel(id)
          try end(.release)
        case .rescue: try db.run("update \(table.job) set lease_ends = now() - interval '1 s' where id = \(id)")
        case .oldProgram:
          try db.run(
            "update \(table.job) set state = 'completed', ended_at = now(), lease_ends = null where id = \(id)"
          )
        }
        if [.cancel, .rescue, .oldProgram].contains(route) {
          // The next look finds it.
          let upkeep = Upkeep(schema: schema)
          let found = try upkeep.look(["q"], most: 10, db)
          #expect(found["q"]?.hasMarks == true)
          let freed = try upkeep.free(["q"], after: last, db)
          #expect(freed.0 == ["q"])
          last = freed.last
        }
        #expect(try marks(db, table) == (left, left - 8))
      }
    }
  }

  @Test func `marks are looked for in all keys, a hundred at a time`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      for key in 0..<150 { try queue.add(Task(number: key), on: db, key: "\(key)") }
      try db.run("update \(queue.core.table.job) set waits = true")
      let upkeep = Upkeep(schema: schema)
      let first = try upkeep.free(["q"], after: nil, db)
      #expect(try marks(db, queue.core.table).marked == 50)
      let second = try upkeep.free(["q"], after: first.last, db)
      #expect(second.last == nil)
      #expect(try marks(db, queue.core.table).marked == 0)
    }
  }

  @Test func `a worker goes through a long line of one key in its order`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let count = 300
      try db.transaction { t in
        for number in 0..<count { try queue.enqueue(Task(number: number), in: t, key: "k") }
      }
      let log = Log<Int>()
      try beside {
        try queue.work { job in
          log.add(job.payload.number)
          if job.payload.number % 2 == 0 { try job.finish { _ in } }
        }
      } _: {
        try eventually { try queue.counts()[.completed] == count }
      }
      #expect(log.all == Array(0..<count))
    }
  }

  @Test func `a claim does not read the jobs that wait behind others of their key`() async throws {
    try await withSchema { db, schema in
      let queue = WorkQueue<Task>("q", on: db, schema: schema, options: quick())
      let table = queue.core.table
      try queue.add(Task(number: 0), on: db, key: "k")
      try db.run(
        """
        insert into \(table.job) (queue, state, attempts, payload, order_key, waits)
        select 'q', 'available', 3, '{"number": 1, "text": ""}', 'k', n > 7 from generate_series(1, 20000) n
        """
      )
      try db.run("analyze \(table.job)")
      #expect(try table.claim(1, lease: .seconds(60), worker: "w", db).count == 1)
      // What this transaction has read, of the table alone.
      try db.transaction { t in
        _ = try table.claim(4, lease: .seconds(60), worker: "w", t)
        let read = try t.first(
          "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relid = \("\(schema).job")::regclass",
          as: Int.self
        )
        #expect(try #require(read) < 200)
      }
    }
  }
}
#endif
