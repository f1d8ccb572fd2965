#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

private struct Failure: Error {}

@Suite(.timeLimit(.minutes(10)))
struct TransactionTests {
  @Test func `a body that returns commits, and one that throws does not`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        let hooks = ThreadMutex<[Int]>([])
        try db.transaction { t in
          t.afterCommit { hooks.withLock { $0.append(1) } }
          try t.run("insert into \(table) values (1)")
          #expect(hooks.withLock { $0 }.isEmpty)
        }
        #expect(throws: Failure.self) {
          try db.transaction { t in
            t.afterCommit { hooks.withLock { $0.append(2) } }
            try t.run("insert into \(table) values (2)")
            throw Failure()
          }
        }
        #expect(try db.all("select a from \(table)", as: Int.self) == [1])
        #expect(hooks.withLock { $0 } == [1])
        let kept = try db.transaction { $0 }
        #expect(kind { try kept.run("select 1") } == .ended)
        #expect(
          state { try db.transaction(readOnly: true) { try $0.run("insert into \(table) values (3)") } } == "25006"
        )
        #expect(db.statistics.opened == 1)
      }
    }
  }

  @Test func `an error that was swallowed is found at the end`() async throws {
    try await withPool { db in
      let end = kind {
        try db.transaction { t in
          #expect(state { try t.run("select 1/0") } == "22012")
          #expect(state { try t.run("select 1") } == "25P02")
        }
      }
      #expect(end == .rolledBack)
    }
  }

  @Test func `a failed savepoint undoes its own statements alone`() async throws {
    try await withPool { db in
      try db.withTable("a int unique") { table in
        let hooks = ThreadMutex<[Int]>([])
        try db.transaction { t in
          try t.run("insert into \(table) values (1)")
          let error = #expect(throws: PostgresError.self) {
            try t.savepoint { inner in
              inner.afterCommit { hooks.withLock { $0.append(1) } }
              try inner.run("insert into \(table) values (2)")
              try inner.savepoint { try $0.run("insert into \(table) values (3)") }
              try inner.run("insert into \(table) values (1)")
            }
          }
          #expect(error?.sqlState == .uniqueViolation && error?.constraint?.hasSuffix("_a_key") == true)
          try t.savepoint { try $0.run("insert into \(table) values (4)") }
        }
        #expect(try db.all("select a from \(table) order by a", as: Int.self) == [1, 4])
        #expect(hooks.withLock { $0 }.isEmpty)
      }
    }
  }

  @Test func `a constraint that is checked at COMMIT fails there`() async throws {
    try await withPool { db in
      try db.withTable("a int unique deferrable initially deferred") { table in
        #expect(state { try db.transaction { try $0.run("insert into \(table) values (1), (1)") } } == "23505")
        let rows = try db.first("select count(*) from \(table)", as: Int.self)
        #expect(rows == 0)
      }
    }
  }

  @Test func `transactions that cannot be serialised run again`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) values (0)")
        try co_scope { scope in
          for _ in 0..<8 {
            scope.launch {
              for _ in 0..<5 {
                try db.transaction(.serializable, retries: 100) { t in
                  let old = try t.first("select a from \(table)", as: Int.self)!
                  try t.run("update \(table) set a = \(old + 1)")
                }
              }
            }
          }
        }
        #expect(try db.first("select a from \(table)", as: Int.self) == 40)
      }
    }
  }

  @Test func `a deadlock is an error that can be tried again`() async throws {
    try await withPool { db in
      try db.withTable("id int, a int") { table in
        try db.run("insert into \(table) values (1, 0), (2, 0)")
        let runs = ThreadMutex(0)
        let met = Latch(2)
        let hasCommitted = Promise<Void>()
        try co_scope { scope in
          for (first, second) in [(1, 2), (2, 1)] {
            scope.launch {
              try db.transaction(retries: 5) { t in
                let run = runs.withLock { count in
                  count += 1
                  return count
                }
                // Before that they might meet once more.
                if run > 2 { try co_await(hasCommitted) }
                try t.run("update \(table) set a = a + 1 where id = \(first)")
                if run <= 2 {
                  met.countDown()
                  try met.wait()
                }
                try t.run("update \(table) set a = a + 1 where id = \(second)")
              }
              hasCommitted.fulfill(())
            }
          }
        }
        #expect(try db.all("select a from \(table)", as: Int.self) == [2, 2])
        #expect(runs.withLock { $0 } == 3)
      }
    }
  }

  @Test func `a cancelled body is rolled back, and a cancellation during COMMIT comes too late`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        #expect(throws: TimeoutError.self) {
          try co_timeout(.milliseconds(50)) {
            try db.transaction { t in
              try t.run("insert into \(table) values (1)")
              try t.run("select pg_sleep(60)")
            }
          }
        }
        // A COMMIT that waits for a lock of another connection.
        let (slow, key): (SQL, Int) = ("\(identifier: uniqueName("slow"))()", .random(in: 1...1_000_000_000))
        let body = SQL(unchecked: "'begin perform pg_advisory_xact_lock_shared(\(key)); return new; end'")
        try db.run("create function \(slow) returns trigger language plpgsql as \(body)")
        try db.run(
          """
          create constraint trigger slow after insert on \(table) deferrable initially deferred
          for each row execute function \(slow)
          """
        )
        let other = try PostgresPool(Cluster.shared.get().address)
        try other.withConnection { holder in
          try holder.run("select pg_advisory_lock(\(key))")
          let job = co_launch { try db.transaction { t in _ = try t.run("insert into \(table) values (2)") } }
          let waiting: SQL = "select count(*) from pg_locks where objid::bigint = \(key) and not granted"
          while try holder.first(waiting, as: Int.self) == 0 { try co_delay(.milliseconds(2)) }
          job.cancel()
          // Time for a cancellation that should not be sent.
          try co_delay(.milliseconds(100))
          try holder.run("select pg_advisory_unlock(\(key))")
          try job.join()
        }
        try other.close()
        #expect(try db.all("select a from \(table)", as: Int.self) == [2])
        #expect(db.statistics.opened == 1)
      }
    }
  }

  @Test func `rows are streamed in batches, and a body that throws ends the statement`() async throws {
    try await withPool { db in
      try db.transaction { t in
        var sum = 0
        try t.forEach("select n from generate_series(1, \(100_000)) n", batch: 1000) { row in
          sum += try row.decode(Int.self)
          if sum == 1 { #expect(kind { try t.run("select 1") } == .busy) }
        }
        #expect(sum == 5_000_050_000)
        #expect(throws: Failure.self) {
          try t.forEach("select generate_series(1, 1000000000)") { _ in throw Failure() }
        }
        // The transaction lives.
        #expect(try t.first("select count(*) from pg_cursors where name <> ''", as: Int.self) == 0)
        #expect(
          state {
            try t.savepoint { try $0.forEach("select 1/(10-n) from generate_series(1, 20) n", batch: 3) { _ in } }
          } == "22012"
        )
      }
    }
  }

  @Test func `a copy carries rows both ways`() async throws {
    try await withPool { db in
      try db.withTable("a int, b text") { table in
        let count = try db.transaction { t in
          try t.copyIn("copy \(table) from stdin") { write in
            for number in 0..<50_000 { try write(Array("\(number)\trow \(number)\n".utf8)) }
          }
        }
        #expect(count == 50_000)
        let bytes = try db.transaction { t in
          var bytes = 0
          try t.copyOut("copy \(table) to stdout") { bytes += $0.count }
          return bytes
        }
        #expect(bytes == (0..<50_000).reduce(0) { $0 + "\($1)\trow \($1)\n".utf8.count })
      }
    }
  }

  @Test func `a copy that fails in its middle leaves nothing behind`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        #expect(throws: Failure.self) {
          try db.transaction { t in
            try t.copyIn("copy \(table) from stdin") { write in
              try write(Array("1\n".utf8))
              throw Failure()
            }
          }
        }
        #expect(
          state {
            try db.transaction { t in
              try t.copyIn("copy \(table) from stdin") { write in
                for _ in 0..<100_000 { try write(Array("1\nx\n".utf8)) }
              }
            }
          } == "22P02"
        )
        #expect(throws: Failure.self) {
          try db.transaction { t in
            try t.run("insert into \(table) select generate_series(1, 100000)")
            try t.copyOut("copy \(table) to stdout") { _ in throw Failure() }
          }
        }
        #expect(kind { try db.run("copy \(table) to stdout") } == .server)
        #expect(kind { try db.run("copy \(table) from stdin") } == .server)
        #expect(kind { try db.transaction { try $0.copyOut("select 1") { _ in } } } == .server)
        let rows = try db.first("select count(*) from \(table)", as: Int.self)
        #expect(rows == 0)
        #expect(db.statistics.opened == 1)
      }
    }
  }
}
#endif
