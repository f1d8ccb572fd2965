#if Postgres
import Coroutine
import CoroutineNet
@testable import CoroutinePostgres
import Foundation
import Testing

/// Servers that say nothing, have become others, or have changed under what was prepared.
@Suite(.timeLimit(.minutes(10)))
struct OutageTests {
  @Test(arguments: ["connect_timeout=1", "connect_timeout=1 target_session_attrs=prefer-standby", ""])
  func `a silent first host is given up for the next one`(_ more: String) async throws {
    try await co_launch {
      // Nobody accepts: the kernel connects, and no byte comes.
      let silent = try Listener.bind(.loopback(port: 0))
      let cluster = try Cluster.shared.get()
      var options = PostgresPool.Options()
      // Of it the first one gets a second, or five without a limit of the address. The other one may need some.
      options.acquireTimeout = .seconds(120)
      let hosts = "host=127.0.0.1,\(cluster.folder) port=\(silent.address.port ?? 0),\(cluster.port)"
      let db = try PostgresPool("\(hosts) user=postgres dbname=postgres \(more)", options: options)
      let one = try db.first("select 1", as: Int.self)
      #expect(one == 1 && db.statistics.opened == 1)
      try db.close()
      silent.close()
    }.value
  }

  @Test func `each address is a target with limits and signs of life, and what is given counts`() async throws {
    try await co_launch {
      let given = "host=10.0.0.1,/tmp,10.0.0.3 port=1,2,3 user=u keepalives_idle=7 connect_timeout=4"
      let targets = try Server(given).targets()
      #expect(targets.map { $0["host"] } == ["10.0.0.1", "/tmp", "10.0.0.3"])
      #expect(targets.map { $0["port"] } == ["1", "2", "3"])
      #expect(targets.allSatisfy { $0["keepalives_idle"] == "7" && $0["tcp_user_timeout"] == "30000" })
      #expect(Server.limit(targets[0], left: .seconds(30), count: 3) == .seconds(4))
      #expect(Server.limit([:], left: .seconds(30), count: 3) == .seconds(5))
      #expect(Server.limit([:], left: .seconds(4), count: 2) == .seconds(2))
      #expect(Server.limit([:], left: .seconds(30), count: 1) == .seconds(30))
      let standbys = try Server("host=10.0.0.1,10.0.0.2 target_session_attrs=prefer-standby").targets()
      #expect(standbys.map { $0["target_session_attrs"] } == ["standby", "standby", "any", "any"])
    }.value
  }

