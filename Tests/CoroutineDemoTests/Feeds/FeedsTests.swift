#if Demo
import FlyingFox
import Foundation
import GRDB
import Testing

@testable import CoroutineDemo

/// The program as a process, with the built-in server and its faults.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo feeds` {
  private let folder: ScratchFolder

  init() throws {
    folder = try ScratchFolder()
  }

  /// The program gives a feed half a minute, which is little on a machine that others use too.
  private func run(_ arguments: [String]) async throws -> DemoProcess.End {
    let patience = arguments.contains("--timeout") ? [] : ["--timeout", "240"]
    let environment = ["XDG_CACHE_HOME": folder.path("")]
    return try await DemoProcess.run(["feeds"] + arguments + patience, environment: environment)
  }

  private func library() throws -> Library { try Library(path: folder.path("coroutine-demo/feeds.sqlite")) }

  /// How many items each feed has in the database.
  private func counts() throws -> [String: Int] {
    try library().read { database in
      let rows = try Row.fetchAll(
        database,
        sql:
          "SELECT feed.name, count(item.id) AS count FROM feed LEFT JOIN item ON item.feed = feed.id GROUP BY feed.id"
      )
      return Dictionary(uniqueKeysWithValues: rows.map { ($0["name"], $0["count"]) })
    }
  }

  @Test func `reads what the built-in server serves, and what is there to fail harms nothing else`() async throws {
    let end = try await run([])
    #expect(end.status == 0, "\(end.errors)")
    let counts = try counts()
    // Three items are in both feeds, and belong to the feed that was read first.
    #expect((counts["demo:planet.xml"] ?? 0) + (counts["demo:mirror.xml"] ?? 0) == 8)
    let expected = [
      "releases.atom": 3, "zeitung.xml": 3, "courrier.xml": 3, "shimbun.xml": 2, "notes.atom": 2, "gazeta.xml": 2,
      "sparse.xml": 6, "podcast.xml": 4, "weather.xml": 2, "archive.xml": 10_000, "broken.xml": 2, "gone.xml": 0,
    ]
    for (name, count) in expected { #expect(counts["demo:\(name)"] == count, "\(name)") }
    // The items that had arrived before the connection was closed.
    #expect((1...39).contains(counts["demo:halfway.xml"] ?? 0))
    #expect(counts.count == Catalogue.all.count)

    #expect(
      end.errors.contains("CoroutineDemo: demo:broken.xml is malformed: line 9: an & or < that is not escaped.\n")
    )
    #expect(end.errors.contains("CoroutineDemo: demo:halfway.xml broke off before its end: "))
    #expect(end.errors.contains("/gone.xml answered 404.\n"))
    #expect(end.errors.contains("demo:archive.xml: 10000 items, 10000 new, 20.0 MB, "))
    #expect(end.output.contains(/\nThe Archive +10000 +10000 +20\.0 MB +/))
    #expect(end.output.contains(/\nGarage Sale +2 +2 +629 B .*malformed, line 9\n/))
    #expect(end.output.contains(/\ndemo:gone\.xml +0 +0 +0 B .*answered 404\n/))
    #expect(end.output.contains(/\n15 feeds .* 3 failed\n$/))
  }

  @Test func `a second run stores nothing that is there, and asks for no version it has`() async throws {
    _ = try await run([])
    let before = try counts()
    let end = try await run([])
    #expect(end.status == 0, "\(end.errors)")
    #expect(try counts() == before)
    let unchanged = [
      "planet.xml", "releases.atom", "mirror.xml", "zeitung.xml", "shimbun.xml", "podcast.xml", "archive.xml",
    ]
    for name in unchanged { #expect(end.errors.contains("demo:\(name): not modified, "), "\(name)") }
    #expect(end.errors.contains("demo:sparse.xml: 6 items, 0 new, "))
    // Titles are known from the run before.
    #expect(end.output.contains(/\nThe Archive +0 +0 +0 B .*\(not modified\)\n/))
    #expect(end.output.contains(/\n15 feeds +\d+ +0 +/))
  }

  @Test func `each of the bad sources is named, the others are read, and the exit code tells`() async throws {
    let good = try folder.write(SmallFeed.text("Good", items: 1..<4), to: "good.xml")
    let text = try folder.write("no feed", to: "text.txt")
    let page = try folder.write("<html><body/></html>", to: "page.html")
    let port = try SilentPort()
    let silent = "http://127.0.0.1:\(port.number)/"
    let end = try await run([
      "not a feed", "ftp://example.org/feed", "http://", text, page, folder.path(""), silent, good,
    ])
    withExtendedLifetime(port) {}
    #expect(end.status == 20)
    for sentence in [
      "'not a feed' is neither an address that begins with http:// or https:// nor a file.",
      "'ftp://example.org/feed' is neither an address that begins with http:// or https:// nor a file.",
      "'http://' is neither an address that begins with http:// or https:// nor a file.",
      "\(text) is no feed that can be read: it is not XML.",
      "\(page) is no feed that can be read: it is a web page; its source may name the feed's address.",
      "cannot be read: Is a directory.", "\(silent) cannot be reached: ",
    ] {
      #expect(end.errors.contains(sentence), "\(sentence) in \(end.errors)")
    }
    #expect(end.errors.contains("\(good): 3 items, 3 new, "))
    #expect(try counts()[good] == 3)
    #expect(try await run([text]).status == 21)
    #expect(try await run([good]).status == 0)
  }

  @Test func `a feed that is late is left, with what has come of it, and the others are read`() async throws {
    let pipe = try NamedPipe(folder.path("slow.xml"))
    let good = try folder.write(SmallFeed.text("Good", items: 1..<4), to: "good.xml")
    let writing = pipe.write(
      SmallFeed.beginning("Slow") + (1...900).map { SmallFeed.item("Slow", $0, padding: 400) }.joined()
    )
    let end = try await run([pipe.path, good, "--timeout", "20"])
    #expect(end.status == 20, "\(end.errors)")
    #expect(end.errors.contains("\(pipe.path) was not read within 20 s; give more with --timeout."))
    #expect(try counts()[good] == 3)
    #expect(try counts()[pipe.path] ?? 0 >= 400)
    writing.close()
  }

  @Test(arguments: [(SIGINT, 130), (SIGTERM, 143)] as [(Int32, Int32)])
  func `Ctrl-C cancels everything, keeps what was read, and says how far it came`(signal: Int32, code: Int32)
    async throws
  {
    let pipe = try NamedPipe(folder.path("endless.xml"))
    let good = try folder.write(SmallFeed.text("Good", items: 1..<4), to: "good.xml")
    let silent = try NamedPipe(folder.path("silent.xml"))
    let demo = try DemoProcess(
      ["feeds", "--jobs", "2", "--timeout", "600", good, pipe.path, silent.path, good + "?"],
      environment: ["XDG_CACHE_HOME": folder.path("")]
    )
    try await demo.says("\(good): 3 items, 3 new, ")
    let writing = pipe.write(
      SmallFeed.beginning("Endless") + (1...900).map { SmallFeed.item("Endless", $0, padding: 400) }.joined()
    )
    // Everything but the contents of the pipe has been read by now.
    await writing.written.value
    demo.send(signal)
    let end = await demo.end()
    #expect(end.status == code)
    let line = try #require(end.errors.firstMatch(of: /endless\.xml: interrupted; (\d+) items, (\d+) new/))
    let items = try #require(Int(line.1))
    #expect(items >= 400)
    #expect(line.1 == line.2)
    #expect(try counts() == [good: 3, pipe.path: items, silent.path: 0])
    #expect(end.errors.contains("1 feeds were not begun.\n"))
    #expect(end.output.contains(/\nEndless +\d+ +\d+ .*interrupted\n/))
    writing.close()
  }

  @Test func `a thousand feeds are read at once, in memory that does not grow with them`() async throws {
    let server = try await TestServer { request in
      let number = Int(request.path.dropFirst()) ?? 0
      // Neighbours overlap: half of each feed's items are in the next one too.
      let items = (0..<6).map { item in
        "<item><title>t</title><guid>https://example.org/\(number * 3 + item)</guid><description>\(Self.text)</description></item>"
      }
      let feed = SmallFeed.beginning("Feed \(number)") + items.joined() + "</channel></rss>"
      return HTTPResponse(statusCode: .ok, body: Data(feed.utf8))
    }
    let addresses = (0..<1_000).map { "\(server.url.absoluteString)\($0)" }
    let demo = try DemoProcess(
      ["feeds", "--jobs", "100", "--timeout", "240", "--watch", "600"] + addresses,
      environment: ["XDG_CACHE_HOME": folder.path("")]
    )
    try await demo.shows("1000 feeds")
    let memory = try demo.peakMemory
    demo.send(SIGINT)
    let end = await demo.end()
    await server.stop()
    #expect(end.status == 130)
    #expect(!end.output.contains("failed"))
    #expect(try library().itemCount() == 3_003)
    #expect(try counts().count == 1_000)
    #expect(memory < 200_000_000)
    print("1,000 feeds: at most \(memory / 1_000_000) MB")
  }

  private static let text = String(repeating: "Nothing new. ", count: 400)

  @Test func `a database that cannot be used is named, and nothing is read`() async throws {
    let text = try folder.write(String(repeating: "no database\n", count: 100), to: "text")
    for path in [text, folder.path("no/such/folder/feeds.sqlite")] {
      let end = try await run(["--database", path])
      #expect(end.status == 73)
      #expect(end.errors.contains(path) && end.errors.contains("--database"))
      #expect(end.output.isEmpty)
    }
  }

  @Test(arguments: ["EXCLUSIVE", "IMMEDIATE"])
  func `a database that is locked is named`(lock: String) async throws {
    let path = folder.path("locked.sqlite")
    let good = try folder.write(SmallFeed.text("Good", items: 1..<4), to: "good.xml")
    // Open all the while: SQLite keeps its log then, and who opens the database next need not write.
    let library = try Library(path: path)
    _ = try library.feed(named: "another")
    var configuration = Configuration()
    configuration.allowsUnsafeTransactions = true
    let other = try DatabaseQueue(path: path, configuration: configuration)
    try await other.writeWithoutTransaction { try $0.execute(sql: "BEGIN \(lock)") }
    let end = try await run(["--database", path, good])
    try await other.writeWithoutTransaction { try $0.execute(sql: "ROLLBACK") }
    #expect(end.status == 73)
    #expect(end.errors.contains("the database \(path) is locked by another program"), "\(end.errors)")
    #expect(try library.itemCount() == 0)
  }

  @Test func `a site that goes round in circles, or says nothing of use, is left`() async throws {
    let server = try await TestServer { request in
      switch request.path {
      case "/circle": Self.redirect(to: "/circle")
      case "/file": Self.redirect(to: "file:///etc/passwd")
      case "/empty": HTTPResponse(statusCode: .ok)
      default: HTTPResponse(statusCode: .internalServerError)
      }
    }
    let end = try await run(["circle", "file", "empty", "other"].map { server.url.absoluteString + $0 })
    await server.stop()
    #expect(end.status == 21)
    #expect(end.errors.contains("/circle answered 302."), "\(end.errors)")
    // URLSession requests the file from the site; it must never read this machine's file.
    #expect(end.errors.contains("/file answered "))
    #expect(end.errors.contains("/empty is malformed: "))
    #expect(end.errors.contains("/other answered 500."))
  }

  private static func redirect(to address: String) -> HTTPResponse {
    let headers: HTTPHeaders = [.location: address]
    return HTTPResponse(statusCode: .found, headers: headers)
  }

  @Test(arguments: [
    (["--jobs", "0"], "--jobs is a number from 1 to 1000, not 0"),
    (["--timeout", "-1"], "--timeout is a number of seconds above 0 and up to 86400, not -1"),
    (["--watch", "nan"], "--watch is a number of seconds above 0 and up to 86400, not nan"),
  ])
  func `a bad argument is a usage error that names it`(arguments: [String], sentence: String) async throws {
    let end = try await run(arguments)
    #expect(end.status == 64)
    #expect(end.errors.contains(sentence))
  }

  @Test func `a table that cannot be written is said`() async throws {
    let good = try folder.write(SmallFeed.text("Good", items: 1..<4), to: "good.xml")
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let end = try await DemoProcess.run(["feeds", "--database", folder.path("a.sqlite"), good], output: full)
    #expect(end.status == 74)
    #expect(end.errors.hasSuffix("CoroutineDemo: cannot write to standard output: No space left on device.\n"))
  }
}
#endif
