#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo feeds on a terminal` {
  private let folder: ScratchFolder

  init() throws {
    folder = try ScratchFolder()
  }

  private func run(rows: UInt16, _ environment: [String: String] = [:]) async throws -> DemoProcess.End {
    let terminal = try PseudoTerminal(
      columns: 90,
      rows: rows,
      environment: ["TERM": "xterm"].merging(environment) { $1 }
    )
    // Half a minute for a feed, which the program gives unasked, is little on a machine that others use too.
    let arguments = ["feeds", "--timeout", "240"]
    return try await DemoProcess.run(arguments, environment: ["XDG_CACHE_HOME": folder.path("")], terminal: terminal)
  }

  @Test func `has a bar for each feed and one for all, and gives the cursor back before the table`() async throws {
    let end = try await run(rows: 40)
    #expect(end.status == 0)
    let parts = end.output.components(separatedBy: "\u{1B}[?25h")
    #expect(parts.count == 2)
    #expect(parts[0].hasPrefix("\u{1B}[?25l"))
    let height = Catalogue.all.count + 1
    let last = try #require(parts[0].components(separatedBy: "\u{1B}[\(height)A").last)
    let lines = last.split(separator: "\r\n").map { $0.replacing("\r\u{1B}[2K", with: "") }
    #expect(lines.count == height + 1, "the last clears what is below")
    for (entry, line) in zip(Catalogue.all, lines) {
      #expect(line.contains("demo:\(entry.name)"))
      #expect(line.contains(entry.isFaulty ? "\u{1B}[31m✗" : "\u{1B}[32m✓"))
    }
    #expect(lines[height - 1].contains("\(Catalogue.all.count) of \(Catalogue.all.count) feeds"))
    #expect(lines[height - 1].contains(String(repeating: "━", count: 20)))
    #expect(parts[1].contains("feed  "))
  }

  @Test func `where there are fewer rows than feeds, it shows those under way`() async throws {
    let end = try await run(rows: 10)
    #expect(end.status == 0)
    let ups = end.output.matches(of: /\u{1B}\[(\d+)A/).compactMap { Int($0.1) }
    #expect(ups.max() ?? 0 <= 9)
    #expect(end.output.contains("demo:archive.xml"))
  }

  @Test func `uses no colour where none is wanted`() async throws {
    let end = try await run(rows: 40, ["NO_COLOR": "1"])
    #expect(!end.output.contains(try Regex("\u{1B}\\[[0-9;]*m")))
    #expect(end.output.contains("✓ demo:planet.xml"))
  }
}

@Suite struct `The board of feeds` {
  private static func report(_ name: String, _ outcome: FeedReport.Outcome, bytes: Int = 0, of all: Int? = nil)
    -> FeedReport
  {
    var report = FeedReport(name: name)
    (report.outcome, report.bytes, report.expectedBytes) = (outcome, bytes, all)
    return report
  }

  @Test func `fills a bar as far as bytes have come, and no line is longer than the terminal`() {
    var board = FeedBoard(count: 3)
    board.take(FeedNews(index: 0, event: .began, report: Self.report("half", .underWay, bytes: 500, of: 1_000)))
    board.take(FeedNews(index: 1, event: .began, report: Self.report("港町新聞港町新聞港町新聞", .underWay, bytes: 2_500_000)))
    let lines = board.lines(frame: 0, columns: 80, rows: 24, colour: false)
    #expect(lines[0] == "  ⠋ half                      ━━━━━━━━━━──────────  500 B, 0 items")
    #expect(lines[1] == "  ⠋ 港町新聞港町新聞港町新聞  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  2.5 MB, 0 items")
    #expect(lines[2] == "  · waiting")
    for columns in [1, 10, 33, 60] {
      for line in board.lines(frame: 3, columns: columns, rows: 24, colour: false) { #expect(line.columns <= columns) }
    }
  }

  @Test func `a character of East Asia takes two columns`() {
    #expect("港町".columns == 4)
    #expect("Zürich".columns == 6)
    #expect("港町新聞".padded(to: 6) == "港町… ")
    #expect("ab".padded(to: 3) == "ab ")
  }
}
#endif
