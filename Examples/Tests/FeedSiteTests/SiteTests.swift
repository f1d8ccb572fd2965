import Coroutine
import CoroutineHTTP
import CoroutineNet
import Foundation
import Synchronization
import Testing

@testable import FeedSite

@Suite("The feed site", .timeLimit(.minutes(5)), .serialized)
struct SiteTests {
  /// Runs `body` in a coroutine, beside a site that reads its feeds.
  private func withSite(
    _ certificate: Site.Certificate? = nil,
    pause: Duration = .milliseconds(1),
    _ body: @escaping @Sendable (_ url: String, _ site: Site, _ serving: Job<Void>) throws -> Void
  ) async throws {
    try await co_launch {
      let site = Site(certificate: certificate, pause: pause)
      let bound = Promise<SocketAddress>()
      let serving = co_launch { try site.run(.loopback(port: 0)) { bound.fulfill($0) } }
      defer { serving.cancel() }
      try body(site.url(try co_await(bound)), site, serving)
      serving.cancel()
      // Ends when the reader, the server and every stream have ended.
      _ = try? serving.join()
    }.value
  }

  @Test func `all feeds are read, and those that are broken say why`() async throws {
    try await withSite { url, _, _ in
      let feeds = try waitUntilRead(url)
      #expect(feeds.count == Sources.names.count)
      let failed = feeds.filter { $0.state == .failed }.map(\.name).sorted()
      #expect(failed == ["broken.xml", "gone.xml", "halfway.xml"])
      #expect(feeds.first { $0.name == "gone.xml" }?.reason == "the site answered 404")
      for feed in feeds where feed.state == .read {
        #expect(feed.items > 0 && feed.bytes > 0 && feed.bytes == feed.expectedBytes, "\(feed)")
        #expect(feed.title != nil || feed.name == "sparse.xml", "\(feed)")
      }
      let cyrillic = feeds.first { $0.name == "gazeta.xml" }?.title ?? ""
      #expect(cyrillic.unicodeScalars.contains { (0x0400...0x04FF).contains($0.value) }, "\(cyrillic)")
    }
  }

  @Test func `items are searched, and a second round finds none that are new`() async throws {
    try await withSite { url, site, _ in
      let first = try waitUntilRead(url)
      let all = try decode([ItemView].self, curl("\(url)/items"))
      #expect(!all.isEmpty && all.count <= 50)
      let word = try #require(all.first { $0.title.contains(" ") }?.title.split(separator: " ").first).uppercased()
      let query = try #require(word.addingPercentEncoding(withAllowedCharacters: .alphanumerics))
      let found = try decode([ItemView].self, curl("\(url)/items?search=\(query)"))
      #expect(!found.isEmpty)
      #expect(found.allSatisfy { ($0.title + $0.summary).uppercased().contains(word) })
      let none = try curl("\(url)/items?search=no%20such%20words%20anywhere")
      #expect(none == "[]")
      let accepted = try curl("--request", "POST", "--write-out", "%{http_code}", "\(url)/read")
      #expect(accepted == "202")
      try site.waitUntilFinished(rounds: 2)
      let second = site.library.feeds
      #expect(second.reduce(0) { $0 + $1.items } >= first.count)
      #expect(second.allSatisfy { $0.state == .failed || $0.new == 0 })
    }
  }

  @Test func `the stream shows each feed as it is read, and ends with the server`() async throws {
    try await withSite(pause: .milliseconds(10)) { url, site, serving in
      try site.waitUntilFinished(rounds: 1)
      let stream = co_launch { try curl("--no-buffer", "\(url)/events") }
      try waitUntil { site.news.count == 1 }
      _ = try curl("--request", "POST", "\(url)/read")
      try site.waitUntilFinished(rounds: 2)
      // The handler of the stream is told to finish, and curl gets a complete response.
      serving.cancel()
      let text = try stream.join()
      #expect(text.hasPrefix("event: count\ndata: \(Sources.names.count)\n\n"))
      let events = try text.components(separatedBy: "\n\n").dropFirst().filter { !$0.isEmpty }.map { event in
        try #require(event.hasPrefix("event: feed\ndata: "), "\(event)")
        return try decode(FeedStatus.self, String(event.dropFirst("event: feed\ndata: ".count)))
      }
      // The states of the first round come first.
      #expect(events.prefix(Sources.names.count).map(\.name) == Sources.names)
      let round = events.dropFirst(Sources.names.count)
      #expect(round.contains { $0.state == .reading })
      for feed in site.library.feeds where feed.state == .read {
        #expect(round.last { $0.name == feed.name } == feed, "\(feed)")
      }
      let podcast = round.filter { $0.name == "podcast.xml" }
      let bytes = podcast.map(\.bytes).filter { $0 > 0 }
      #expect(bytes == bytes.sorted())
    }
  }

