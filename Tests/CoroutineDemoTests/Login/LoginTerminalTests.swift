#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

/// The same program on a terminal.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo login on a terminal` {
  private static let hideCursor = "\u{1B}[?25l"
  private static let showCursor = "\u{1B}[?25h"

  @Test(arguments: [
    (["TERM": "xterm-256color", "COLORTERM": "truecolor"], "\u{1B}[38;2;"),
    (["TERM": "xterm-256color"], "\u{1B}[38;5;"),
  ])
  func `shows before and after in as many colours as it has`(
    environment: [String: String],
    code: String
  ) async throws {
    let terminal = try PseudoTerminal(columns: 80, rows: 30, environment: environment)
    let end = try await DemoProcess.run(["login"], terminal: terminal)
    #expect(end.status == 0)
    let picture = end.output.split(separator: "\r\n").filter { $0.contains("▀") }
    // 37 columns a picture, as many half rows, the odd one at full height.
    #expect(picture.count == 19)
    #expect(picture.allSatisfy { $0.contains(code) && $0.count { $0 == "▀" } == 74 })
    #expect(end.output.contains("before"))
    #expect(end.output.contains("after: dusk"))
    #expect(end.output.contains("Ada Lovelace, first programmer"))
  }

  @Test func `shows the steps as a list that is redrawn, and gives the cursor back before the picture`() async throws {
    let terminal = try PseudoTerminal(columns: 80, rows: 30, environment: ["TERM": "xterm", "COLORTERM": "truecolor"])
    let end = try await DemoProcess.run(["login"], terminal: terminal)
    let parts = end.output.components(separatedBy: Self.showCursor)
    #expect(parts.count == 2)
    #expect(parts[0].hasPrefix(Self.hideCursor))
    #expect(!parts[0].contains("▀"))
    #expect(parts[0].contains("\u{1B}[4A"), "the four lines are drawn over")
    for title in LoginStep.allCases.filter(\.isListed).map(\.title) {
      #expect(parts[0].contains("\u{1B}[32m✓\u{1B}[0m \(title)"))
    }
  }

  @Test func `a spinner turns for as long as a step takes, and Ctrl-C leaves a tidy terminal`() async throws {
    let terminal = try PseudoTerminal(columns: 80, rows: 30, environment: ["TERM": "xterm"])
    let demo = try DemoProcess(["login", "--latency", "600000", "--timeout", "600"], terminal: terminal)
    for frame in ProgressBoard<LoginStep>.frames {
      try await demo.shows("\u{1B}[36m\(frame)\u{1B}[0m Logging in")
    }
    demo.send(SIGINT)
    let end = await demo.end()
    #expect(end.status == 130)
    let list = try #require(end.output.components(separatedBy: "\u{1B}[4A").last)
    #expect(list.contains("\u{1B}[33m✗\u{1B}[0m Logging in              stopped"))
    #expect(
      list.hasSuffix(
        Self.showCursor
          + "Cleaned up: no request in flight, built-in server stopped.\r\nCoroutineDemo: interrupted.\r\n"
      )
    )
  }

  @Test func `uses no colour where none is wanted`() async throws {
    let environment = ["TERM": "xterm", "COLORTERM": "truecolor", "NO_COLOR": "1"]
    let terminal = try PseudoTerminal(columns: 80, rows: 30, environment: environment)
    let end = try await DemoProcess.run(["login"], terminal: terminal)
    #expect(end.status == 0)
    #expect(end.output.contains("after: dusk"))
    #expect(!end.output.contains("▀"))
    // Moving the cursor and clearing lines is no colour; every colour code ends in m.
    #expect(!end.output.contains(try Regex("\u{1B}\\[[0-9;]*m")))
  }

  @Test func `gives the cursor back after a failure`() async throws {
    let terminal = try PseudoTerminal(columns: 80, rows: 30, environment: ["TERM": "xterm"])
    let end = try await DemoProcess.run(["login", "--fail-at", "profile"], terminal: terminal)
    #expect(end.status == 12)
    #expect(end.output.contains("\u{1B}[31m✗\u{1B}[0m Fetching the profile    failed"))
    #expect(end.output.contains(Self.showCursor + "Cleaned up: "))
  }
}
#endif
