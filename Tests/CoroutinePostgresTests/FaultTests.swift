#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

@Suite(.timeLimit(.minutes(10)))
struct FaultTests {
  @Test func `what cannot connect says why, with the server's code`() async throws {
    let cluster = try Cluster(settings: ["max_connections=4", "superuser_reserved_connections=0"])
    try cluster.run(
      """
      cd '\(cluster.folder)' && printf 'host all guest 127.0.0.1/32 scram-sha-256\\n' | cat - data/pg_hba.conf >hba &&
      cat hba >data/pg_hba.conf
      """
    )
    try await co_launch {
      var options = PostgresPool.Options()
      func state(_ address: String, within limit: Duration = .seconds(120)) throws -> String? {
        // A busy machine needs seconds for an answer.
        options.acquireTimeout = limit
        let db = try PostgresPool(address, options: options)
        defer { try? db.close() }
        do { try db.run("select 1") } catch let error as PostgresError {
          #expect(error.kind == .cannotConnect && !error.message.isEmpty)
          return error.sqlState?.rawValue ?? "none"
        }
        return nil
      }
      let admin = try PostgresPool(cluster.address)
      try admin.run("create role guest login password 'right'")
      try admin.run("select pg_reload_conf()")
      let tcp = "host=127.0.0.1 port=\(cluster.port) dbname=postgres user=guest"
      while try state(tcp + " password=wrong") == nil { try co_delay(.milliseconds(5)) }
      #expect(try state(tcp + " password=wrong") == "28P01")
      #expect(try state(tcp + " password=right") == nil)
      #expect(try state(cluster.address + " dbname=nothing") == "3D000")
      #expect(try state("host=\(cluster.folder)/nowhere", within: .milliseconds(200)) == "none")
      #expect(try state("host=name.invalid", within: .milliseconds(200)) == "none")
      #expect(try state("host=localhost port=\(cluster.port) user=postgres dbname=postgres") == nil)
      #expect(throws: PostgresError.self) { try PostgresPool("host") }
      // Full.
      try admin.withConnection { _ in
        var wide = options
        (wide.connections, wide.acquireTimeout) = (0...10, .seconds(3))
        let crowd = try PostgresPool(cluster.address, options: wide)
        let failures = ThreadMutex<[String?]>([])
        try co_scope { scope in
          let jobs = (0..<6).map { _ in
            scope.launch {
              // Without a code, the server has said nothing for as long: then it is asked again, but not for ever.
              var code: String?
              while code == nil, failures.withLock({ $0.count < 200 }) {
                do { try crowd.run("select pg_sleep(600)") } catch let error as PostgresError where !co_isCancelled {
                  code = error.sqlState?.rawValue
                  failures.withLock { $0.append(code) }
                } catch { break }
              }
            }
          }
          while failures.withLock({ $0.count < 200 && $0.allSatisfy { $0 == nil } }) { try co_delay(.milliseconds(5)) }
          for job in jobs { job.cancel() }
        }
        let codes = failures.withLock { $0 }
        #expect(codes.contains("53300") && codes.allSatisfy { $0 == "53300" || $0 == nil }, "\(codes)")
        try crowd.close()
      }
      try admin.close()
    }.value
  }

