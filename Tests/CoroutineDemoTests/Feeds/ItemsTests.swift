#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo items` {
  private let folder: ScratchFolder
  private let path: String

  init() throws {
    folder = try ScratchFolder()
    path = folder.path("feeds.sqlite")
    let library = try Library(path: path)
    let feed = try library.feed(named: "harbour")
    try library.close(feed, title: "The Harbour", nil)
    _ = try library.add(
      [
        FeedItem(
          id: "1",
          title: "Ferry",
          link: "https://example.org/1",
          author: "Ines",
          published: Date(timeIntervalSince1970: 86_400),
          summary: "every hour"
        ),
        FeedItem(id: "2", title: "Crane", link: nil, author: nil, published: nil, summary: "no ferry"),
        FeedItem(
          id: "3",
          title: "Boats",
          link: nil,
          author: nil,
          published: Date(timeIntervalSince1970: 172_800),
          summary: ""
        ),
      ],
      to: feed
    )
  }

  private func run(_ arguments: [String]) async throws -> DemoProcess.End {
    try await DemoProcess.run(["items", "--database", path] + arguments)
  }

  @Test func `lists what is stored, newest first, those without a date last`() async throws {
    let end = try await run([])
    #expect(end.status == 0)
    #expect(
      end.output == """
        1970-01-03  Boats
                    The Harbour
        1970-01-02  Ferry
                    The Harbour, Ines, https://example.org/1
                    Crane
                    The Harbour

        """
    )
    #expect(end.errors.isEmpty)
  }

  @Test func `finds words, and says so where there are none`() async throws {
    #expect(try await run(["--search", "FERRY"]).output.split(separator: "\n").count == 4)
    #expect(try await run(["--search", "ferry hour"]).output.hasPrefix("1970-01-02  Ferry\n"))
    let none = try await run(["--search", "airship"])
    #expect(none.status == 0)
    #expect(none.output.isEmpty)
    #expect(none.errors == "No item has these words.\n")
  }

  @Test func `says how many more there are`() async throws {
    let end = try await run(["--limit", "1"])
    #expect(end.output.hasPrefix("1970-01-03  Boats\n"))
    #expect(end.errors == "2 more; --limit shows more, --search finds.\n")
  }

  @Test func `names a database that it cannot read, and a list that it cannot write`() async throws {
    let text = try folder.write(String(repeating: "no database\n", count: 100), to: "text")
    let end = try await DemoProcess.run(["items", "--database", text])
    #expect(end.status == 73)
    #expect(
      end.errors == "CoroutineDemo: \(text) is no database, or a damaged one; give another place with --database.\n"
    )
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let unwritten = try await DemoProcess.run(["items", "--database", path], output: full)
    #expect(unwritten.status == 74)
  }
}
#endif
