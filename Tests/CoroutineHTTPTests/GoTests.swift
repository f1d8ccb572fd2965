#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import HTTPTypes
import Testing

/// Go's net/http as a client and as a server.
@Suite("Beside Go", .timeLimit(.minutes(10)), .enabled(if: Peer.has("go"), "needs Go: scripts/setup http"))
struct GoTests {
  @Test func `a client in Go gets its bodies back, in every framing`() async throws {
    try await onCoroutine {
      try serving { request, response in
        let body = try request.collect()
        switch request.path {
        case "/parts":
          let half = body.count / 2
          try body[..<half].withUnsafeBytes { try response.write($0) }
          try body[half...].withUnsafeBytes { try response.write($0) }
        case "/trailers":
          let count = HTTPField.Name("x-count")!
          response.fields[HTTPField.Name("trailer")!] = "X-Count"
          try body.withUnsafeBytes { try response.write($0) }
          try response.finish(trailers: [count: "\(body.count)"])
        default: try response.send(body)
        }
      } _: { server in
        let end = try Peer.run(try GoPeer.path(), "client", "http://127.0.0.1:\(server.port)")
        #expect(String(decoding: end.output, as: UTF8.self) == "800 answers 200\n")
        #expect(end.status == 0 && server.errors.current.isEmpty)
      }
    }
  }

  @Test func `the client understands a server in Go`() async throws {
    try await onCoroutine {
      try Peer.withFolder { folder in
        let peer = try Peer.Running(try GoPeer.path(), ["server", "\(folder)/port"])
        defer { withExtendedLifetime(peer) {} }
        var port: [UInt8]?
        while port == nil {
          port = try? Peer.read("\(folder)/port")
          try co_delay(.milliseconds(5))
        }
        let authority = "127.0.0.1:" + String(decoding: port ?? [], as: UTF8.self)
        let client = HTTPClient()
        defer { client.close() }
        try co_scope { scope in
          for number in 0..<8 {
            scope.launch {
              for size in 0..<50 {
                let body = [UInt8](repeating: UInt8(number + 48), count: size * size * 10)
                let request = HTTPRequest(method: .post, scheme: "http", authority: authority, path: "/echo")
                let echoed = try client.send(request, body: body).collect(upTo: 1_000_000)
                #expect(echoed == body)
              }
            }
          }
        }
        for path in ["/parts", "/moved"] {
          let parts = try client.get("http://\(authority)\(path)").collect(upTo: 10_000)
          #expect(parts.count == 4_950, "\(path)")
        }
        let first = try client.get("http://\(authority)/close").collect(upTo: 100)
        let second = try client.get("http://\(authority)/close").collect(upTo: 100)
        #expect(first != second)
        let error = #expect(throws: HTTPError.self) {
          _ = try client.get("http://\(authority)/broken").collect(upTo: 100)
        }
        #expect(error?.code == "BODY_INCOMPLETE")
      }
    }
  }
}
#endif
