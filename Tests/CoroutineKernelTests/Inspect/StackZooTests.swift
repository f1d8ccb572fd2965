import CTestSupport
import Foundation
import Testing

@testable import Coroutine

/// What the program reads of its stacks, against what gdb unwinds by the compiler's tables.
@Suite("A zoo of parked coroutines", .timeLimit(.minutes(10)), .enabled(if: !isSanitized))
struct StackZooTests {
  /// Runs gdb on a process or a program, and returns what it has printed.
  ///
  /// It takes long on a slow machine, and is waited for on a thread of its own: the other tests need the threads of the
  /// Tasks, which are few.
  private static func gdb(_ arguments: [String], _ commands: [String]) async throws -> String {
    try await onOwnThread {
      let process = Process()
      let output = Pipe()
      process.executableURL = URL(filePath: "/usr/bin/env")
      process.arguments =
        ["gdb", "-q", "-nx", "-batch", "-iex", "add-auto-load-safe-path /", "-iex", "set debuginfod enabled off"]
        + arguments + commands.flatMap { ["-ex", $0] }
      process.standardOutput = output
      process.standardError = FileHandle.nullDevice
      process.standardInput = FileHandle.nullDevice
      try process.run()
      let text = String(decoding: output.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
      process.waitUntilExit()
      return text
    }
  }

  /// Prints, for each coroutine, the return addresses of the frames that gdb sees, without those of inlined functions,
  /// by the functions of the script that the program contains.
  private static let script = """
    for c in list(coroutines()):
        found = []
        for stack in flows(Layout(Memory()), c):
            parked.select(stack)
            frame = gdb.selected_frame()
            while frame is not None:
                if frame.type() != gdb.INLINE_FRAME: found.append("%x" % frame.pc())
                frame = frame.older()
            parked.select(None)
        print("frames %d: %s" % (c.id, " ".join(found)))
    """

  private static func parse(_ line: Substring) -> (name: String, id: UInt64, stack: [String])? {
    guard let colon = line.firstIndex(of: ":") else { return nil }
    let words = line[..<colon].split(separator: " ")
    guard let id = words.last.flatMap({ UInt64($0) }) else { return nil }
    let stack = line[line.index(after: colon)...].split(separator: " ").map(String.init)
    return (words.dropLast().joined(separator: " "), id, stack)
  }

  /// The zoo as a process that has printed what it knows of its stacks.
  private final class Zoo {
    let program: URL
    let process = Process()
    private let input = Pipe()
    private(set) var text = ""

    /// Starts a copy of the program without what `strip` removes with this option.
    init(
      stripped option: String,
      in folder: URL = FileManager.default.temporaryDirectory,
      runs: Bool = false
    ) throws {
      program = folder.appending(path: "coroutine-zoo-\(getpid())-\(UUID().uuidString.prefix(8))")
      let strip = Process()
      strip.executableURL = URL(filePath: "/usr/bin/env")
      strip.arguments = ["strip", option, "-o", program.path(), folderOfTests() + "/StackZoo"]
      try strip.run()
      strip.waitUntilExit()
      let output = Pipe()
      process.executableURL = URL(filePath: "/bin/sh")
      process.arguments = ["-c", "ulimit -c unlimited; exec \"$0\"", program.path()]
      // Swift's backtracer would take minutes before the kernel writes the core.
      process.environment = ProcessInfo.processInfo.environment.merging(
        ["SWIFT_BACKTRACE": "enable=no"].merging(runs ? ["ZOO_RUNS": "1"] : [:]) { $1 }
      ) { $1 }
      process.currentDirectoryURL = folder
      process.standardInput = input
      process.standardOutput = output
      try process.run()
      while !text.contains("\nready\n") {
        let some = output.fileHandleForReading.availableData
        try #require(!some.isEmpty, "\(text)")
        text += String(decoding: some, as: UTF8.self)
      }
    }

    func end() {
      input.fileHandleForWriting.closeFile()
      process.waitUntilExit()
    }

    deinit { try? FileManager.default.removeItem(at: program) }
  }

  /// Without any symbol in the program, and from a core where the kernel writes one.
  @Test func `gdb lists the coroutines of a stripped program, and of its core`() async throws {
    let folder = FileManager.default.temporaryDirectory.appending(path: "coroutine-zoo-core-\(getpid())")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(at: folder) }
    let zoo = try Zoo(stripped: "-s", in: folder)
    let count = zoo.text.split(separator: "\n").compactMap(Self.parse).count
    #expect(count >= 33)
    let live = try await Self.gdb(["-p", "\(zoo.process.processIdentifier)"], ["info coroutines", "coroutine all bt"])
    // Where no process may look into another one, there is nothing to compare with.
    let mayLook = live.contains("coroutines with a stack")
    #expect(!mayLook || live.contains("\(count) of \(count) coroutines with a stack"), "\(live)")
    // Writes a core; nobody catches it, and a shell that has started the tests in the background does not ignore it.
    kill(zoo.process.processIdentifier, SIGXCPU)
    zoo.process.waitUntilExit()
    let files = try FileManager.default.contentsOfDirectory(atPath: folder.path())
    guard let core = files.first(where: { $0.hasPrefix("core") }) else { return }
    let arguments = [zoo.program.path(), folder.appending(path: core).path()]
    let printed = try await Self.gdb(arguments, ["info coroutines", "coroutine all bt"])
    #expect(printed.contains("\(count) of \(count) coroutines with a stack"), "\(printed)")
  }

