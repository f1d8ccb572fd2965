import Coroutine
import CoroutineHTTP
import CoroutineNet
import Foundation
import HTTPTypes
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
  /// The files of a certificate, in the form of PEM.
  struct Certificate: Sendable {
    var chain: String
    var key: String
  }

  let library = Library(Sources.names)
  let news = News()
  private let certificate: Certificate?
  private let pause: Duration
  private let rounds = Channel<Void>(.dropNewest(1))
  /// The number of rounds in which every feed was read or has failed.
  let finishedRounds = Atomic<Int>(0)

  /// With `certificate`, which is one of `localhost`, it serves over TLS; `pause` is the time between two pieces of a
  /// feed.
  init(certificate: Certificate? = nil, pause: Duration = .milliseconds(60)) {
    self.certificate = certificate
    self.pause = pause
  }

  /// Serves until it is told to stop, or cancelled.
  func run(_ address: SocketAddress, onListening: ((SocketAddress) -> Void)? = nil) throws {
    try co_scope { scope in
      let bound = Promise<SocketAddress>()
      let reading = scope.launch(name: "reader") { [self] in
        let address = url(try co_await(bound))
        let reader = Reader(library: library, news: news, client: HTTPClient(clientOptions))
        repeat {
          try reader.readAll(from: address)
          finishedRounds.wrappingAdd(1, ordering: .relaxed)
        } while try rounds.receive() != nil
      }
      defer { reading.cancel() }
      var options = HTTPServer.Options()
      options.tls = try certificate.map { try TLS.Server(certificateChain: $0.chain, privateKey: $0.key) }
      // The feed that breaks off is an error of its handler, which is on purpose.
      options.server.onError = { _, _ in }
      try HTTPServer.run(
        address,
        options: options,
        onListening: {
          bound.fulfill($0)
          onListening?($0)
        },
        answer
      )
    }
  }

  /// The site as a client names it.
  func url(_ address: SocketAddress) -> String {
    certificate == nil ? "http://\(address)" : "https://localhost:\(address.port ?? 443)"
  }

  /// The reader trusts the site's own certificate.
  private var clientOptions: HTTPClient.Options {
    var options = HTTPClient.Options()
    options.tls.trustedRoots = certificate?.chain
    return options
  }

  @Sendable private func answer(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    let path = request.path
    switch (request.method, path) {
    case (.get, "/"): try response.send(Page.html, type: "text/html; charset=utf-8")
    case (.get, "/feeds"): try send(library.feeds, &response)
    case (.get, "/items"): try send(library.items(matching: Self.search(request.query)), &response)
    case (.get, "/events"): try sendEvents(&response)
    case (.post, "/read"):
      _ = rounds.trySend(())
      response.status = .accepted
    case (.get, _) where path.hasPrefix("/source/"):
      try Sources.answer(String(path.dropFirst("/source/".count)), pause: pause, &response)
    case (_, "/"), (_, "/feeds"), (_, "/items"), (_, "/events"), (_, "/read"):
      throw HTTPStatusError(.methodNotAllowed)
    default: throw HTTPStatusError(.notFound)
    }
  }

  private func send(_ value: some Encodable, _ response: inout ServerResponse) throws {
    try response.send(Self.json(value), type: "application/json")
  }

  /// The value of `search` in a query; a plus sign is a space, as forms send it.
  private static func search(_ query: Substring?) -> String {
    let parts = URLComponents(string: "?\((query ?? "").replacing("+", with: "%20"))")
    return parts?.queryItems?.first { $0.name == "search" }?.value ?? ""
  }

  static func json(_ value: some Encodable) throws -> Data {
    let encoder = JSONEncoder()
    encoder.dateEncodingStrategy = .iso8601
    encoder.outputFormatting = [.sortedKeys]
    return try encoder.encode(value)
  }
}
