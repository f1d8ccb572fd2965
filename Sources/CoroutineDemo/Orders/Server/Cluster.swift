#if Postgres
import Foundation

/// A PostgreSQL server in a folder of its own; both go with this object.
///
/// The demo uses it, and the tests of CoroutinePostgres and CoroutineWork by a link to this file.
///
/// A shell starts the server, as the user postgres if this process is root, because the server refuses root. When the
/// shell's standard input ends, it stops the server and removes the folder. So nothing is left when this process ends,
/// also if it is killed.
///
///   start --> shell: initdb, if it was not; server started --accepts connections--> "ready"
///   input ends, or SIGTERM to the shell --> server stopped, folder removed
///   "stop"                              --> server stopped, folder kept: it can be started again
final class Cluster: @unchecked Sendable {
  // Sound because the fields are constants, but `shell` and `input`, which `start`, `stop` and `remove` replace: one
  // caller at a time calls these.
  let folder: String
  let port: Int
  private var shell: Process?
  private var input: Pipe?

  /// Why there is no server.
  struct Failure: Error, CustomStringConvertible {
    var description: String
  }

  /// A program of the newest server that is installed.
  static func bin(_ program: String) -> String {
    let versions = (try? FileManager.default.contentsOfDirectory(atPath: "/usr/lib/postgresql")) ?? []
    let newest = versions.max { (Int($0) ?? 0) < (Int($1) ?? 0) } ?? "15"
    return "/usr/lib/postgresql/\(newest)/bin/\(program)"
  }
  private static let asUser = getuid() == 0 ? "setpriv --reuid=postgres --regid=postgres --clear-groups" : ""

  /// Makes a server with these lines in its configuration, and starts it.
  ///
  /// Blocks the thread, for a few seconds. Its socket is in the folder.
  init(lines: [String], port: Int) throws {
    guard FileManager.default.isExecutableFile(atPath: Self.bin("initdb")) else {
      throw Failure(description: "PostgreSQL is not installed: scripts/setup postgres does it")
    }
    // Not in TMPDIR: the name of a Unix socket has 107 bytes at most.
    var template = Array("/tmp/co-pg-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { throw Failure(description: "no folder can be made in /tmp") }
    folder = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    self.port = port
    do {
      let all = ["port=\(port)", "unix_socket_directories='\(folder)'", "logging_collector=off"] + lines
      try (all.joined(separator: "\n") + "\n").write(toFile: folder + "/settings", atomically: false, encoding: .utf8)
      try start()
    } catch {
      // No deinit follows an init that throws.
      let failure = Failure(description: "\(error): \(lastLines)")
      remove()
      throw failure
    }
  }

  deinit { remove() }

  /// Starts the server, which is made before if there is none, and returns when it accepts connections.
  func start(waits: Bool = true) throws {
    let shell = Process()
    let input = Pipe()
    let output = Pipe()
    shell.executableURL = URL(fileURLWithPath: "/bin/sh")
    // The shell's own handlers: without them it would die of `echo` when this process has died meanwhile, or of a
    // signal for all of its group, and the server would stay. The server's programs get the default ones.
    //
    // A stopped process gets SIGQUIT only when it continues.
    shell.arguments = [
      "-c",
      """
      trap : PIPE INT TERM HUP
      cd '\(folder)' || exit
      if ! [ -d data ]; then
        chmod 755 . && if [ "$(id -u)" = 0 ]; then chown postgres .; fi || exit
        \(Self.asUser) '\(Self.bin("initdb"))' -D data -U postgres -A trust -N --no-locale -E UTF8 </dev/null >log 2>&1 &&
          cat settings >>data/postgresql.conf || exit
      fi
      \(Self.asUser) '\(Self.bin("postgres"))' -D '\(folder)/data' </dev/null >>log 2>&1 &
      server=$!
      \(waits ? "until '\(Self.bin("pg_isready"))' -q -h '\(folder)' -p \(port); do" : "while false; do")
        kill -0 $server 2>/dev/null || exit
        sleep 0.05
      done
      echo ready
      read line
      kill -QUIT $server 2>/dev/null
      kill -CONT $server 2>/dev/null
      while kill -0 $server 2>/dev/null; do wait $server; done
      [ "$line" = stop ] || rm -rf '\(folder)'
      """,
    ]
    shell.standardInput = input
    shell.standardOutput = output
    // What it says after this process, which reads its output, has ended.
    shell.standardError = FileHandle.nullDevice
    try shell.run()
    (self.shell, self.input) = (shell, input)
    guard try output.fileHandleForReading.read(upToCount: 6)?.count == 6 else {
      throw Failure(description: "the server has not started")
    }
  }

  /// Stops the server, which can be started again: "fast", "immediate".
  func stop(_ mode: String) {
    _ = try? run("\(Self.asUser) '\(Self.bin("pg_ctl"))' -D '\(folder)/data' -m \(mode) -w stop >/dev/null 2>&1")
    try? input?.fileHandleForWriting.write(contentsOf: Data("stop\n".utf8))
    shell?.waitUntilExit()
    (shell, input) = (nil, nil)
  }

  /// Stops the server at once, and removes the folder.
  ///
  /// Blocks the thread until both are done.
  func remove() {
    try? input?.fileHandleForWriting.close()
    shell?.waitUntilExit()
    (shell, input) = (nil, nil)
    // If no shell ran.
    try? FileManager.default.removeItem(atPath: folder)
  }

  /// The main process of the server; a number that no process has where its file cannot be read.
  var postmaster: Int32 {
    let text = (try? String(contentsOfFile: folder + "/data/postmaster.pid", encoding: .utf8)) ?? ""
    // Not -1, which means every process to kill.
    return Int32(text.prefix { $0.isNumber }) ?? .max
  }

  /// What the server or initdb has said last: two lines, since the last one may not say why.
  private var lastLines: String {
    let text = (try? String(contentsOfFile: folder + "/log", encoding: .utf8)) ?? ""
    return text.isEmpty ? "it has said nothing" : text.split(separator: "\n").suffix(2).joined(separator: "; ")
  }

  /// Runs a script to its end.
  func run(_ script: String) throws {
    let shell = Process()
    shell.executableURL = URL(fileURLWithPath: "/bin/sh")
    shell.arguments = ["-c", script]
    shell.standardInput = FileHandle.nullDevice
    try shell.run()
    shell.waitUntilExit()
    if shell.terminationStatus != 0 { throw Failure(description: "status \(shell.terminationStatus) of: \(script)") }
  }

  /// How libpq finds it: over the Unix socket.
  var address: String { "host=\(folder) port=\(port) user=postgres dbname=postgres" }
}
#endif
