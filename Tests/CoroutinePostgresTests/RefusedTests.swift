#if Postgres
import Coroutine
@testable import CoroutinePostgres
import Testing

private struct Failure: Error {}

/// What is refused at its beginning changes nothing of what others do.
@Suite(.timeLimit(.minutes(10)))
struct RefusedTests {
  @Test func `a transaction on a busy connection leaves the statement alone that runs there`() async throws {
    try await withPool { db in
      let key = Int.random(in: 1...1_000_000_000)
      try db.withConnection { holder in
        try holder.run("select pg_advisory_lock(\(key))")
        try db.withConnection { connection in
          try co_scope { scope in
            let running = scope.launch { try connection.run("select pg_advisory_lock(\(key))").count }
            let waiting: SQL = "select count(*) from pg_locks where pid = \(connection.backend) and not granted"
            while try db.first(waiting, as: Int.self) == 0 { try co_delay(.milliseconds(2)) }
            #expect(kind { try connection.transaction { _ in } } == .busy)
            try holder.run("select pg_advisory_unlock(\(key))")
            #expect(try running.join() == 1)
          }
          #expect(try connection.run("select 1").count == 1)
        }
      }
    }
  }

  @Test func `a transaction on a connection that was given back leaves the next holder alone`() async throws {
    var options = PostgresPool.Options()
    options.connections = 0...1
    try await withPool(options) { db in
      let kept = try db.withConnection { $0 }
      try db.withConnection { next in
        #expect(kind { try kept.transaction { _ in } } == .ended)
        let rows = try next.run("select 1")
        #expect(rows.count == 1)
      }
      #expect(db.statistics.opened == 1)
    }
  }

  @Test(arguments: [
    "postgres://u:se%zzcret@h/db", "postgres://u:secret%00x@h/db", "postgres://u:sec ret@[::1/db", "u:secret@h",
    "postgres://u:se/cret@h/db", "password='secret", "password=sec secret", "host=a\0 b",
    "postgres://u:sec=ret@h/db?secret=1", "postgres://u:secret@h:x/db",
  ])
  func `a description that cannot be read is refused, and its error has no password`(_ text: String) {
    let error = #expect(throws: PostgresError.self) { _ = try PostgresPool(text) }
    let shown = "\(error.map { "\($0)" } ?? "")"
    #expect(shown.contains("cannot be read"), "\(shown)")
    for part in ["secret", "cret", "ret@", "\"se"] {
      #expect(!shown.contains(part) || text.hasSuffix("?secret=1"), "\(shown)")
    }
  }

