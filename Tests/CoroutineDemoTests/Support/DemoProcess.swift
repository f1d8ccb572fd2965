#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

/// A running CoroutineDemo in a separate process: tests can wait for its output, and send it signals.
///
/// Each output is read by a separate thread until its end, so that the process never waits for a reader. Every wait
/// here is for an event; the tests' time limit ends a wait for an event that never comes.
final class DemoProcess: Sendable {
  struct End {
    var status: Int32
    var output: String
    var errors: String

    /// The number of times that the cleanup has run.
    var cleanups: Int { errors.components(separatedBy: "Cleaned up: ").count - 1 }
  }

  private let process = Process()
  private let output: Transcript
  private let errors: Transcript
  private let status = Event<Int32>()

  /// Starts the executable that was built with these tests, with an environment without a terminal.
  ///
  /// `limit` is the argument of `ulimit`, which is called before.
  init(
    _ arguments: [String],
    environment additions: [String: String] = [:],
    terminal: PseudoTerminal? = nil,
    output replaced: FileHandle? = nil,
    input: String? = nil,
    limit: String? = nil
  ) throws {
    var environment = ProcessInfo.processInfo.environment
    for name in ["TERM", "NO_COLOR", "COLORTERM", "http_proxy", "no_proxy", "NO_PROXY"] { environment[name] = nil }
    environment.merge(additions) { $1 }
    environment.merge(terminal?.environment ?? [:]) { $1 }
    process.environment = environment
    process.executableURL = limit == nil ? Self.executable : URL(filePath: "/bin/sh")
    let shell = limit.map { ["-c", "ulimit \($0); exec \"$0\" \"$@\"", Self.executable.path] } ?? []
    process.arguments = shell + Self.patient(arguments)
    process.standardInput = try input.map(Self.pipe) ?? FileHandle.nullDevice
    process.terminationHandler = { [status] in status.happen($0.terminationStatus) }

    guard let terminal else {
      let outputs = Pipe()
      let errors = Pipe()
      if let replaced { process.standardOutput = replaced } else { process.standardOutput = outputs }
      process.standardError = errors
      self.output = Transcript(replaced == nil ? outputs.fileHandleForReading : nil)
      self.errors = Transcript(errors.fileHandleForReading)
      try process.run()
      return
    }
    process.standardOutput = terminal.slave
    process.standardError = terminal.slave
    output = Transcript(terminal.master)
    errors = Transcript(nil)
    try process.run()
    // The reader sees the end only when all writers are closed.
    try terminal.slave.close()
  }

  /// A test that gives up leaves no process behind.
  deinit {
    if process.isRunning { kill(process.processIdentifier, SIGKILL) }
  }

  /// Runs to the end.
  static func run(
    _ arguments: [String],
    environment: [String: String] = [:],
    terminal: PseudoTerminal? = nil,
    output: FileHandle? = nil,
    input: String? = nil
  ) async throws -> End {
    await (try DemoProcess(arguments, environment: environment, terminal: terminal, output: output, input: input)).end()
  }

  /// Returns the process's input: a pipe that contains the whole text, which must fit into a pipe.
  private static func pipe(_ text: String) throws -> Any {
    precondition(text.utf8.count <= 4_096, "more would wait for a reader")
    let pipe = Pipe()
    try pipe.fileHandleForWriting.write(contentsOf: Data(text.utf8))
    try pipe.fileHandleForWriting.close()
    return pipe
  }

  /// Returns when standard error contains `text`.
  func says(_ text: String) async throws {
    try #require(await errors.contains(text), "it ended without saying '\(text)': \(errors.text)")
  }

  /// The number of the process.
  var id: Int32 { process.processIdentifier }

  /// What standard error contains up to now.
  var errorsSoFar: String { errors.text }

  /// Returns when standard output, or the terminal, contains `text`.
  func shows(_ text: String) async throws {
    try #require(await output.contains(text), "it ended without showing '\(text)'")
  }

  /// The peak memory in bytes; the process must be running.
  var peakMemory: Int {
    get throws {
      let status = try String(contentsOfFile: "/proc/\(process.processIdentifier)/status", encoding: .utf8)
      let line = try #require(status.firstMatch(of: /VmHWM:\s+(\d+) kB/))
      return try #require(Int(line.1)) << 10
    }
  }

  func send(_ signal: Int32) {
    kill(process.processIdentifier, signal)
  }

  func end() async -> End {
    await End(status: status.value, output: output.whole, errors: errors.whole)
  }

  /// The arguments with a long timeout for a login, which gives up after 30 s otherwise: early on a crowded machine.
  private static func patient(_ arguments: [String]) -> [String] {
    let isGiven = arguments.contains { $0.hasPrefix("--timeout") }
    if arguments.first != "login" || isGiven { return arguments }
    return ["login", "--timeout", "600"] + arguments.dropFirst()
  }

  /// Beside the tests' own executable in the build folder.
  private static var executable: URL {
    guard let tests = Bundle.main.executableURL else { preconditionFailure("the tests run from an executable") }
    return tests.deletingLastPathComponent().appending(path: "CoroutineDemo")
  }
}
#endif