  @Test func `a connection that the server ends is lost, and replaced`() async throws {
    var options = PostgresPool.Options()
    options.connections = 0...2
    options.checkAfter = .zero
    try await withPool(options) { db in
      // While it is idle: found before its use.
      try db.withConnection { other in
        let backend = try #require(try db.first("select pg_backend_pid()", as: Int32.self))
        try other.run("select pg_terminate_backend(\(backend), 600000)")
      }
      try db.withConnection { _ in _ = try db.run("select 1") }
      #expect(try db.first("select 1", as: Int.self) == 1)
      // In a statement.
      let text = uniqueName("victim")
      try co_scope { scope in
        let job = scope.launch { () -> PostgresError? in
          do { try db.run(SQL(unchecked: "select pg_sleep(60) /* \(text) */")) } catch {
            return error as? PostgresError
          }
          return nil
        }
        try db.waitForBackend(text)
        try db.run(
          "select pg_terminate_backend(pid) from pg_stat_activity where query like \("%" + text + "%") and pid <> pg_backend_pid()"
        )
        let error = try job.join()
        #expect(error?.kind == .lost && error?.sqlState == .adminShutdown && error?.isRetryable == false)
      }
      // In a transaction, which runs again.
      var runs = 0
      try db.transaction(retries: 1) { t in
        runs += 1
        let own = try t.first("select pg_backend_pid()", as: Int32.self)!
        if runs == 1 { #expect(kind { try t.run("select pg_terminate_backend(\(own))") } == .lost) }
        try t.run("select 1")
      }
      #expect(runs == 2)
      #expect(db.statistics.discarded == 2)
    }
  }

  @Test func `the server's limits end statements and idle transactions`() async throws {
    // One limit at a time: on a crowded machine any statement may take 50 ms.
    var limited = PostgresPool.Options()
    limited.statementTimeout = .milliseconds(50)
    try await withPool(limited) { db in #expect(state { try db.run("select pg_sleep(60)") } == "57014") }
    var options = PostgresPool.Options()
    options.idleInTransactionTimeout = .milliseconds(50)
    try await withPool(options) { db in
      let error = #expect(throws: PostgresError.self) {
        try db.transaction { t in
          let backend = try #require(try t.first("select pg_backend_pid()", as: Int32.self))
          let lives: SQL = "select count(*) from pg_stat_activity where pid = \(backend)"
          while try db.first(lives, as: Int.self) != 0 { try co_delay(.milliseconds(5)) }
          try t.run("select 1")
        }
      }
      #expect(error?.kind == .lost && error?.sqlState?.rawValue == "25P03")
      let one = try db.first("select 1", as: Int.self)
      #expect(one == 1)
    }
  }

  /// Commits wait for a standby that does not exist, so each can be lost in the middle of COMMIT.
  @Test func `the outcome of a commit whose connection is lost is looked up`() async throws {
    let cluster = try Cluster(settings: ["synchronous_standby_names='nobody'", "synchronous_commit=local"])
    var options = PostgresPool.Options()
    // A busy machine needs seconds for a connection.
    (options.acquireTimeout, options.cancelTimeout) = (.seconds(120), .seconds(120))
    try await withPool(options, on: cluster) { db in
      try db.run("create table t (a int)")
      // A transaction whose first statement is prepared and writes has asked for its number then, others at COMMIT.
      func loseInCommit(_ number: Int, db: PostgresPool, writesFirst: Bool, isCancelled: Bool = false) throws {
        try co_scope { scope in
          let job = scope.launch {
            try db.withConnection { connection in
              let insert: SQL = "insert into t values (\(number))"
              try? connection.transaction { t in
                try t.run(insert)
                throw CancellationError()
              }
              try connection.transaction { t in
                if writesFirst { try t.run(insert) }
                try t.run("set local synchronous_commit = on")
                if !writesFirst { try t.run(insert) }
              }
            }
          }
          let waiting: SQL = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
          while true {
            if let pid = try db.first(waiting, as: Int32.self) {
              if isCancelled { job.cancel() }
              try db.run("select pg_terminate_backend(\(pid))")
              break
            }
            try co_delay(.milliseconds(5))
          }
          try job.join()
        }
      }
      // The server has written the commit, and ends before it says so.
      try loseInCommit(1, db: db, writesFirst: false)
      try loseInCommit(2, db: db, writesFirst: true)
      // Cancelled meanwhile: COMMIT was sent, so its outcome counts, and is asked for.
      try loseInCommit(6, db: db, writesFirst: true, isCancelled: true)
      try db.run("delete from t where a = 6")
      let rows: SQL = "select a from t order by a"
      #expect(try db.all(rows, as: Int.self) == [1, 2])
      // Behind a pooler nobody knows the number, and the code of the end may be the pooler's: it proves nothing.
      var pooled = PostgresPool.Options()
      (pooled.acquireTimeout, pooled.cancelTimeout) = (.seconds(120), .seconds(120))
      pooled.isPooledByTransaction = true
      let behind = try PostgresPool(cluster.address, options: pooled)
      defer { co_shield { try? behind.close() } }
      #expect(kind { try loseInCommit(3, db: behind, writesFirst: true) } == .commitUnknown)
      #expect(try db.all(rows, as: Int.self) == [1, 2, 3])
      // A constraint's trigger ends its own backend in COMMIT: nothing was written.
      try db.run(
        "create function die() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return new; end'"
      )
      try db.run(
        "create constraint trigger die after insert on t deferrable initially deferred for each row execute function die()"
      )
      let error = #expect(throws: PostgresError.self) {
        try db.transaction { t in _ = try t.run("insert into t values (4)") }
      }
      #expect(error?.kind == .lost && error?.isRetryable == true)
      var bodies = 0
      let unknown = kind {
        try behind.transaction(retries: 3) { t in
          bodies += 1
          try t.run("insert into t values (5)")
        }
      }
      #expect(unknown == .commitUnknown && bodies == 1)
      #expect(try db.all(rows, as: Int.self) == [1, 2, 3])
    }
  }

