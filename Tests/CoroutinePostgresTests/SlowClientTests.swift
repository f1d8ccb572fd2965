#if Postgres
import Coroutine
import CoroutineNet
import CoroutinePostgres
import Testing

/// A server's answers that a client is slow to read.
@Suite(.timeLimit(.minutes(10)))
struct SlowClientTests {
  /// Forwards one connection to the cluster; what the server says can be held back until the server closes.
  private final class Proxy: Sendable {
    private let listener: Listener
    private let isHolding = ThreadMutex(false)
    var port: UInt16 { listener.address.port ?? 0 }

    init() throws { listener = try Listener.bind(.loopback(port: 0)) }

    func hold() { isHolding.withLock { $0 = true } }

    func serve(_ cluster: Cluster) throws {
      let client = try listener.accept()
      let server = try Connection.connect(to: .loopback(port: UInt16(cluster.port)))
      defer {
        client.close()
        server.close()
      }
      try co_scope { scope in
        let forward = scope.launch { try? Self.copy(client, server) }
        defer { forward.cancel() }
        var held: [UInt8] = []
        while case let bytes = try server.read(upTo: 65_536), !bytes.isEmpty {
          held += bytes
          if isHolding.withLock({ $0 }) { continue }
          try client.write(held)
          held = []
        }
        // In one piece, so that one read of the client gets all of it.
        try client.write(held)
      }
    }

    private static func copy(_ from: Connection, _ to: Connection) throws {
      while case let bytes = try from.read(upTo: 65_536), !bytes.isEmpty { try to.write(bytes) }
    }
  }

  @Test func `the reason for the end of a connection is known, if it is read together with an answer`() async throws {
    let cluster = try Cluster.shared.get()
    try await co_launch {
      let proxy = try Proxy()
      var options = PostgresPool.Options()
      // Not before the second statement has been sent, on a busy machine as well.
      options.idleInTransactionTimeout = .seconds(2)
      let db = try PostgresPool(
        "host=127.0.0.1 port=\(proxy.port) user=postgres dbname=postgres sslmode=disable",
        options: options
      )
      try co_scope { scope in
        let serving = scope.launch { try? proxy.serve(cluster) }
        defer { serving.cancel() }
        let error = #expect(throws: PostgresError.self) {
          try db.transaction { t in
            try t.run("select 1")
            proxy.hold()
            // Its answer and the server's good-bye come together.
            #expect(try t.first("select 2", as: Int.self) == 2)
            try t.run("select 3")
          }
        }
        #expect(error?.kind == .lost && error?.sqlState?.rawValue == "25P03" && error?.isRetryable == true)
      }
    }.value
  }
}
#endif
