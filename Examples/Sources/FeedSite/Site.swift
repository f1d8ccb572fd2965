import Coroutine
import Foundation
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import Synchronization

/// The web service: what each address answers.
///
/// | address | answer |
/// |---|---|
/// | `GET /` | the page that shows everything live |
/// | `GET /feeds` | the feeds and what the reader does with them, as JSON |
/// | `GET /items?search=` | the newest items that contain the text, as JSON |
/// | `GET /events` | the steps of the reader, as a stream of server-sent events |
/// | `POST /read` | reads all feeds again |
/// | `GET /source/…` | the feeds that are read |
final class Site: Sendable {
  let library = Library(Sources.names)
  let news = News()
  private let group: any EventLoopGroup
  private let pause: Duration
  private let rounds = Coroutine.Channel<Void>(.dropNewest(1))
  /// The number of rounds in which every feed was read or has failed.
  let finishedRounds = Atomic<Int>(0)

  /// `pause` is the time between two pieces of a feed.
  init(_ group: any EventLoopGroup, pause: Duration = .milliseconds(60)) {
    self.group = group
    self.pause = pause
  }

  /// Serves until it is told to stop, or cancelled.
  func run(_ address: SocketAddress, onListening: ((SocketAddress) -> Void)? = nil) throws {
    try co_scope { scope in
      let bound = Promise<SocketAddress>()
      let reading = scope.launch(name: "reader") { [self] in
        let server = try co_await(bound)
        let reader = Reader(library: library, news: news, group: group)
        repeat {
          try reader.readAll(from: server)
          finishedRounds.wrappingAdd(1, ordering: .relaxed)
        } while try rounds.receive() != nil
      }
      defer { reading.cancel() }
      try NIOHTTPServer.run(
        address,
        on: group,
        onListening: { listener in
          guard let address = listener.localAddress else { return }
          bound.fulfill(address)
          onListening?(address)
        },
        // The feed that breaks off is an error of its handler, which is on purpose.
        onError: { _, _ in }
      ) { [self] request, response in
        try answer(request, response)
      }
    }
  }

  private func answer(_ request: HTTPRequest, _ response: HTTPResponse) throws {
    let path = request.path
    switch (request.head.method, path) {
    case (.GET, "/"): try response.send(Page.html, type: "text/html; charset=utf-8")
    case (.GET, "/feeds"): try send(library.feeds, response)
    case (.GET, "/items"): try send(library.items(matching: request.query("search") ?? ""), response)
    case (.GET, "/events"): try sendEvents(response)
    case (.POST, "/read"):
      _ = rounds.trySend(())
      response.status = .accepted
      try response.send()
    case (.GET, _) where path.hasPrefix("/source/"):
      try Sources.answer(String(path.dropFirst("/source/".count)), pause: pause, response)
    case (_, "/"), (_, "/feeds"), (_, "/items"), (_, "/events"), (_, "/read"):
      throw HTTPStatusError(.methodNotAllowed)
    default: throw HTTPStatusError(.notFound)
    }
  }

  private func send(_ value: some Encodable, _ response: HTTPResponse) throws {
    try response.send(ByteBuffer(bytes: Self.json(value)), type: "application/json")
  }

  static func json(_ value: some Encodable) throws -> Data {
    let encoder = JSONEncoder()
    encoder.dateEncodingStrategy = .iso8601
    encoder.outputFormatting = [.sortedKeys]
    return try encoder.encode(value)
  }
}
