#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

let openssl = ["/usr/bin/openssl"].first { FileManager.default.isExecutableFile(atPath: $0) }

extension Cluster {
  /// Lets the role guest connect by TLS and SCRAM alone, and returns an address for it that checks the certificate.
  func addSecureGuest() throws -> String {
    try run(
      """
      cd '\(folder)' &&
      openssl req -new -x509 -days 2 -nodes -subj /CN=localhost -out data/server.crt -keyout data/server.key 2>/dev/null &&
      if [ "$(id -u)" = 0 ]; then chown postgres data/server.crt data/server.key; fi && chmod 600 data/server.key &&
      printf 'hostssl all guest 127.0.0.1/32 scram-sha-256\\n' | cat - data/pg_hba.conf >hba && cat hba >data/pg_hba.conf
      """
    )
    let admin = try PostgresPool(address)
    try admin.run("create role guest login password 'secret'")
    try admin.run("alter system set ssl = on")
    try admin.run("select pg_reload_conf()")
    while try admin.first("show ssl", as: String.self) != "on" { try co_delay(.milliseconds(5)) }
    try admin.close()
    let certificate = "sslmode=verify-full sslrootcert='\(folder)/data/server.crt'"
    return "host=localhost port=\(port) user=guest password=secret dbname=postgres \(certificate)"
  }
}

@Suite(.timeLimit(.minutes(10)))
struct SecureTests {
  @Test(.enabled(if: openssl != nil, "openssl is not installed"))
  func `connections with TLS and SCRAM serve many coroutines`() async throws {
    let cluster = try Cluster()
    try await co_launch {
      let address = try cluster.addSecureGuest()
      var options = PostgresPool.Options()
      options.connections = 0...8
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
      #expect(throws: TimeoutError.self) { try co_timeout(.seconds(1)) { _ = try db.run("select pg_sleep(60)") } }
      #expect(try db.first("select 1", as: Int.self) == 1)
      try db.close()
      // A token in place of the address's password, asked for each connection.
      let asked = ThreadMutex(0)
      options.password = {
        try co_yield()
        return asked.withLock { count in
          count += 1
          return count == 2 ? "expired" : "secret"
        }
      }
      let wrong = address.replacingOccurrences(of: "password=secret", with: "password=wrong")
      let renewed = try PostgresPool(wrong, options: options)
      try renewed.withConnection { _ in
        #expect(state { try renewed.run("select 1") } == "28P01")
        let one = try renewed.first("select 1", as: Int.self)
        #expect(one == 1)
      }
      #expect(asked.withLock { $0 } == 3)
      try renewed.close()
      options.password = { throw CancellationError() }
      let none = try PostgresPool(wrong, options: options)
      #expect(throws: CancellationError.self) { try none.run("select 1") }
      try none.close()
    }.value
  }
}
#endif