  @Test func `gdb's backtrace has readable names and no frame of a thread, and a running coroutine its thread`()
    async throws
  {
    let zoo = try Zoo(stripped: "-g", runs: true)
    let lazy = try #require(zoo.text.split(separator: "\n").compactMap(Self.parse).first { $0.name == "lazy" })
    let commands = [
      "coroutine \(lazy.id) bt", "echo \\nrunning:\\n", "info coroutines runs",
      "python [gdb.execute('coroutine %d bt' % c.id) for c in list(coroutines()) if c.stack == 0]",
    ]
    let printed = try await Self.gdb(["-p", "\(zoo.process.processIdentifier)"], commands)
    zoo.end()
    // Where no process may look into another one, there is nothing to compare with.
    guard printed.contains("coroutines with a stack") else { return }
    let parts = printed.components(separatedBy: "\nrunning:\n")
    let frames = parts[0].split(separator: "\n").filter { $0.hasPrefix("#") && !$0.hasPrefix("#\(lazy.id) \"") }
    // The innermost frame is that of the switch, which optimised code has in its caller, and not of the thread's read.
    let first = frames.first ?? ""
    #expect(first.contains("cco_jump") || first.contains("park"), "\(printed)")
    #expect(frames.contains { $0.contains("park") } && !frames.contains { $0.contains("$s8StackZoo") }, "\(printed)")
    #expect(parts.last?.contains(#/ "runs" running on thread \d+ \(LWP \d+\), launched at /#) == true, "\(printed)")
    #expect(parts.last?.contains("closure") == true, "\(printed)")
  }

  /// gcore alone gives up a mapping at the first guard.
  ///
  /// Once in some tens of layouts it gives up one that has more than stacks; another process has another layout.
  @Test func `a core that gdb writes has the coroutines`() async throws {
    for attempt in 1...3 {
      let zoo = try Zoo(stripped: "-g")
      let count = zoo.text.split(separator: "\n").compactMap(Self.parse).count
      let core = FileManager.default.temporaryDirectory.appending(path: "coroutine-zoo-gcore-\(getpid())")
      defer { try? FileManager.default.removeItem(at: core) }
      let written = try await Self.gdb(["-p", "\(zoo.process.processIdentifier)"], ["coroutine gcore \(core.path())"])
      defer { zoo.end() }
      guard written.contains("pages of stacks written into it") else { return }
      let printed = try await Self.gdb([zoo.program.path(), core.path()], ["info coroutines", "coroutine all bt"])
      let isWhole = printed.contains("\(count) of \(count) coroutines with a stack") && printed.contains("park")
      if isWhole { return }
      #expect(attempt < 3, "\(printed)")
    }
  }

  /// Valgrind ends at the debug information of Swift.
  @Test(.enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/valgrind")))
  func `Valgrind reports nothing of a program, with the suppressions of the docs`() throws {
    let zoo = try Zoo(stripped: "-g")
    zoo.end()
    let root = URL(filePath: #filePath).deletingLastPathComponent().appending(path: "../../..")
    let process = Process()
    let output = Pipe()
    process.executableURL = URL(filePath: "/usr/bin/valgrind")
    process.arguments = [
      "--suppressions=\(root.standardized.path())/docs/valgrind.supp", "--error-exitcode=9", zoo.program.path(),
    ]
    process.environment = ProcessInfo.processInfo.environment.merging(["SWIFT_BACKTRACE": "enable=no"]) { $1 }
    process.standardInput = FileHandle.nullDevice
    process.standardOutput = FileHandle.nullDevice
    process.standardError = output
    try process.run()
    let text = String(decoding: output.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
    process.waitUntilExit()
    #expect(process.terminationStatus == 0 && text.contains("ERROR SUMMARY: 0 errors"), "\(text)")
  }

  @Test func `nearly all stacks are equal to gdb's, frame for frame, and no frame is false`() async throws {
    // Without debug information, which gdb would read for ten seconds: the tables for unwinding stay.
    let zoo = try Zoo(stripped: "-g")
    let (text, number) = (zoo.text, zoo.process.processIdentifier)
    let own = text.split(separator: "\n").compactMap(Self.parse)
    let file = FileManager.default.temporaryDirectory.appending(path: "coroutine-zoo-\(number).py")
    try Self.script.write(to: file, atomically: true, encoding: .utf8)
    defer { try? FileManager.default.removeItem(at: file) }
    let printed = try await Self.gdb(["-p", "\(number)"], ["source \(file.path())", "info coroutines"])
    zoo.end()

    var theirs: [UInt64: [String]] = [:]
    for line in printed.split(separator: "\n") where line.hasPrefix("frames ") {
      if let (_, id, stack) = Self.parse(line) { theirs[id] = stack }
    }
    // Where no process may look into another one, there is nothing to compare with.
    if theirs.isEmpty, !printed.contains("coroutines with a stack") { return }
    #expect(own.count >= 33 && printed.contains("\(own.count) of \(own.count) coroutines with a stack"), "\(printed)")
    var equal = 0
    for (name, id, stack) in own {
      // gdb shows the innermost frame first, and the function at which every stack ends.
      let reference = theirs[id, default: []].filter { !$0.isEmpty }
      if Self.matches(stack, reference) {
        equal += 1
      } else {
        let isPrefix = !stack.isEmpty && Self.matches(stack, Array(reference.prefix(stack.count)))
        #expect(isPrefix, "\(name): \(stack) is no part of \(reference)")
      }
    }
    #expect(equal * 100 >= own.count * 96, "\(equal) of \(own.count)")
  }

  /// Whether gdb's frames are these, but for the first functions of the stacks, which a snapshot leaves out.
  ///
  /// A coroutine in a generator's body has two such frames, one in two bodies has three.
  private static func matches(_ stack: [String], _ reference: [String]) -> Bool {
    var rest = stack[...]
    for address in reference where rest.first == address { rest = rest.dropFirst() }
    return rest.isEmpty && reference.first == stack.first && reference.count - stack.count <= 3
  }
}
