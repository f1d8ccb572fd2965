#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation

/// A server of the tests' own, in a folder that is removed at its end.
///
/// A shell starts the server, as the user postgres if the tests run as root, and stops it when its standard input
/// ends: so also when the process of the tests is killed.
final class Cluster: @unchecked Sendable {
  // Sound because the fields are constants, but `shell`, which `start` and `stop` replace; one test uses a cluster of
  // its own, and the shared one is never stopped.
  let folder: String
  let port: Int
  private var shell: Process?
  private var input: Pipe?

  /// One for all tests that do not stop or pause their server.
  static let shared = Result { try Cluster() }

  static func bin(_ program: String) -> String {
    let versions = (try? FileManager.default.contentsOfDirectory(atPath: "/usr/lib/postgresql")) ?? []
    let newest = versions.max { (Int($0) ?? 0) < (Int($1) ?? 0) } ?? "15"
    return "/usr/lib/postgresql/\(newest)/bin/\(program)"
  }
  private static let asUser = getuid() == 0 ? "setpriv --reuid=postgres --regid=postgres --clear-groups" : ""

  init(settings: [String] = []) throws {
    var template = Array("/tmp/co-pg-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { throw POSIXError(.EIO) }
    folder = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    port = try Self.freePort()
    let lines = [
      "listen_addresses='127.0.0.1'", "port=\(port)", "unix_socket_directories='\(folder)'", "fsync=off",
      "max_connections=80", "logging_collector=off", "deadlock_timeout=50ms", "log_min_messages=panic",
    ]
    try run(
      """
      if [ "$(id -u)" = 0 ]; then chown postgres '\(folder)'; fi
      cd '\(folder)' && chmod 755 . &&
      \(Self.asUser) '\(Self.bin("initdb"))' -D data -U postgres -A trust -N --no-locale -E UTF8 >initdb.log 2>&1
      """
    )
    let text = (lines + settings).joined(separator: "\n") + "\n"
    let file = try FileHandle(forWritingTo: URL(fileURLWithPath: folder + "/data/postgresql.conf"))
    try file.seekToEnd()
    try file.write(contentsOf: Data(text.utf8))
    try file.close()
    try start()
  }

  deinit {
    stop("immediate")
    try? FileManager.default.removeItem(atPath: folder)
  }

  /// Starts the server, and returns when it accepts connections.
  func start(waits: Bool = true) throws {
    let shell = Process()
    let input = Pipe()
    let output = Pipe()
    shell.executableURL = URL(fileURLWithPath: "/bin/sh")
    shell.arguments = [
      "-c",
      """
      cd '\(folder)'
      \(Self.asUser) '\(Self.bin("postgres"))' -D '\(folder)/data' </dev/null >>log 2>&1 &
      server=$!
      \(waits ? "until '\(Self.bin("pg_isready"))' -q -h '\(folder)' -p \(port); do sleep 0.05; done" : "")
      echo ready
      read line
      kill -QUIT $server 2>/dev/null
      wait $server
      [ "$line" = stop ] || rm -rf '\(folder)'
      """,
    ]
    shell.standardInput = input
    shell.standardOutput = output
    try shell.run()
    _ = output.fileHandleForReading.readData(ofLength: 6)
    (self.shell, self.input) = (shell, input)
  }

  /// Stops the server: "fast", "immediate".
  func stop(_ mode: String) {
    _ = try? run("\(Self.asUser) '\(Self.bin("pg_ctl"))' -D '\(folder)/data' -m \(mode) -w stop >/dev/null 2>&1")
    input?.fileHandleForWriting.write(Data("stop\n".utf8))
    shell?.waitUntilExit()
    (shell, input) = (nil, nil)
  }

  /// The main process of the server.
  var postmaster: Int32 {
    let text = (try? String(contentsOfFile: folder + "/data/postmaster.pid", encoding: .utf8)) ?? ""
    return Int32(text.prefix { $0.isNumber }) ?? -1
  }

  func run(_ script: String) throws {
    let shell = Process()
    shell.executableURL = URL(fileURLWithPath: "/bin/sh")
    shell.arguments = ["-c", script]
    try shell.run()
    shell.waitUntilExit()
    if shell.terminationStatus != 0 { throw ScriptError(script: script, status: shell.terminationStatus) }
  }

  struct ScriptError: Error { var script: String, status: Int32 }

  /// How libpq finds it: over the Unix socket.
  var address: String { "host=\(folder) port=\(port) user=postgres dbname=postgres" }

  static func freePort() throws -> Int {
    let socket = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    defer { close(socket) }
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let port = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer -> UInt16 in
        bind(socket, pointer, length) == 0 && getsockname(socket, pointer, &length) == 0
          ? UInt16(bigEndian: pointer.withMemoryRebound(to: sockaddr_in.self, capacity: 1) { $0.pointee.sin_port }) : 0
      }
    }
    guard port != 0 else { throw POSIXError(.EADDRINUSE) }
    return Int(port)
  }
}

/// Runs `body` in a coroutine, with a pool on the shared cluster that is closed afterwards.
func withPool<R: Sendable>(
  _ options: PostgresPool.Options = .init(),
  on cluster: Cluster? = nil,
  _ body: @escaping @Sendable (PostgresPool) throws -> R
) async throws -> R {
  let cluster = try cluster ?? Cluster.shared.get()
  return try await co_launch {
    let pool = try PostgresPool(cluster.address, options: options)
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

  /// Waits until a statement that contains `text` is in the state, in another backend.
  func waitForBackend(_ text: String, state: String = "active") throws {
    let query: SQL = """
      select count(*) from pg_stat_activity where query like \("%" + text + "%") and state = \(state)
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