  @Test func `connections to a server that writes no more are replaced, also those of the pipeline`() async throws {
    let cluster = try Cluster()
    try await withPool(on: cluster) { admin in
      try admin.run("create table t (a int)")
      func setReadOnly(_ value: SQL, _ sessions: [any PostgresSession]) throws {
        try admin.withConnection { connection in
          try connection.run("set default_transaction_read_only = off")
          try connection.run("alter system set default_transaction_read_only = \(value)")
          try connection.run("select pg_reload_conf()")
        }
        let setting: SQL = "select current_setting('default_transaction_read_only')"
        for session in sessions {
          while try session.first(setting, as: String.self) != "\(value)" { try co_delay(.milliseconds(2)) }
        }
      }
      for route in 0..<3 {
        let db = try PostgresPool(cluster.address + " target_session_attrs=read-write")
        let sessions = [db as any PostgresSession, db.pipeline]
        func write() throws {
          let insert: SQL = "insert into t values (\(route))"
          if route == 2 { try db.transaction { _ = try $0.run(insert) } } else { try sessions[route].run(insert) }
        }
        for session in sessions { try session.run("select 1") }
        // A second one that is idle, and leads to the same server.
        try db.withConnection { _ in try db.run("select 1") }
        try write()
        try setReadOnly("on", sessions)
        // A transaction that is not to write says nothing of the server.
        let before = db.statistics.closed
        #expect(state { try db.transaction(readOnly: true) { _ = try $0.run("insert into t values (9)") } } == "25006")
        #expect(db.statistics.closed == before)
        #expect(state { try write() } == "25006")
        try setReadOnly("off", [admin])
        try write()
        if route != 1 { #expect(db.statistics.idle == 1 && db.statistics.closed == before + 2) }
        if route == 1 { while db.statistics.closed == before { try co_delay(.milliseconds(1)) } }
        try db.close()
      }
      #expect(try admin.all("select a from t order by a", as: Int.self) == [0, 0, 1, 1, 2, 2])
    }
  }

  @Test func `the pipeline's connections are replaced when they are old, and no statement notices`() async throws {
    var options = PostgresPool.Options()
    (options.pipelines, options.maxLifetime) = (2, .milliseconds(20))
    try await withPool(options) { db in
      let answers = ThreadMutex(0)
      try co_scope { scope in
        for number in 0..<16 {
          scope.launch {
            while db.statistics.closed < 8 {
              let echo = try db.pipeline.first("select \(number) + 0", as: Int.self)
              #expect(echo == number)
              answers.withLock { $0 += 1 }
            }
          }
        }
      }
      #expect(answers.withLock { $0 } >= 8)
    }
  }

  @Test func `a type that was dropped and made again is no error of a statement that was prepared before`() async throws
  {
    var options = PostgresPool.Options()
    (options.connections, options.pipelines) = (0...1, 2)
    try await withPool(options) { db in
      try db.withTable("a text") { table in
        let mood: SQL = "\(identifier: uniqueName("mood"))"
        let statements: [SQL] = [
          "select count(*) from \(table) where a::\(mood) = \("happy")::\(mood)", "select 'sad'::\(mood)",
          "select a::\(mood) from \(table)",
          // The type is that of the column, which the server infers.
          "select \(Mood.happy) = any(enum_range(null::\(mood)))",
        ]
        let routes: [(SQL) throws -> Void] = [
          { try db.run($0) }, { try db.pipeline.run($0) },
          { statement in try db.transaction(retries: 1) { _ = try $0.run(statement) } },
          { statement in try db.transaction { t in try t.forEach(statement) { _ in } } },
        ]
        for round in 0..<3 {
          try db.run("create type \(mood) as enum ('happy', 'sad')")
          for statement in statements {
            for route in routes { try route(statement) }
            // On both connections of the pipeline.
            try co_scope { scope in for _ in 0..<8 { scope.launch { try db.pipeline.run(statement) } } }
          }
          try db.run("drop type \(mood)")
          if round == 1 { #expect(state { try db.run(statements[0]) } == "42704") }
        }
      }
    }
  }

  private enum Mood: String, PostgresEncodable { case happy }

  @Test func `a listener whose connection is silent connects again, with a gap`() async throws {
    // Half of it is the time for an answer. A busy machine may need more, and then there is a gap of a connection that
    // lives; with a longer time there is none.
    for seconds in [1, 8, 60] { if try await isHeard(.seconds(seconds)) { return } }
    Issue.record("another notification")
  }

  /// Whether a listener gets what was sent, and one gap, when its connection falls silent.
  private func isHeard(_ heartbeat: Duration) async throws -> Bool {
    var options = PostgresPool.Options()
    (options.heartbeat, options.cancelTimeout) = (heartbeat, .milliseconds(500))
    return try await withPool(options) { db in
      let channel = uniqueName("silent")
      let notifications = try db.listen(channel)
      #expect(try notifications.receive() == .gap)
      // Many questions are answered: no gap of an idle connection that lives.
      let listening: SQL = "select pid from pg_stat_activity where query like \("listen%" + channel + "%")"
      guard let backend = try db.first(listening, as: Int32.self) else { return false }
      let asked: SQL = "select query_start from pg_stat_activity where pid = \(backend)"
      let first = try db.first(asked, as: Date.self)
      while try db.first(asked, as: Date.self) == first { try co_delay(.milliseconds(5)) }
      try db.transaction { try $0.notify(channel, "one") }
      guard case .payload("one", _) = try notifications.receive() else { return false }
      // It stands, and the network says nothing.
      kill(backend, SIGSTOP)
      defer { kill(backend, SIGCONT) }
      #expect(try notifications.receive() == .gap)
      try db.transaction { try $0.notify(channel, "two") }
      guard case .payload("two", _) = try notifications.receive() else { return false }
      return true
    }
  }

  @Test func `a slow consumer is not ended by the server's limit for idle transactions`() async throws {
    var options = PostgresPool.Options()
    // Not less: on a busy machine so much may pass between two statements.
    options.idleInTransactionTimeout = .seconds(10)
    try await withPool(options) { db in
      try db.withTable("a int") { table in
        try db.run("insert into \(table) values (1)")
        let consumers: [@Sendable (PostgresTransaction) throws -> Void] = [
          { t in try t.forEach("insert into \(table) values (1) returning a") { _ in try co_delay(.seconds(12)) } },
          { t in try t.forEach("select a from \(table) limit 1", batch: 1) { _ in try co_delay(.seconds(12)) } },
          { t in try t.copyOut("copy (select a from \(table) limit 1) to stdout") { _ in try co_delay(.seconds(12)) } },
        ]
        // At once, since each takes its time.
        try co_scope { scope in
          for consumer in consumers {
            scope.launch {
              try db.transaction { t in
                try consumer(t)
                #expect(throws: CancellationError.self) {
                  try t.forEach("select a from \(table)", batch: 1) { _ in throw CancellationError() }
                }
                #expect(try t.first("show idle_in_transaction_session_timeout", as: String.self) == "10s")
              }
            }
          }
          // Without a consumer the limit counts.
          let alone = scope.launch {
            kind {
              try db.transaction { t in
                try t.run("select 1")
                try co_delay(.seconds(12))
                try t.run("select 1")
              }
            }
          }
          let end = try alone.join()
          #expect(end == .lost)
        }
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == 2)
      }
    }
  }
}
#endif
