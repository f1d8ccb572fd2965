#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import CoroutineTesting
import HTTPTypes
import Testing

/// The code of the article HTTPAndTLS.md, and runs of it.
@Suite("The page about HTTP services", .timeLimit(.minutes(10)))
struct HTTPPageTests {
  /// Answers requests for notes, which it keeps in memory.
  final class Notes: Sendable {
    let texts = Locked<[String]>([])

    @Sendable func handle(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
      switch (request.method, request.path) {
      case (.get, "/notes"):
        for text in texts.current { try response.write(text + "\n") }
      case (.post, "/notes"):
        let text = String(decoding: try request.collect(upTo: 4_096), as: UTF8.self)
        texts.withLock { $0.append(text) }
        response.status = .created
        try response.send(text)
      default: throw HTTPStatusError(.notFound, "There is nothing at \(request.path).\n")
      }
    }
  }

  /// A function around a handler: counts what it answers.
  static func counting(
    _ count: Locked<[Int: Int]>,
    _ next: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void
  ) -> @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void {
    { request, response in
      defer { count.withLock { [code = response.status.code] in $0[code, default: 0] += 1 } }
      try next(request, &response)
    }
  }

  @Test func `the service of the page stores and lists notes, and counts`() async throws {
    try await onCoroutine {
      let notes = Notes()
      let count = Locked<[Int: Int]>([:])
      let server = try Running(.init(), Self.counting(count, notes.handle))
      let client = HTTPClient()
      let url = "http://127.0.0.1:\(server.port)/notes"
      let post = HTTPRequest(method: .post, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/notes")
      let created = try client.send(post, body: Array("one".utf8))
      let list = try client.get(url).collect(upTo: 100)
      let status = created.head.status
      #expect(status == .created && list == Array("one\n".utf8))
      client.close()
      try server.stop()
      #expect(count.current == [201: 1, 200: 1])
    }
  }

  @Test func `the service of the page speaks TLS, and stops`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let (certificate, key) = (files.path("server.pem"), files.path("server.key"))
      let notes = Notes()
      let bound = Promise<SocketAddress>()
      let service = co_launch {
        var options = HTTPServer.Options()
        options.tls = try TLS.Server(certificateChain: certificate, privateKey: key)
        options.server.drain = .seconds(5)
        try HTTPServer.run(
          .loopback(port: 0),
          options: options,
          onListening: { bound.fulfill($0) },
          notes.handle
        )
      }
      let address = try co_await(bound)
      var options = HTTPClient.Options()
      options.tls.trustedRoots = files.path("ca.pem")
      let response = try HTTPClient(options).get("https://localhost:\(address.port ?? 0)/")
      let status = response.head.status
      #expect(status == .notFound)
      service.cancel()
      try service.join()
    }
  }

  @Test(.simulated(.random(seeds: 20))) func `a client takes pages of a host, and leaves out what is no page`() throws {
    let world = try #require(World.current)
    world.network.host("site.example") {
      try HTTPServer.run(.any(port: 80)) { request, response in
        switch request.path {
        case "/": try response.send("<p>hello</p>", type: "text/html; charset=utf-8")
        case "/data": try response.send("1,2", type: "text/csv")
        default:
          response.status = .notFound
          try response.send("<p>nothing</p>", type: "text/html")
        }
      }
    }
    try world.settle()  // until the server listens
    let client = HTTPClient()

    /// The text of a page; nil if there is none, or if it is something else.
    func html(at url: String) throws -> String? {
      try co_timeout(.seconds(5)) {
        let response = try client.get(url)
        guard response.head.status == .ok else { return nil }
        guard response.head.headerFields[.contentType]?.hasPrefix("text/html") == true else { return nil }
        return String(decoding: try response.collect(upTo: 1_000_000), as: UTF8.self)
      }
    }

    let pages = try ["/", "/data", "/none"].map { path in try html(at: "http://site.example\(path)") }
    #expect(pages == ["<p>hello</p>", nil, nil])
    client.close()
  }

  @Test func `the diagnostics of the page are served`() async throws {
    let diagnostics = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
    defer { diagnostics.stop() }
    try await onCoroutine {
      let answer = try ask(diagnostics.address, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
      #expect(statuses(answer) == [200])
    }
  }

  @Test(.simulated(.random(seeds: 20))) func `the service of the page runs in a simulated network`() throws {
    let notes = Notes()
    let server = try Running(.init(), notes.handle)
    let client = try Connection.connect(to: server.address)
    try client.write(Array("POST /notes HTTP/1.0\r\nContent-Length: 3\r\n\r\none".utf8))
    #expect(try client.rest().hasPrefix("HTTP/1.1 201 Created\r\n"))
    #expect(notes.texts.current == ["one"])
    try server.stop()
  }
}
#endif
