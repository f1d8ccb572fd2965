#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

struct SecureTests {
  private static let openssl = ["/usr/bin/openssl"].first { FileManager.default.isExecutableFile(atPath: $0) }

  @Test(.enabled(if: openssl != nil, "openssl is not installed"))
  func `connections with TLS and SCRAM serve many coroutines`() async throws {
    let cluster = try Cluster()
    try cluster.run(
      """
      cd '\(cluster.folder)' &&
      openssl req -new -x509 -days 2 -nodes -subj /CN=localhost -out data/server.crt -keyout data/server.key 2>/dev/null &&
      if [ "$(id -u)" = 0 ]; then chown postgres data/server.crt data/server.key; fi && chmod 600 data/server.key &&
      printf 'hostssl all guest 127.0.0.1/32 scram-sha-256\\n' | cat - data/pg_hba.conf >hba && cat hba >data/pg_hba.conf
      """
    )
    try await co_launch {
      let admin = try PostgresPool(cluster.address)
      try admin.run("create role guest login password 'secret'")
      try admin.run("alter system set ssl = on")
      try admin.run("select pg_reload_conf()")
      while try admin.first("show ssl", as: String.self) != "on" { try co_delay(.milliseconds(5)) }
      try admin.close()
      var options = PostgresPool.Options()
      options.connections = 0...8
      let certificate = "sslmode=verify-full sslrootcert='\(cluster.folder)/data/server.crt'"
      let address = "host=localhost port=\(cluster.port) user=guest password=secret dbname=postgres \(certificate)"
      let db = try PostgresPool(address, options: options)
      try co_scope { scope in
        for number in 0..<24 {
          scope.launch {
            let query: SQL = "select \(number), ssl from pg_stat_ssl where pid = pg_backend_pid()"
            let (echo, isSecure) = try #require(try db.first(query, as: (Int, Bool).self))
            #expect(echo == number && isSecure)
            let bytes = [UInt8](repeating: UInt8(number), count: 1 << 20)
            #expect(try db.first("select \(bytes)", as: [UInt8].self) == bytes)
          }
        }
      }
      #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(50)) { _ = try db.run("select pg_sleep(60)") } }
      #expect(try db.first("select 1", as: Int.self) == 1)
      try db.close()
    }.value
  }
}
#endif
