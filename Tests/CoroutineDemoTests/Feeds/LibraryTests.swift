#if Demo
import Foundation
import GRDB
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `The library` {
  private let folder: ScratchFolder
  private let library: Library

  init() throws {
    folder = try ScratchFolder()
    library = try Library(path: folder.path("feeds.sqlite"), patience: 0.05)
  }

  private static func item(_ id: String?, _ title: String, _ summary: String = "", link: String? = nil) -> FeedItem {
    FeedItem(id: id, title: title, link: link, author: nil, published: nil, summary: summary)
  }

  private func titles(_ words: String? = nil) throws -> [String] {
    var titles: [String] = []
    try library.forEachItem(with: words, limit: 100) { titles.append($0.title) }
    return titles
  }

  @Test func `stores each item once`() throws {
    let feed = try library.feed(named: "a")
    #expect(try library.add([Self.item("1", "one"), Self.item("2", "two"), Self.item("1", "again")], to: feed) == 2)
    #expect(try library.add([Self.item("2", "two"), Self.item("3", "three")], to: feed) == 1)
    #expect(try titles() == ["one", "two", "three"])
  }

  @Test func `a name that means something only in its feed is no other feed's`() throws {
    let (a, b) = (try library.feed(named: "a"), try library.feed(named: "b"))
    #expect(try library.add([Self.item("1", "of a"), Self.item("urn:x:1", "of both")], to: a) == 2)
    #expect(try library.add([Self.item("1", "of b"), Self.item("urn:x:1", "of both")], to: b) == 1)
    #expect(try library.itemCount() == 3)
  }

  @Test func `keeps title and validators, those only of a version that was read to its end`() throws {
    let feed = try library.feed(named: "a")
    #expect(feed.validators == Validators() && feed.title.isEmpty)
    let version = Validators(etag: "\"1\"", modified: "Sat, 14 Mar 2026 09:26:53 GMT")
    try library.close(feed, title: "A", version)
    #expect(try library.feed(named: "a") == StoredFeed(id: feed.id, name: "a", title: "A", validators: version))
    try library.close(try library.feed(named: "a"), title: "", nil)
    #expect(try library.feed(named: "a").validators == version)
    #expect(try library.feed(named: "a").title == "A")
  }

  @Test func `finds words by their beginnings, in any case and with any accents`() throws {
    let feed = try library.feed(named: "a")
    _ = try library.add(
      [
        Self.item("1", "Le CAFÉ du port"), Self.item("2", "Tea", "no cafe here"),
        Self.item("3", "100 % \"quoted\" OR not"),
      ],
      to: feed
    )
    #expect(try titles("café") == ["Le CAFÉ du port", "Tea"])
    #expect(try titles("port caf") == ["Le CAFÉ du port"])
    #expect(try titles("OR") == ["100 % \"quoted\" OR not"])
    #expect(try titles("\"quoted\" AND") == [])
    #expect(try titles("* - \"") == [])
  }

  @Test func `a disk without room is a failure that says so, and loses nothing stored before`() throws {
    let feed = try library.feed(named: "a")
    _ = try library.add([Self.item("1", "one")], to: feed)
    // SQLite's own limit has the same effect as a full disk.
    try library.database.inDatabase { try $0.execute(sql: "PRAGMA max_page_count = 1") }
    let many = (0..<1_000).map { Self.item("many-\($0)", "many", String(repeating: "x", count: 500)) }
    #expect(throws: StoreFailure(path: library.path, kind: .full)) { try library.add(many, to: feed) }
    #expect(try titles() == ["one"])
  }

  @Test func `a database that another program has locked is a failure that says so`() throws {
    let other = try DatabaseQueue(path: library.path)
    try other.inDatabase { database in
      try database.execute(sql: "BEGIN EXCLUSIVE")
      #expect(throws: StoreFailure(path: library.path, kind: .locked)) { try library.feed(named: "a") }
      try database.execute(sql: "ROLLBACK")
    }
    #expect(try library.feed(named: "a").id == 1)
  }

  @Test func `a file that is no database is left alone`() throws {
    let path = try folder.write(String(repeating: "no database\n", count: 100), to: "text")
    #expect(throws: StoreFailure(path: path, kind: .notADatabase)) { try Library(path: path) }
    #expect(throws: StoreFailure(path: folder.path("no/such"), kind: .cannotOpen)) {
      try Library(path: folder.path("no/such"))
    }
    #expect(try String(contentsOfFile: path, encoding: .utf8).hasPrefix("no database\n"))
  }

  @Test func `lies in the cache folder that the environment names`() throws {
    let path = try Library.defaultPath(["XDG_CACHE_HOME": folder.path("caches")])
    #expect(path == folder.path("caches/coroutine-demo/feeds.sqlite"))
    #expect(FileManager.default.fileExists(atPath: folder.path("caches/coroutine-demo")))
  }
}
#endif
