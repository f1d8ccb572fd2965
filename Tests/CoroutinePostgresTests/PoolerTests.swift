#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

/// pgbouncer in transaction mode in front of the shared cluster.
private final class Pooler {
  let folder: String
  let port: Int
  private let process = Process()
  private let input = Pipe()

  static let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].first {
    FileManager.default.isExecutableFile(atPath: $0)
  }

  init(_ cluster: Cluster, _ program: String) throws {
    folder = cluster.folder + "/pooler"
    port = try Cluster.freePort()
    let settings = """
      [databases]
      postgres = host=\(cluster.folder) port=\(cluster.port) user=postgres dbname=postgres pool_size=3
      [pgbouncer]
      listen_addr = 127.0.0.1
      listen_port = \(port)
      unix_socket_dir =
      auth_type = any
      pool_mode = transaction
      max_client_conn = 200
      logfile = \(folder)/log
      pidfile = \(folder)/pid
      """
    try cluster.run("mkdir -p '\(folder)' && chmod 777 '\(folder)'")
    try settings.write(toFile: folder + "/ini", atomically: true, encoding: .utf8)
    process.executableURL = URL(fileURLWithPath: "/bin/sh")
    // Ended with the tests, also if they are killed.
    let user = getuid() == 0 ? "-u postgres" : ""
    process.arguments = ["-c", "'\(program)' -q \(user) '\(folder)/ini' & read line; kill $!; wait $!"]
    process.standardInput = input
    try process.run()
  }

  deinit {
    try? input.fileHandleForWriting.close()
    process.waitUntilExit()
  }
}

@Suite(.timeLimit(.minutes(10)))
struct PoolerTests {
  @Test(.enabled(if: Pooler.program != nil, "pgbouncer is not installed"))
  func `behind a pooler in transaction mode statements, transactions and cancellations work`() async throws {
    let pooler = try Pooler(Cluster.shared.get(), Pooler.program!)
    var options = PostgresPool.Options()
    (options.isPooledByTransaction, options.connections) = (true, 0...20)
    options.statementTimeout = .seconds(30)
    let address = "host=127.0.0.1 port=\(pooler.port) user=postgres dbname=postgres"
    try await co_launch { [options] in
      let db = try PostgresPool(address, options: options)
      defer { co_shield { try? db.close() } }
      try co_scope { scope in
        for number in 0..<20 {
          scope.launch {
            for round in 0..<20 {
              #expect(try db.first("select \(number) + \(round)", as: Int.self) == number + round)
              let sum = try db.transaction { t in
                try t.run("set local work_mem = '1MB'")
                return try t.first("select \(number) * \(round)", as: Int.self)
              }
              #expect(sum == number * round)
            }
          }
        }
      }
      try db.transaction { t in
        var count = 0
        try t.forEach("select generate_series(1, 1000)", batch: 100) { _ in count += 1 }
        #expect(count == 1000)
      }
      #expect(throws: TimeoutError.self) { try co_timeout(.seconds(1)) { _ = try db.run("select pg_sleep(60)") } }
      #expect(try db.first("select 1", as: Int.self) == 1)
      #expect(throws: PostgresError.self) { try db.pipeline.run("select 1") }
      #expect(throws: PostgresError.self) { try db.listen("x") }
    }.value
    withExtendedLifetime(pooler) {}
  }
}
#endif
