#if Demo
import Coroutine
import CoroutineNet
import CoroutineTesting
import Foundation
import Testing

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

@testable import CoroutineDemo

/// The feed reader, its retries, its parser and its database in worlds whose network is divided.
///
/// Everything is the program's own but the HTTP client: URLSession has sockets of its own, which no world sees.
@Suite(.timeLimit(.minutes(10))) struct `Feeds over a bad network` {
  private static let feed = SmallFeed.text("Good", items: 1..<501, padding: 200) + "\n"

  /// A host with a feed of 500 items, which waits a second in the middle of each answer.
  private static func serve(on network: World.Network) {
    let text = feed
    network.host("site") {
      try Server.run(.any(port: 80)) { connection in
        var reader = BufferedReader(connection)
        while let line = try reader.readLine(), !line.isEmpty {}
        let bytes = Array(text.utf8)
        try connection.write("HTTP/1.0 200 OK\r\nContent-Type: application/xml\r\nETag: \"1\"\r\n\r\n".utf8)
        try connection.write(bytes.prefix(bytes.count / 2))
        try co_delay(.seconds(1))
        try connection.write(bytes.dropFirst(bytes.count / 2))
      }
    }
  }

  /// What a reader is made of, and what it has found.
  private struct Reading {
    let folder: ScratchFolder
    let library: Library
    let store: Store

    init() throws {
      folder = try ScratchFolder()
      library = try Library(path: folder.path("feeds.sqlite"))
      store = Store(library)
    }

    /// Reads the site's feed, and returns its last report.
    func read(_ retry: Retry, timeout: Double = 600) throws -> FeedReport? {
      let news = Channel<FeedNews>(.unbounded)
      let opener = FeedOpener(web: NetWeb(), retry: retry)
      let reader = FeedReader(opener: opener, store: store, jobs: 2, timeout: timeout, news: news)
      try reader.read([Source(argument: "http://site/feed.xml")])
      news.close()
      var last: FeedReport?
      while let message = try news.receive() { last = message.report }
      return last
    }

    var count: Int { get throws { try library.itemCount() } }
  }

  private static let patient = Retry(attempts: 20, pauses: .exponential(from: .milliseconds(200), limit: .seconds(2)))
  private static let usual = FeedOpener(web: NetWeb()).retry

  @Test(.simulated(.random(seeds: 10)))
  func `a partition at the beginning is outlasted by retries`() throws {
    let network = World.current!.network
    Self.serve(on: network)
    try World.current!.settle()
    network.partition(from: "body", to: "site")
    co_launch {
      try co_delay(.seconds(20))
      network.heal(from: "body", to: "site")
    }
    let reading = try Reading()
    let report = try reading.read(Self.patient)
    #expect(report?.outcome == .read && report?.new == 500)
    #expect(try reading.count == 500)
    #expect(World.current!.now >= .seconds(21))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `a site that is down, and comes back, is read`() throws {
    let network = World.current!.network
    Self.serve(on: network)
    try World.current!.settle()
    network.crash("site")
    co_launch {
      try co_delay(.milliseconds(500))
      network.restart("site")
    }
    let reading = try Reading()
    // The retries of the program.
    var retry = Self.usual
    retry.pauses = .constant(.milliseconds(300))
    let report = try reading.read(retry)
    #expect(report?.outcome == .read && report?.new == 500)
  }

  @Test(.simulated(.random(seeds: 5)))
  func `a partition that lasts is said, after as many attempts as there may be`() throws {
    let network = World.current!.network
    Self.serve(on: network)
    try World.current!.settle()
    network.partition(from: "body", to: "site")
    let reading = try Reading()
    let report = try reading.read(Self.usual)
    guard case .failed(.http(.unreachable))? = report?.outcome else {
      Issue.record("\(String(describing: report))")
      return
    }
    #expect(try reading.count == 0)
    // Three attempts of five seconds, and two pauses.
    #expect(World.current!.now >= .seconds(15) && World.current!.now <= .milliseconds(15_800))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `a partition in the middle of an answer delays it`() throws {
    let network = World.current!.network
    Self.serve(on: network)
    try World.current!.settle()
    co_launch {
      try co_delay(.milliseconds(500))
      network.partition(from: "site", to: "body")
      try co_delay(.seconds(100))
      network.heal(from: "site", to: "body")
    }
    let reading = try Reading()
    let report = try reading.read(Self.usual)
    #expect(report?.outcome == .read && report?.new == 500)
    #expect(World.current!.now >= .milliseconds(100_500))
  }

  @Test(.simulated(.random(seeds: 10)))
  func `what came before a partition is kept, and the next reading adds the rest, once`() throws {
    let network = World.current!.network
    Self.serve(on: network)
    try World.current!.settle()
    co_launch {
      try co_delay(.milliseconds(500))
      network.partition(from: "site", to: "body")
    }
    let reading = try Reading()
    let first = try reading.read(Self.usual, timeout: 30)
    guard case .failed(.timedOut)? = first?.outcome else {
      Issue.record("\(String(describing: first))")
      return
    }
    let stored = try reading.count
    #expect((200..<500).contains(stored) && stored == first?.new)
    network.heal(from: "site", to: "body")
    let second = try reading.read(Self.usual)
    #expect(second?.outcome == .read && second?.new == 500 - stored)
    #expect(try reading.count == 500)
  }

  /// A client of HTTP/1.0 that uses the world's sockets.
  private struct NetWeb: FeedWeb {
    func open(_ request: URLRequest) throws -> HTTPStream {
      guard let url = request.url, let host = url.host() else { throw URLError(.badURL) }
      do {
        let connection = try co_timeout(.seconds(5)) {
          try Connection.connect(host: host, port: UInt16(url.port ?? 80))
        }
        try connection.write("GET \(url.path()) HTTP/1.0\r\nHost: \(host)\r\n\r\n".utf8)
        return try answer(url, connection)
      } catch let error as NetError {
        throw HTTPError.unreachable(url, reason: "\(error)")
      } catch is TimeoutError {
        throw HTTPError.unreachable(url, reason: "no answer")
      }
    }

    private func answer(_ url: URL, _ connection: Connection) throws -> HTTPStream {
      var reader = BufferedReader(connection)
      let status = Int(try reader.readLine()?.split(separator: " ").dropFirst().first ?? "") ?? 0
      var fields: [String: String] = [:]
      while let line = try reader.readLine(), !line.isEmpty {
        let parts = line.split(separator: ": ", maxSplits: 1)
        fields[String(parts[0])] = String(parts[1])
      }
      let spool = try Spool(longest: 10_000_000)
      // The closing of the connection ends it.
      let arrival = co_launch(name: "arrival") { [reader = Movable(reader)] in
        let reader = reader.take()
        do {
          try Self.pass(reader, to: spool)
          spool.finish()
        } catch {
          spool.finish(HTTPError.unreachable(url, reason: "\(error)"))
        }
      }
      let response = HTTPURLResponse(url: url, statusCode: status, httpVersion: "HTTP/1.0", headerFields: fields)
      guard let response else { throw HTTPError.malformed(url, what: "no head") }
      return HTTPStream(response: response, body: spool) {
        connection.close()
        arrival.cancel()
      }
    }

    private static func pass(_ reader: consuming BufferedReader, to spool: Spool) throws {
      var reader = reader
      while true {
        // Line by line, as the feed has them: what is buffered must not wait for more.
        guard let line = try reader.read(until: UInt8(ascii: "\n"), max: 1_000_000) else { return }
        try spool.append(Data(line + [UInt8(ascii: "\n")]))
      }
    }
  }
}

/// A value that cannot be copied, on its way into a closure.
// Sound because it is put in before the closure runs, and taken out by the closure, once.
private final class Movable<Value: ~Copyable>: @unchecked Sendable {
  private var value: Value?
  init(_ value: consuming Value) { self.value = consume value }
  func take() -> Value { value.take()! }
}
#endif