  @Test func `a cancelled coroutine that begins a transaction inside of another one ends neither`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.withConnection { connection in
          try connection.transaction { t in
            try t.run("insert into \(table) values (1)")
            let inner = co_launch(start: .immediate) {
              try? co_delay(.seconds(600))
              try connection.transaction { _ in }
            }
            inner.cancel(Failure())
            #expect(throws: Failure.self) { try inner.join() }
          }
        }
        #expect(try db.all("select a from \(table)", as: Int.self) == [1])
      }
    }
  }

  @Test func `a column with the name of a kind of table changes no session`() throws {
    for text: SQL in ["create index on w (temp)", "create table w (temp int)", "create view v as select temp from w"] {
      #expect(try !text.changesSession(), "\(text)")
    }
    for text: SQL in ["create temp table w (a int)", "create or replace temporary view v as select 1"] {
      #expect(try text.changesSession(), "\(text)")
    }
    #expect(try !("select 1 -- x\r where \(true)" as SQL).changesSession())
  }

  @Test func `another encoding ends the connection on every route, before a text is garbled`() async throws {
    try await withPool { db in
      let function = uniqueName("f")
      try db.run(
        """
        create function \(identifier: function)() returns int language plpgsql as
          $$ begin perform set_config('client_encoding', 'LATIN1', false); return 1; end $$
        """
      )
      defer { _ = try? db.run("drop function \(identifier: function)") }
      let call: SQL = "select \(identifier: function)()"
      try db.withTable("a text") { table in
        func insert(_ session: some PostgresSession) throws { try session.run("insert into \(table) values (\("ä"))") }
        for text in ["set client_encoding = 'LATIN1'", "set names 'LATIN1'", call] as [SQL] {
          #expect(kind { try db.run(text) } == .lost, "\(text)")
          try insert(db)
          let end = kind {
            try db.withConnection { connection in
              #expect(kind { try connection.run(text) } == .lost)
              try insert(connection)
            }
          }
          #expect(end == .lost, "\(text)")
        }
        for text in ["set local client_encoding = 'LATIN1'", call] as [SQL] {
          // The second time it is prepared, and sent together with the beginning.
          for _ in 0..<2 {
            let end = kind {
              try db.transaction { t in
                #expect(kind { try t.run(text) } == .lost)
                try insert(t)
              }
            }
            #expect(end == .lost, "\(text)")
          }
        }
        #expect(kind { try db.transaction { t in try t.forEach(call) { _ in } } } == .lost)
        #expect(kind { try db.pipeline.run(call) } == .lost)
        try insert(db.pipeline)
        // What it is already.
        try db.run("set client_encoding = 'UTF8'")
        #expect(try db.all("select a from \(table)", as: String.self) == ["ä", "ä", "ä", "ä"])
      }
    }
  }

  @Test func `control of a transaction is refused on every route, and nothing of others is lost`() async throws {
    let controls: [SQL] = [
      "begin", " -- a\n/* b /* c */ */ BEGIN", ";start transaction", "commit", "end", "abort", "rollback",
      "rollback to savepoint a", "savepoint a", "release savepoint a", "rollback and chain", "prepare transaction 'a'",
      "commit prepared 'a'", "-- a\rcommit",
    ]
    try await withPool { db in
      try db.withTable("a int") { table in
        let insert: SQL = "insert into \(table) values (1)"
        for control in controls {
          #expect(state { try db.run(control) } == "25000", "\(control)")
          try co_scope { scope in
            for _ in 0..<8 { scope.launch { try db.pipeline.run(insert) } }
            #expect(state { try db.pipeline.run(control) } == "25000", "\(control)")
          }
          let inside = Result {
            try db.transaction { t in
              try t.run(insert)
              #expect(state { try t.run(control) } == "25000")
              #expect(state { try t.forEach(control) { _ in } } == "25000")
              #expect(state { try t.copyIn(control) { _ in } } == "25000")
              #expect(state { try t.copyOut(control) { _ in } } == "25000")
              #expect(state { try t.savepoint { _ = try $0.run(control) } } == "25000")
              try t.run(insert)
              throw Failure()
            }
          }
          #expect(throws: Failure.self) { try inside.get() }
          try db.withConnection { connection in
            #expect(state { try connection.run(control) } == "25000", "\(control)")
          }
        }
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == 8 * controls.count)
        // One of the pool, and one of its pipeline.
        #expect(db.statistics.opened == 2 && db.statistics.discarded == 0)
      }
    }
  }

  @Test func `no statement runs outside of its transaction if that was ended under it`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        let swallowed = kind {
          try db.transaction { t in
            try t.run("insert into \(table) values (1)")
            try t.wire?.command("rollback")
            #expect(kind { try t.run("insert into \(table) values (2)") } == .ended)
            #expect(kind { try t.savepoint { _ in } } == .ended)
          }
        }
        #expect(swallowed == .ended)
        try db.withConnection { connection in
          for _ in 0..<2 {
            try connection.transaction { t in
              #expect(kind { try connection.transaction { _ in } } == .busy)
              try t.run("insert into \(table) values (3)")
              #expect(kind { try connection.transaction { _ in } } == .busy)
              try t.run("insert into \(table) values (4)")
            }
          }
        }
        #expect(try db.all("select a from \(table) order by a", as: Int.self) == [3, 3, 4, 4])
      }
    }
  }

  @Test func `a copy on a pipeline is refused, and the statements beside it are not`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        let copies: [SQL] = ["copy \(table) from stdin", " /* a /* b */ */ -- c\n COPY \(table) to stdout"]
        for copy in copies {
          try co_scope { scope in
            let others = (0..<8).map { number in
              scope.launch { try db.pipeline.first("select \(number), pg_sleep(0.01)", as: Int.self) }
            }
            #expect(kind { try db.pipeline.run(copy) } == .server)
            for (number, other) in others.enumerated() {
              let answer = try other.join()
              #expect(answer == number)
            }
          }
        }
      }
      #expect(try db.pipeline.first("select 'copy'", as: String.self) == "copy")
    }
  }

  // The text of a statement ends there for the server, also before a condition.
  @Test(arguments: [0, 256])
  func `a zero byte in a text is refused on every route, and nothing of it is run`(cache: Int) async throws {
    var options = PostgresPool.Options()
    options.statementCache = cache
    try await withPool(options) { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) select * from generate_series(1, 10)")
        let texts: [SQL] = [
          SQL(unchecked: "delete from \(table) where true\0 and a = 0"), "delete from \(table) where true\0 and a = 0",
          "delete from \(table) where true \(SQL(unchecked: "or true\0 ")) and a = \(5)",
          SQL(unchecked: "delete from \(table) -- \0\n where a = $1", [0]), "\0delete from \(table)",
          "select * from \(identifier: "a\0b")",
          "copy (delete from \(table) returning a) to stdout\0", "copy \(table) from stdin\0 where a = 0",
        ]
        let routes: [(SQL) throws -> Void] = [
          { try db.run($0) }, { try db.pipeline.run($0) }, { text in try db.withConnection { _ = try $0.run(text) } },
          { text in try db.transaction { _ = try $0.run(text) } },
          { text in try db.transaction { t in try t.savepoint { _ = try $0.run(text) } } },
          { text in try db.transaction { t in try t.forEach(text) { _ in } } },
          { text in try db.transaction { t in _ = try t.copyIn(text) { try $0(Array("1\n".utf8)) } } },
          { text in try db.transaction { t in try t.copyOut(text) { _ in } } },
        ]
        for text in texts {
          for (number, route) in routes.enumerated() {
            // A pipeline refuses copies first.
            let expected: PostgresError.Kind = number == 1 && text.isCopy ? .server : .decoding
            #expect(kind { try route(text) } == expected, "\(number): \(text)")
            // Swallowed, inside of a transaction that is committed.
            try db.transaction { t in
              #expect(kind { try t.run(text) } == .decoding)
              let one = try t.first("select 1", as: Int.self)
              #expect(one == 1)
            }
            #expect(try db.first("select count(*) from \(table)", as: Int.self) == 10, "\(number): \(text)")
          }
        }
        #expect(db.statistics.opened == 2 && db.statistics.discarded == 0)
      }
    }
  }

  @Test func `a zero byte in a name or a password is refused, and not taken for its end`() async throws {
    try await withPool { db in
      #expect(kind { try db.listen("a\0b") } == .decoding)
      #expect(kind { _ = try db.run("select 1 as a")[0].get("a\0b", as: Int.self) } == .decoding)
      #expect(state { try db.transaction { try $0.notify("a\0b") } } == "22021")
      var options = PostgresPool.Options()
      options.password = { "right\0wrong" }
      options.acquireTimeout = .seconds(600)
      let other = try PostgresPool(try Cluster.shared.get().address, options: options)
      let error = #expect(throws: PostgresError.self) { try other.run("select 1") }
      #expect(error?.kind == .cannotConnect && error.map { "\($0)".contains("right") } == false)
    }
  }

  @Test func `a copy gets copies alone, and what is none is not run`() async throws {
    try await withPool { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) select * from generate_series(1, 10)")
        let texts: [SQL] = [
          "delete from \(table)", "-- copy\n delete from \(table) -- stdin",
          "with d as (delete from \(table) returning a) select 'copy to stdout' from d", "deallocate all", "",
          "/* copy stdin */ select 1", "copy \(table) from program 'echo 7'", "copy \(table) to program 'cat >&2'",
        ]
        for text in texts {
          try db.transaction { t in
            try t.run("select a from \(table) where a = \(1)")
            #expect(kind { try t.copyIn(text) { _ in } } == .server, "\(text)")
            #expect(kind { try t.copyOut(text) { _ in } } == .server, "\(text)")
            // Nothing was sent, so the transaction goes on.
            try t.run("select a from \(table) where a = \(1)")
          }
          #expect(try db.first("select count(*) from \(table)", as: Int.self) == 10, "\(text)")
        }
        // Copies of the other direction or of the server's own, which it has begun or run when it answers; and one that
        // has ended before the body throws. The error is swallowed.
        let others: [(PostgresTransaction) throws -> Void] = [
          { try $0.copyIn("copy (delete from \(table) returning a) to stdout") { _ in } },
          { try $0.copyOut("copy \(table) from stdin") { _ in } },
          { try $0.copyIn("copy \(table) from program 'echo 7 # stdin'") { _ in } },
          { try $0.copyOut("copy (delete from \(table) returning a) to program 'cat >/dev/null # stdout'") { _ in } },
          { try $0.copyOut("copy (delete from \(table) returning a) to stdout") { _ in throw Failure() } },
        ]
        for (number, other) in others.enumerated() {
          let end = kind {
            try db.transaction { t in
              #expect(throws: (any Error).self, "\(number)") { try other(t) }
              #expect(state { try t.run("select 1") } == "25P02", "\(number)")
            }
          }
          #expect(end == .rolledBack, "\(number)")
          #expect(try db.first("select count(*) from \(table)", as: Int.self) == 10, "\(number)")
        }
        #expect(db.statistics.discarded == 0)
      }
    }
  }

  // libpq tells that a password is missing by no code.
  @Test func `a password that is missing is an error at once`() async throws {
    let cluster = try Cluster()
    try cluster.run(
      """
      cd '\(cluster.folder)' && printf 'host all guest 127.0.0.1/32 scram-sha-256\\n' | cat - data/pg_hba.conf >hba &&
      cat hba >data/pg_hba.conf
      """
    )
    try await withPool(on: cluster) { admin in
      try admin.run("create role guest login password 'right'")
      try admin.run("select pg_reload_conf()")
      var options = PostgresPool.Options()
      options.acquireTimeout = .seconds(600)
      let tcp = "host=127.0.0.1 port=\(cluster.port) dbname=postgres user=guest passfile=\(cluster.folder)/none"
      let db = try PostgresPool(tcp, options: options)
      defer { co_shield { try? db.close() } }
      // Until the server has read the file anew, it lets everybody in.
      while true {
        let end = kind { try db.withConnection { try $0.run("select pg_terminate_backend(\($0.backend))") } }
        if end != .lost {
          #expect(end == .cannotConnect)
          break
        }
      }
    }
  }
}
#endif
