import Foundation
import Testing

@testable import Coroutine

/// The environment variables of the tools: what a program gets without a line of code.
@Suite("COROUTINE_DUMP and COROUTINE_RECORD", .timeLimit(.minutes(10)))
struct EnvironmentTests {
  @Test func `COROUTINE_DUMP makes SIGUSR2 write the stacks in groups`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_DUMP", "SIGUSR2", 1)
      var ends: [Int32] = [-1, -1]
      let gate = Gate()
      let jobs = (0..<7).map { _ in co_launch(name: "waits") { try gate.pass() } }
      settle(7)
      #expect(pipe(&ends) == 0)
      let standardError = dup(STDERR_FILENO)
      dup2(ends[1], STDERR_FILENO)
      kill(getpid(), SIGUSR2)
      var (text, byte): (String, UInt8) = ("", 0)
      while !text.contains("\"waits\" on "), read(ends[0], &byte, 1) == 1 {
        text.unicodeScalars.append(Unicode.Scalar(byte))
      }
      dup2(standardError, STDERR_FILENO)
      #expect(text.hasPrefix("7 live coroutines in 1 group\n"), "\(text)")
      #expect(text.contains(#/\n7 waiting, .* for a promise \(Promise<\(\)> 0x/#), "\(text)")
      gate.open()
      for job in jobs { try await job.value }
    }
  }

  @Test func `with both variables the signal writes the queues, the ended and a recording as well`() async throws {
    let folder = FileManager.default.temporaryDirectory.appending(path: "coroutine-request-\(UUID())").path()
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      [folder = folder as String] in
      setenv("COROUTINE_DUMP", "SIGUSR2", 1)
      setenv("COROUTINE_RECORD", folder, 1)
      let lines = Channel<Int>(8).named("lines")
      #expect(lines.trySend(1) == .sent)
      try await co_launch(name: "brief") {}.value
      kill(getpid(), SIGUSR2)
      while !FileManager.default.fileExists(atPath: folder + "/coroutine-\(getpid())-request-1.json") { sched_yield() }
      withExtendedLifetime(lines) {}
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("\nQueues that hold something:\n  channel \"lines\": 1 of 8 value"), "\(text)")
    #expect(text.contains(#/\nThe last that have ended:\n  #\d+ "brief" ended \d+ m?s ago, launched at /#), "\(text)")
    #expect(try FileManager.default.contentsOfDirectory(atPath: folder).count == 1)
  }

  @Test func `without the variable the signal keeps its effect`() async {
    await #expect(processExitsWith: .signal(SIGUSR2)) {
      try await co_launch {}.value
      // To the process, because this thread may block the signal.
      kill(getpid(), SIGUSR2)
      while true { sched_yield() }
    }
  }

  @Test(arguments: ["COROUTINE_DUMP", "COROUTINE_RECORD"])
  func `another value ends the process with a sentence`(_ name: String) async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [name] in
      setenv(name, "yes\n", 1)
      try await co_launch {}.value
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("\(name) is 'yes\\n'. Set it to "), "\(text)")
  }

  /// The kernel tells a program that it has more rights than who has started it.
  @Test(.enabled(if: Rights.canBeGiven && !isSanitized, "only root can give a program the rights of another group"))
  func `a program with more rights than who has started it ignores the variables`() throws {
    for variable in ["COROUTINE_DUMP", "COROUTINE_RECORD"] {
      let program = try Rights(folderOfTests() + "/CountedWaits")
      func run() throws -> Process.TerminationReason {
        try program.run(["1", "workers"], [variable: "neither of its values"]).reason
      }
      #expect(try run() == .uncaughtSignal)
      program.giveThoseOfAnotherGroup()
      #expect(try run() == .exit)
    }
  }

  @Test func `COROUTINE_RECORD=1 begins with the recorder on`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_RECORD", "1", 1)
      let job = co_launch { try co_yield() }
      let id = job.id
      try await job.value
      let text = String(decoding: CoroutineRuntime.recording(), as: UTF8.self)
      #expect(text.contains("#\(id) CoroutineKernelTests/EnvironmentTests.swift:"), "\(text.prefix(2_000))")
    }
  }

  @Test(arguments: ["", "0"]) func `an empty variable, and 0, leave the recorder off`(_ value: String) async {
    await #expect(processExitsWith: .success) { [value] in
      setenv("COROUTINE_RECORD", value, 1)
      setenv("COROUTINE_DUMP", "", 1)
      try await co_launch {}.value
      #expect(!String(decoding: CoroutineRuntime.recording(), as: UTF8.self).contains("EnvironmentTests"))
    }
  }
}

/// A copy of a program that may have more rights than who starts it.
private final class Rights {
  private let path = FileManager.default.temporaryDirectory.appending(path: "coroutine-rights-\(UUID())").path()

  /// Made by another program: a child that a test forks meanwhile would have the open file, and nothing runs a file
  /// that is open for writing.
  init(_ program: String) throws { _ = try Self.run("/bin/cp", [program, path]) }

  deinit { try? FileManager.default.removeItem(atPath: path) }

  func giveThoseOfAnotherGroup() { _ = (chown(path, 0, 1), chmod(path, 0o2755)) }

  func run(
    _ arguments: [String],
    _ environment: [String: String] = [:]
  ) throws -> (reason: Process.TerminationReason, output: String) {
    try Self.run(path, arguments, environment)
  }

  private static func run(
    _ path: String,
    _ arguments: [String],
    _ environment: [String: String] = [:]
  ) throws -> (reason: Process.TerminationReason, output: String) {
    let (process, pipe) = (Process(), Pipe())
    process.executableURL = URL(filePath: path)
    (process.arguments, process.environment) = (arguments, environment)
    (process.standardOutput, process.standardError) = (pipe, FileHandle.nullDevice)
    try process.run()
    let output = pipe.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    return (process.terminationReason, String(decoding: output, as: UTF8.self))
  }

  /// Whether the system lets this user, and the file system lets any program.
  static let canBeGiven: Bool = {
    guard let program = try? Rights("/usr/bin/id") else { return false }
    program.giveThoseOfAnotherGroup()
    return (try? program.run(["-g"]).output) == "1\n"
  }()
}
