#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation

extension Cluster {
  /// One for all tests that do not stop or pause their server.
  static let shared = Result { try Cluster() }

  /// A server for tests: reached by TCP as well, and without the safety of its files.
  convenience init(settings: [String] = []) throws {
    let lines = [
      "listen_addresses='127.0.0.1'", "fsync=off", "max_connections=80", "deadlock_timeout=50ms",
      "log_min_messages=panic",
    ]
    try self.init(lines: lines + settings, port: Self.freePort())
  }

  /// A port that nobody else gets here while this process lives: a server takes it seconds later, and at each start.
  static func freePort() throws -> Int {
    // Below those that the kernel gives to clients: other tests have thousands while the server is made.
    for port in (10_000..<32_000).shuffled().prefix(100) {
      let socket = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
      var address = sockaddr_in()
      address.sin_family = sa_family_t(AF_INET)
      address.sin_port = UInt16(port).bigEndian
      address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
      let isFree = withUnsafePointer(to: &address) {
        $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
          bind(socket, $0, socklen_t(MemoryLayout<sockaddr_in>.size)) == 0
        }
      }
      if isFree {
        // It stays bound: who asks for a port finds this one taken. A server listens there nevertheless, since it sets
        // the same option.
        var isShared: Int32 = 1
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &isShared, socklen_t(MemoryLayout<Int32>.size))
        return port
      }
      close(socket)
    }
    throw POSIXError(.EADDRINUSE)
  }
}

/// Runs `body` in a coroutine, with a pool on the shared cluster that is closed afterwards.
///
/// A machine that stands still for seconds costs no connection: the usual time for the answer to a cancellation, a
/// rollback or a reset is a minute here.
func withPool<R: Sendable>(
  _ options: PostgresPool.Options = .init(),
  on cluster: Cluster? = nil,
  _ body: @escaping @Sendable (PostgresPool) throws -> R
) async throws -> R {
  let cluster = try cluster ?? Cluster.shared.get()
  var patient = options
  if patient.cancelTimeout == PostgresPool.Options().cancelTimeout { patient.cancelTimeout = .seconds(60) }
  return try await co_launch { [patient] in
    let pool = try PostgresPool(cluster.address, options: patient)
    defer { co_shield { try? pool.close(drain: .zero) } }
    return try body(pool)
  }.value
}

/// A name for a table or a channel that no other test uses.
func uniqueName(_ prefix: String) -> String {
  prefix + "_" + UUID().uuidString.replacingOccurrences(of: "-", with: "").lowercased().prefix(12)
}

extension PostgresPool {
  /// Runs `body` with a table of the given columns, which is dropped afterwards.
  func withTable<R>(_ columns: String, _ body: (SQL) throws -> R) throws -> R {
    let name = uniqueName("t")
    let table: SQL = "\(identifier: name)"
    try run("create table \(table) (\(SQL(unchecked: columns)))")
    defer { _ = co_shield { try? run("drop table \(table)") } }
    return try body(table)
  }

  /// Waits until a statement that contains `text` is in `pg_sleep`, in another backend.
  ///
  /// A backend that is still reading its command would ignore a cancellation.
  func waitForBackend(_ text: String) throws {
    let query: SQL = """
      select count(*) from pg_stat_activity where query like \("%" + text + "%") and wait_event = 'PgSleep'
      and pid <> pg_backend_pid()
      """
    while try first(query, as: Int.self) == 0 { try co_delay(.milliseconds(2)) }
  }
}

/// The kind of the error that `body` throws.
func kind<R>(_ body: () throws -> R) -> PostgresError.Kind? {
  do {
    _ = try body()
    return nil
  } catch { return (error as? PostgresError)?.kind }
}

/// The code of the error that `body` throws.
func state<R>(_ body: () throws -> R) -> String? {
  do {
    _ = try body()
    return nil
  } catch { return (error as? PostgresError)?.sqlState?.rawValue }
}
#endif