  @Test func `a client that goes away is a listener no longer`() async throws {
    try await withSite(pause: .milliseconds(5)) { url, site, _ in
      let client = try Connection.connect(to: .ipv4("127.0.0.1", port: UInt16(url.split(separator: ":").last!)!))
      try client.write("GET /events HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      try waitUntil { site.news.count == 1 }
      client.close()
      // The server cancels the handler, although nothing is written.
      try waitUntil { site.news.count == 0 }
    }
  }

  @Test func `a change is shown however many changes of other feeds follow it`() async throws {
    try await withSite { url, site, serving in
      try site.waitUntilFinished(rounds: 1)
      let stream = co_launch { try curl("--no-buffer", "\(url)/events") }
      try waitUntil { site.news.count == 1 }
      site.library.update(0) { $0.title = "Changed once" }
      site.news.publish()
      for number in 1...2000 {
        site.library.update(1) { $0.title = "Changed \(number) times" }
        site.news.publish()
      }
      serving.cancel()
      let text = try stream.join()
      #expect(text.contains("Changed once") && text.contains("Changed 2000 times"))
    }
  }

  @Test func `other addresses and methods are refused`() async throws {
    try await withSite { url, _, _ in
      for (arguments, status) in [
        (["\(url)/none"], "404"), (["\(url)/source/passwd"], "404"),
        (["--path-as-is", "\(url)/source/../Main.swift"], "404"),
        (["--request", "DELETE", "\(url)/feeds"], "405"),
      ] {
        let answer = try run("curl", ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"] + arguments)
        #expect(answer == status, "\(arguments)")
      }
    }
  }

  private static let browser = ["chromium", "chromium-browser", "google-chrome"].first { name in
    FileManager.default.isExecutableFile(atPath: "/usr/bin/\(name)")
  }

  @Test(.enabled(if: browser != nil, "needs Chromium: scripts/setup examples"))
  func `a browser shows the feeds and the items live`() async throws {
    try await withSite { url, site, _ in
      // Virtual time stands still while a request is under way, so with #once it passes after the round.
      let page = try Self.browse("\(url)/#once")
      // The rows come by the stream of events, the articles by a search of the script.
      for feed in site.library.feeds where feed.state == .read {
        #expect(page.contains(">\(feed.title ?? feed.name)<"), "\(feed.title ?? feed.name)")
      }
      #expect(page.contains("class=\"read\">read<"))
      #expect(page.contains("class=\"failed\">failed: "))
      #expect(page.contains("<article>"))
      #expect(page.contains(">live<"))
    }
  }

  @Test(.enabled(if: browser != nil, "needs Chromium: scripts/setup examples"))
  func `a browser shows the site over TLS, and its reader reads over TLS`() async throws {
    let folder = FileManager.default.temporaryDirectory.appending(path: "coroutine-site-\(UUID())")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(at: folder) }
    let (chain, key) = (folder.appending(path: "chain.pem").path, folder.appending(path: "key.pem").path)
    try await co_launch {
      _ = try run(
        "openssl",
        [
          "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
          "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", chain,
        ]
      )
    }.value
    try await withSite(.init(chain: chain, key: key)) { url, site, _ in
      let page = try Self.browse("\(url)/#once", "--ignore-certificate-errors")
      #expect(url.hasPrefix("https://"))
      for feed in site.library.feeds where feed.state == .read {
        #expect(page.contains(">\(feed.title ?? feed.name)<"), "\(feed.title ?? feed.name)")
      }
      #expect(page.contains("class=\"read\">read<") && page.contains("<article>"))
    }
  }

  @Test(.enabled(if: browser != nil, "needs Chromium: scripts/setup examples"))
  func `a browser shows the diagnostics of the site`() async throws {
    try await withSite(pause: .milliseconds(20)) { _, _, _ in
      let diagnostics = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
      defer { diagnostics.stop() }
      let page = try Self.browse("http://\(diagnostics.address)/")
      #expect(page.contains("<h1>Coroutines of ") && page.contains("href=\"/trace?seconds=1\""))
      #expect(page.contains("of the library:"))
    }
  }

  /// The text of a page after its scripts.
  private static func browse(_ url: String, _ more: String...) throws -> String {
    try run(
      "timeout",
      [
        "240", browser ?? "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--virtual-time-budget=2000", "--dump-dom",
      ] + more + [url]
    )
  }
}

extension Site {
  fileprivate func waitUntilFinished(rounds: Int) throws {
    try waitUntil { finishedRounds.load(ordering: .relaxed) >= rounds }
  }
}

private func waitUntil(_ condition: () throws -> Bool) throws {
  while try !condition() { try co_delay(.milliseconds(5)) }
}

/// The feeds, when each of them was read or has failed.
private func waitUntilRead(_ url: String) throws -> [FeedStatus] {
  while true {
    let feeds = try decode([FeedStatus].self, curl("\(url)/feeds"))
    if feeds.allSatisfy({ $0.state == .read || $0.state == .failed }) { return feeds }
    try co_delay(.milliseconds(20))
  }
}

private func decode<Value: Decodable>(_ type: Value.Type, _ text: String) throws -> Value {
  let decoder = JSONDecoder()
  decoder.dateDecodingStrategy = .iso8601
  return try decoder.decode(type, from: Data(text.utf8))
}

private func curl(_ arguments: String...) throws -> String {
  try run("curl", ["--silent", "--max-time", "240"] + arguments)
}

/// Runs a program on a thread for blocking calls, and returns what it prints.
private func run(_ program: String, _ arguments: [String]) throws -> String {
  try co_blocking {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments = [program] + arguments
    process.standardInput = FileHandle.nullDevice
    process.standardError = FileHandle.nullDevice
    let output = Pipe()
    process.standardOutput = output
    try process.run()
    let data = try output.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    return String(decoding: data, as: UTF8.self)
  }
}
