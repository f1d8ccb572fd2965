#if Postgres
import Coroutine
import CoroutinePostgres
import Dispatch
import Testing

private func options(_ most: Int, _ change: (inout PostgresPool.Options) -> Void = { _ in }) -> PostgresPool.Options {
  var options = PostgresPool.Options()
  options.connections = 0...most
  change(&options)
  return options
}

@Suite(.timeLimit(.minutes(10)))
struct PoolTests {
  @Test func `coroutines get a connection in the order of asking`() async throws {
    try await withPool(options(1)) { db in
      let order = ThreadMutex<[Int]>([])
      // One queue for all: a coroutine is counted as waiting a moment before it is in the line.
      let queue = DispatchQueue(label: "askers")
      try co_scope { scope in
        try db.withConnection { _ in
          for number in 0..<20 {
            scope.launch(on: queue) { try db.withConnection { _ in order.withLock { $0.append(number) } } }
            while db.statistics.waiting <= number { try co_yield() }
          }
        }
      }
      #expect(order.withLock { $0 } == Array(0..<20))
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `a coroutine that waits for too long learns which coroutine holds the connection`() async throws {
    try await withPool(options(1) { $0.acquireTimeout = .seconds(5) }) { db in
      // The holder is not to wait for its connection: a busy machine may need as long for one.
      while kind({ try db.run("select 1") }) == .cannotConnect {}
      try co_scope { scope in
        let taken = FairSemaphore(0, limit: .unbounded)
        let done = FairSemaphore(0, limit: .unbounded)
        scope.launch(name: "the holder") {
          try db.withConnection { _ in
            taken.release()
            try done.acquire()
          }
        }
        try taken.acquire()
        do {
          try db.run("select 1")
          Issue.record("it got a connection")
        } catch let error as PostgresError {
          #expect(error.kind == .poolTimeout)
          #expect(error.description.contains("the holder"))
        }
        #expect(db.statistics.inUse == 1 && db.statistics.longestUse > .zero)
        done.release()
      }
      #expect(db.statistics.waiting == 0)
      try db.run("select 1")
    }
  }

  @Test func `a cancelled waiter has taken nothing`() async throws {
    try await withPool(options(1)) { db in
      try co_scope { scope in
        try db.withConnection { _ in
          let waiter = scope.launch { #expect(throws: (any Error).self) { try db.run("select 1") } }
          while db.statistics.waiting == 0 { try co_yield() }
          waiter.cancel()
          _ = try? waiter.join()
        }
      }
      #expect(try db.first("select 1", as: Int.self) == 1)
    }
  }

  @Test func `what a body has set on its connection is reset`() async throws {
    // Long enough for any statement of a busy machine.
    try await withPool(options(1) { $0.statementTimeout = .seconds(420) }) { db in
      // Tests that run beside this one have temporary tables as well.
      let mine = uniqueName("mine")
      try db.withConnection { connection in
        try connection.run("set search_path = nowhere")
        try connection.run("create temporary table \(identifier: mine) (a int)")
        try connection.run("select pg_advisory_lock(1)")
        #expect(try connection.first("select pg_backend_pid()", as: Int32.self) == connection.backend)
      }
      #expect(try db.first("show search_path", as: String.self) == "\"$user\", public")
      #expect(try db.first("show statement_timeout", as: String.self) == "7min")
      #expect(try db.first("select count(*) from pg_class where relname = \(mine)", as: Int.self) == 0)
      #expect(db.statistics.opened == 1 && db.statistics.discarded == 0)
    }
  }

  @Test func `what a statement of the pool, a pipeline or a transaction leaves in the session is reset`() async throws {
    let procedure = uniqueName("sets")
    let changes: [SQL] = [
      "call \(identifier: procedure)()",
      "set work_mem = '77MB'", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "reset work_mem",
      "/* set */ create temp table mine (a int)", "select 1 as a into temporary mine",
      "create temporary view mine as select 1 as a", "select pg_advisory_lock(\(1))",
      "with a as (select pg_try_advisory_lock(1)) select * from a", "select set_config('work_mem', \("77MB"), false)",
      "create table pg_temp.mine (a int)", "with a as (select 1) select * into temp mine from a",
      "create function pg_temp.mine() returns int language sql as 'select 1'",
      "prepare mine as select 1", "listen mine", "discard plans", "set role pg_read_all_data",
      "update pg_settings set setting = '77MB' where name = 'work_mem'",
      "do $$ begin perform set_config('work_mem', '77MB', false); end $$",
      "explain (analyze) create temp table mine as select 1 as a",
      "explain analyze select set_config('role', 'pg_monitor', false)",
    ]
    let left: SQL = """
      select current_setting('work_mem'), current_setting('default_transaction_read_only'), current_user::text,
        (select count(*) from pg_class where relname = 'mine' and relnamespace = pg_my_temp_schema()),
        (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()), (select count(*) from pg_listening_channels()), current_setting('statement_timeout'),
        (select count(*) from pg_prepared_statements where name = 'mine'), pg_backend_pid()
      """
    typealias Left = (String, String, String, Int, Int, Int, String, Int, Int32)
    try await withPool(options(1) { $0.statementTimeout = .seconds(420) }) { db in
      try db.run(
        """
        create procedure \(identifier: procedure)() language plpgsql as
          $$ begin perform set_config('work_mem', '77MB', false); end $$
        """
      )
      defer { _ = co_shield { try? db.run("drop procedure \(identifier: procedure)()") } }
      let pipeline = try db.pipeline.first("select pg_backend_pid()", as: Int32.self)
      let pool = try db.first("select pg_backend_pid()", as: Int32.self)
      func expectNothing(after change: SQL) throws {
        for (session, backend) in [(db as any PostgresSession, pool), (db.pipeline, pipeline)] {
          let all = try #require(try session.first(left, as: Left.self))
          #expect((all.0, all.1, all.2, all.3, all.4, all.5) == ("4MB", "off", "postgres", 0, 0, 0), "\(change)")
          #expect(all.6 == "7min" && all.7 == 0 && all.8 == backend, "\(change)")
        }
      }
      for change in changes {
        try db.run(change)
        try expectNothing(after: change)
        try db.pipeline.run(change)
        try expectNothing(after: change)
        try db.transaction { _ = try $0.run(change) }
        try expectNothing(after: change)
        try db.withConnection { _ = try $0.run(change) }
        try expectNothing(after: change)
      }
      // Of a transaction alone, and so no reason to reset anything.
      let prepared: SQL = "select count(*) from pg_prepared_statements where statement like \("select 'kept'%")"
      try db.run("select 'kept'")
      try db.transaction { t in
        try t.run("set local work_mem = '77MB'")
        try t.run("select set_config('work_mem', \("78MB"), true)")
        try t.run("select pg_advisory_xact_lock(1)")
        try t.run("create temp table mine (a int) on commit drop")
      }
      #expect(try db.first(prepared, as: Int.self) == 1)
    }
  }

  @Test func `a connection is busy with one statement, and ended after its body`() async throws {
    let other = try PostgresPool(Cluster.shared.get().address)
    try await withPool(options(1)) { db in
      let text = uniqueName("slow")
      let kept = try db.withConnection { connection in
        try co_scope { scope in
          // Each may find the other one's statement under way, until the child's runs.
          let child = scope.launch {
            let slow = SQL(unchecked: "select pg_sleep(60) /* \(text) */")
            while kind({ try connection.run(slow) }) == .busy { try co_delay(.milliseconds(1)) }
          }
          var own: PostgresError.Kind?
          while own == nil {
            own = kind { try connection.run("select 1") }
            try co_delay(.milliseconds(1))
          }
          #expect(own == .busy)
          try other.waitForBackend(text)
          child.cancel()
          try? child.join()
        }
        try connection.run("select 1")
        return connection
      }
      try other.close()
      #expect(kind { try kept.run("select 1") } == .ended)
    }
  }

  @Test func `a closed pool lets no statement begin, and waits for those that run`() async throws {
    let other = try PostgresPool(Cluster.shared.get().address)
    try await withPool(options(1)) { db in
      let key = Int.random(in: 1...1_000_000_000)
      try other.withConnection { holder in
        try holder.run("select pg_advisory_lock(\(key))")
        try co_scope { scope in
          let running = scope.launch { try db.first("select 7 from pg_advisory_lock(\(key))", as: Int.self) }
          while db.statistics.inUse == 0 { try co_yield() }
          let waiting = scope.launch { kind { try db.run("select 1") } }
          while db.statistics.waiting == 0 { try co_yield() }
          let closing = scope.launch { try db.close(drain: .seconds(600)) }
          #expect(try waiting.join() == .ended)
          // Time for a close that should not return.
          for _ in 0..<100 { try co_yield() }
          #expect(db.statistics.inUse == 1 && !closing.isFinished)
          try holder.run("select pg_advisory_unlock(\(key))")
          try closing.join()
          #expect(db.statistics.inUse == 0 && db.statistics.idle == 0)
          #expect(try running.join() == 7)
        }
      }
      try other.close()
      #expect(kind { try db.run("select 1") } == .ended)
      #expect(db.statistics.opened == db.statistics.closed)
    }
  }

  @Test func `a close that has waited for long enough ends what runs`() async throws {
    let other = try PostgresPool(Cluster.shared.get().address)
    try await withPool(options(1)) { db in
      let text = uniqueName("slow")
      try co_scope { scope in
        let running = scope.launch { state { try db.run("select pg_sleep(60) /* \(SQL(unchecked: text)) */") } }
        try other.waitForBackend(text)
        try db.close(drain: .milliseconds(20))
        try other.close()
        #expect(try running.join() == "57014")
      }
    }
  }

  @Test func `outside of a coroutine nothing is sent`() throws {
    let db = try PostgresPool(Cluster.shared.get().address)
    #expect(throws: CoroutineError.notInCoroutine) { try db.run("select 1") }
    #expect(throws: CoroutineError.notInCoroutine) { try db.pipeline.run("select 1") }
    #expect(db.statistics.opened == 0)
  }

  @Test func `old connections are closed and replaced`() async throws {
    try await withPool(options(4) { ($0.maxIdle, $0.connections) = (.milliseconds(50), 1...4) }) { db in
      try co_scope { scope in for _ in 0..<4 { scope.launch { try db.run("select pg_sleep(0.05)") } } }
      while db.statistics.idle > 1 { try co_delay(.milliseconds(5)) }
      #expect(db.statistics.idle == 1 && db.statistics.closed == db.statistics.opened - 1)
    }
    try await withPool(options(1) { $0.maxLifetime = .milliseconds(1) }) { db in
      try db.run("select pg_sleep(0.01)")
      try db.run("select 1")
      #expect(db.statistics.opened == 2)
    }
  }

  @Test func `the cache keeps its limit, and an outdated statement is prepared again`() async throws {
    try await withPool(options(1) { $0.statementCache = 2 }) { db in
      for number in 0..<10 { try db.run(SQL(unchecked: "select \(number)")) }
      #expect(try db.first("select count(*) from pg_prepared_statements", as: Int.self)! <= 3)
      try db.withTable("a int") { table in
        try db.run("insert into \(table) values (1)")
        let query: SQL = "select * from \(table)"
        #expect(try db.run(query).columns == ["a"])
        try db.run("alter table \(table) add column b text")
        #expect(try db.run(query).columns == ["a", "b"])
        try db.run("deallocate all")
        #expect(try db.run(query).columns == ["a", "b"])
        // The same text with another type is another statement.
        #expect(try db.first("select \(1)", as: Int.self) == 1)
        #expect(try db.first("select \("x")", as: String.self) == "x")
      }
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `what a failed or a cancelled transaction has not prepared leaves no name behind`() async throws {
    try await withPool(options(1) { $0.statementCache = 4 }) { db in
      for round in 0..<10 {
        for number in 0..<4 { try db.run(SQL(unchecked: "select \(round) + \(number)")) }
        _ = try? db.transaction { t in
          #expect(state { try t.run("select 1 / 0") } == "22012")
          for number in 0..<4 { #expect(state { try t.run(SQL(unchecked: "select \(round) - \(number)")) } == "25P02") }
        }
        for number in 0..<4 { try db.run(SQL(unchecked: "select \(round) * \(number)")) }
        let running = ThreadMutex<Job<Void>?>(nil)
        let job: Job<Void> = co_launch {
          while running.withLock({ $0 }) == nil { try co_yield() }
          try db.transaction { t in
            try t.run("select 1")
            running.withLock { $0 }?.cancel()
            for number in 0..<4 { _ = try? t.run(SQL(unchecked: "select \(round) / \(number + 1)")) }
          }
        }
        running.withLock { $0 = job }
        _ = try job.outcome()
      }
      #expect(try db.first("select count(*) from pg_prepared_statements", as: Int.self)! <= 5)
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `coroutines share the connections that a full server gives`() async throws {
    let cluster = try Cluster.shared.get()
    let role = uniqueName("few")
    try await withPool { _ = try $0.run("create role \(identifier: role) login connection limit 2") }
    try await co_launch {
      let address = cluster.address.replacing("user=postgres", with: "user=\(role)")
      let db = try PostgresPool(address, options: options(8) { $0.acquireTimeout = .seconds(300) })
      // Both are there before the others ask: of those that come at once the server may refuse more than it must.
      try db.withConnection { _ in try db.run("select 1") }
      let ended = ThreadMutex(0)
      try co_scope { scope in
        for _ in 0..<8 {
          scope.launch {
            // Until all have had one: those that have a connection take it again at once.
            var isFirst = true
            while ended.withLock({ $0 }) < 8 {
              try db.run("select pg_sleep(0.005)")
              if isFirst { ended.withLock { $0 += 1 } }
              isFirst = false
            }
          }
        }
      }
      #expect(db.statistics.opened == 2)
      try db.close()
    }.value
  }

  @Test func `a connection without its prepared statements goes on, also with transactions`() async throws {
    try await withPool(options(1)) { db in
      func transfer(_ session: PostgresConnection) throws -> Int? {
        try session.transaction { try $0.first("select \(7)", as: Int.self) }
      }
      for text in ["discard all", "deallocate all", "select 1"] {
        try db.withConnection { connection in
          for _ in 0..<3 { #expect(try transfer(connection) == 7) }
          try connection.run(SQL(unchecked: text))
          // At once: no statement fails because another one has removed what was prepared.
          for _ in 0..<3 { #expect(try transfer(connection) == 7) }
        }
      }
      for _ in 0..<2 { try db.pipeline.run("select \(1)") }
      try db.pipeline.run("deallocate all")
      #expect(try db.pipeline.first("select \(1)", as: Int.self) == 1)
    }
  }

  @Test func `a COMMIT whose question was removed by a function says that it can be tried again, once`() async throws {
    try await withPool(options(1)) { db in
      try db.withTable("a int") { table in
        try db.transaction { t in try t.run("insert into \(table) values (1)") }
        var failed: PostgresError?
        do {
          try db.transaction { t in
            try t.run("insert into \(table) values (2)")
            try t.run("do $$ begin execute 'deallocate all'; end $$")
          }
        } catch let error as PostgresError { failed = error }
        #expect(failed?.kind == .server && failed?.isRetryable == true)
        try db.transaction(retries: 3) { t in try t.run("insert into \(table) values (\(3))") }
        try db.transaction { t in try t.run("insert into \(table) values (\(4))") }
        #expect(try db.all("select a from \(table) order by a", as: Int.self) == [1, 3, 4])
        #expect(db.statistics.opened == 1)
      }
    }
  }
}
#endif
