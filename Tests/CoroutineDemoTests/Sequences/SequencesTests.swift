#if Demo
import ArgumentParser
import Foundation
import Testing

@testable import CoroutineDemo

/// The program as a process.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo sequences` {
  @Test func `shows numbers, trees and orders`() async throws {
    let end = try await DemoProcess.run(["sequences", "fibonacci", "fringe", "permutations"])
    #expect(end.status == 0, "\(end.errors)")
    #expect(
      end.output == """
        fibonacci: 0 1 1 2 3 5 8 13 21 34
        fringe: coroutine and coroutine agree, seen after 9 leaves
        fringe: coroutine and cocoon differ, seen after 3 leaves
        fringe: generator and general differ, seen after 7 leaves
        permutations: abc acb bac bca cba cab

        """
    )
  }

  @Test func `the last Fibonacci number that fits is the end`() async throws {
    let end = try await DemoProcess.run(["sequences", "fibonacci", "--count", "93"])
    #expect(end.output.hasSuffix(" 4660046610375530309 7540113804746346429\n"))
    #expect(end.output.split(separator: " ").count == 94)
  }

  private static let round = [
    "Hello 乌卡卡, How are you?", "Today is Friday", "So yestday is Thursday", "And tomorrow is Saturday", "Over",
  ]

  private static func said(_ lines: [String]) -> String { lines.map { "robot: \($0)\n" }.joined() }

  @Test func `the robot says its five sentences and is done, when nobody tells it anything`() async throws {
    let end = try await DemoProcess.run(["sequences", "robot"])
    #expect(end.status == 0)
    #expect(end.output == Self.said(Self.round + ["==talk done=="]))
  }

  @Test func `told to go on after Over, it begins again, and words before that change nothing`() async throws {
    let end = try await DemoProcess.run(["sequences", "robot"], input: "what?\n\n\n\nagain\n\n\n\n\nOver\n")
    #expect(end.output == Self.said(Self.round + Self.round + ["==talk done=="]))
    let others = try await DemoProcess.run(["sequences", "robot", "--name", "Ada"])
    #expect(others.output.hasPrefix("robot: Hello Ada, How are you?\n"))
  }

  @Test func `without a part, all are shown, and the robot comes last`() async throws {
    let end = try await DemoProcess.run(["sequences"])
    #expect(end.status == 0, "\(end.errors)")
    let parts = end.output.split(separator: "\n").compactMap { $0.split(separator: ":").first }
    #expect(
      parts == ["fibonacci", "fringe", "fringe", "fringe", "permutations", "parser", "parser"]
        + Array(repeating: "robot", count: 6)
    )
  }

  @Test func `the parser stops reading when its consumer does`() async throws {
    let end = try await DemoProcess.run(["sequences", "parser", "--stop", "3"])
    #expect(end.status == 0, "\(end.errors)")
    let line = try #require(end.output.split(separator: "\n").first)
    let found = try #require(line.wholeMatch(of: /parser: 3 of (\d+) books, (\d+) of (\d+) bytes read, (\d+) cents/))
    #expect(Int(found.1) ?? 0 > 10_000)
    #expect(Int(found.2) ?? .max < 200_000)
    #expect(Int(found.3) ?? 0 >= 2_000_000)
    #expect(Int(found.4) == (0..<3).map { BookList.book($0).cents }.reduce(0, +))
  }

  /// `CO_STRESS` scales the size.
  @Test func `a document of 200 megabytes is read in flat memory`() async throws {
    let factor = ProcessInfo.processInfo.environment["CO_STRESS"].flatMap { Double($0) } ?? 1
    let megabytes = max(20, Int(200 * factor))
    let end = try await DemoProcess.run(["sequences", "parser", "--size", "\(megabytes)"])
    #expect(end.status == 0, "\(end.errors)")
    let read = try #require(end.output.firstMatch(of: /parser: (\d+) of (\d+) books, (\d+) of (\d+) bytes read/))
    #expect(read.1 == read.2)
    #expect(read.3 == read.4)
    #expect(Int(read.4) ?? 0 >= megabytes * 1_000_000)
    let memory = try #require(end.output.firstMatch(of: /at most (\d+) kB more while reading/))
    #expect(Int(memory.1) ?? .max < 16_000)
  }

  @Test(arguments: [
    (["lunch"], "'lunch' is invalid for '<parts>"),
    (["--count", "94"], "--count is a number from 0 to 93, the last one that fits, not 94"),
    (["--count", "-1"], "--count is a number from 0 to 93, the last one that fits, not -1"),
    (["--letters", "abcdefghi"], "--letters takes at most eight letters, not 9"),
    (["--size", "0"], "--size is a number of megabytes from 1 to 100000, not 0"),
    (["--stop", "-2"], "--stop is a number of books, not -2"),
  ])
  func `a bad argument is a usage error that names it`(arguments: [String], sentence: String) async throws {
    let end = try await DemoProcess.run(["sequences"] + arguments)
    #expect(end.status == 64)
    #expect(end.errors.contains(sentence), "\(end.errors)")
  }

  @Test func `a result that cannot be written is said`() async throws {
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let end = try await DemoProcess.run(["sequences", "fibonacci"], output: full)
    #expect(end.status == 74)
    #expect(end.errors == "CoroutineDemo: cannot write to standard output: No space left on device.\n")
  }

  @Test func `a temporary directory that is not there is said`() async throws {
    let end = try await DemoProcess.run(["sequences", "parser"], environment: ["TMPDIR": "/nowhere"])
    #expect(end.status == 74)
    #expect(end.errors == "CoroutineDemo: cannot write to the temporary directory: No such file or directory.\n")
  }

  @Test func `the help names every exit code`() {
    let help = SequencesCommand.helpMessage()
    for status in [CoroutineDemo.ExitStatus.usage, .software, .notWritten] { #expect(help.contains("\(status.code)")) }
  }
}
#endif
