import CTestSupport
import Coroutine
import Foundation
import Testing

/// Each test runs a program of its own, whose main thread waits.
@Suite("A wait of the main thread", .timeLimit(.minutes(10)))
struct MainThreadTests {
  @Test(arguments: ["main actor", "switch", "sync", "callback", "promise", "neither"])
  func `serves the main queue meanwhile`(_ way: String) async throws {
    let (status, said) = try await run(way)
    #expect(status == 7)
    #expect(said == "")
  }

  // A second of the real clock.
  @Test(.tags(.realClock), arguments: ["in a block", "after dispatchMain"])
  func `in a block of the main queue, a line says after a second that it keeps the queue`(_ way: String) async throws {
    let (status, said) = try await run(way)
    #expect(status == 7)
    #expect(
      said.hasPrefix("Coroutine: blockingWait() has kept the main queue for a second, for coroutine \"slow\" (id ")
    )
    #expect(said.split(separator: "\n").count == 1)
  }

  // More than a second of the real clock, after which the wait looks whether the queue is served.
  @Test(.tags(.realClock)) func `ends with the coroutine, also where the process may not poll`() async throws {
    let (status, said) = try await run("no poll")
    #expect(status == 7, "\(said)")
  }

  // What looks for leaks at the end polls.
  private static let command = "export ASAN_OPTIONS=detect_leaks=0; exec \"$0\" \"$1\" 2>\"$2\""

  /// Runs the program; returns its status, and the lines that it has written to standard error, but for those about
  /// stalls: a coroutine keeps its thread for long where a page of memory comes from a slow disk.
  private func run(_ way: String) async throws -> (status: Int32, said: String) {
    let file = FileManager.default.temporaryDirectory.appending(path: "main-thread-\(UUID())")
    defer { try? FileManager.default.removeItem(at: file) }
    let program = folderOfTests() + "/BlockedSignals"
    let status = try await onCoroutine {
      let child = try #require(spawn("/bin/sh", "-c", Self.command, program, way, file.path))
      return try co_blocking { cts_end_of(child) }
    }
    let lines = try String(contentsOf: file, encoding: .utf8).split(separator: "\n")
    return (status, lines.filter { !$0.contains("without a suspension") }.joined(separator: "\n"))
  }
}