  @Test func `a COMMIT that the server refuses leaves a connection for the next transactions`() async throws {
    var options = PostgresPool.Options()
    options.connections = 0...1
    try await withPool(options) { db in
      let refuse = uniqueName("refuse")
      try db.withTable("a int") { table in
        // The code is that of a missing prepared statement.
        let body: SQL = "'begin raise ''no'' using errcode = ''26000''; end'"
        try db.run("create function \(identifier: refuse)() returns trigger language plpgsql as \(body)")
        try db.run(
          """
          create constraint trigger refuse after insert on \(table) deferrable initially deferred
          for each row execute function \(identifier: refuse)()
          """
        )
        for _ in 0..<3 {
          try db.transaction { t in try t.run("update \(table) set a = 1") }
          let error = #expect(throws: PostgresError.self) {
            try db.transaction { t in _ = try t.run("insert into \(table) values (1)") }
          }
          #expect(error?.sqlState?.rawValue == "26000" && error?.isRetryable == false)
          // Cancelled while the number is asked for the first time on this connection, or later.
          #expect(throws: TimeoutError.self) {
            try db.transaction { t in
              let sleeps: SQL = "delete from \(table) where (select pg_sleep(60)::text) = 'x'"
              _ = try co_timeout(.milliseconds(20)) { try t.run(sleeps) }
            }
          }
          try db.transaction { t in try t.run("delete from \(table)") }
        }
      }
      try db.run("drop function \(identifier: refuse)() cascade")
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `a commit whose outcome cannot be looked up is unknown`() async throws {
    let cluster = try Cluster(settings: ["synchronous_standby_names='nobody'", "synchronous_commit=local"])
    var options = PostgresPool.Options()
    options.acquireTimeout = .seconds(5)
    try await withPool(on: cluster) { [options] other in
      try other.run("create table t (a int)")
      let db = try PostgresPool(cluster.address, options: options)
      defer { co_shield { try? db.close(drain: .zero) } }
      // A busy machine needs seconds for a connection.
      while kind({ try db.run("select 1") }) == .cannotConnect {}
      try co_scope { scope in
        let job = scope.launch {
          kind {
            try db.transaction { t in
              try t.run("set local synchronous_commit = on")
              try t.run("insert into t values (1)")
            }
          }
        }
        while try other.first("select count(*) from pg_stat_activity where wait_event = 'SyncRep'", as: Int.self) == 0 {
          try co_delay(.milliseconds(5))
        }
        try co_blocking { cluster.stop("immediate") }
        #expect(try job.join() == .commitUnknown)
        #expect(kind { try db.run("select 1") } != nil)
        try co_blocking { try cluster.start() }
      }
      while kind({ try db.run("select 1") }) == .cannotConnect {}
      #expect(try db.first("select 1", as: Int.self) == 1)
    }
  }

  @Test func `a pool waits for a server that starts, and outlives its restarts`() async throws {
    let cluster = try Cluster()
    try await withPool(on: cluster) { db in
      try db.run("create table t (a int)")
      let isDone = ThreadMutex(false)
      let committed = ThreadMutex(0)
      let unknown = ThreadMutex(0)
      try co_scope { scope in
        for _ in 0..<8 {
          scope.launch {
            while !isDone.withLock({ $0 }) {
              do {
                try db.transaction { t in _ = try t.run("insert into t values (1)") }
                committed.withLock { $0 += 1 }
              } catch let error as PostgresError {
                #expect(error.kind == .lost || error.kind == .commitUnknown || error.kind == .cannotConnect)
                if error.kind == .commitUnknown { unknown.withLock { $0 += 1 } }
              }
            }
          }
        }
        // After a crash, the server gives the number of a transaction that was cut off to another one.
        for mode in ["fast", "immediate", "immediate", "immediate", "immediate"] {
          let before = committed.withLock { $0 }
          while committed.withLock({ $0 }) < before + 50 { try co_delay(.milliseconds(5)) }
          try co_blocking {
            cluster.stop(mode)
            try cluster.start(waits: false)
          }
        }
        let before = committed.withLock { $0 }
        while committed.withLock({ $0 }) < before + 50 { try co_delay(.milliseconds(5)) }
        isDone.withLock { $0 = true }
      }
      let rows = try db.first("select count(*) from t", as: Int.self)!
      let least = committed.withLock { $0 }
      #expect(rows >= least && rows <= least + unknown.withLock { $0 })
    }
  }

  @Test func `a server that accepts and says nothing costs its time limit`() async throws {
    let silent = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    defer { close(silent) }
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let port = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer -> UInt16 in
        _ = bind(silent, pointer, length)
        _ = listen(silent, 64)
        _ = getsockname(silent, pointer, &length)
        return UInt16(bigEndian: pointer.withMemoryRebound(to: sockaddr_in.self, capacity: 1) { $0.pointee.sin_port })
      }
    }
    try await co_launch {
      for mode in ["disable", "require"] {
        var options = PostgresPool.Options()
        options.acquireTimeout = .milliseconds(100)
        let db = try PostgresPool("host=127.0.0.1 port=\(port) sslmode=\(mode)", options: options)
        #expect(kind { try db.run("select 1") } == .cannotConnect)
      }
    }.value
  }
}
#endif
