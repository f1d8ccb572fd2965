#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Bodies of requests, and servers that answer before they have them.
@Suite("Bodies of requests", .timeLimit(.minutes(10)))
struct EarlyAnswerTests {
  /// What a server does after it has answered with 413, and read no byte of the body.
  enum After: CaseIterable { case closes, lingers, waits, resets }

  /// How the body is sent.
  enum Kind: CaseIterable { case bytes, length, chunks }

  private static let size = 8 << 20

  private static func send(_ client: HTTPClient, _ port: UInt16, _ kind: Kind, isSecure: Bool) throws -> ClientResponse
  {
    let scheme = isSecure ? "https" : "http"
    let request = HTTPRequest(method: .post, scheme: scheme, authority: "localhost:\(port)", path: "/")
    let part = [UInt8](repeating: 65, count: 65_536)
    let parts = [[UInt8]](repeating: part, count: size / part.count)
    switch kind {
    case .bytes: return try client.send(request, body: [UInt8](repeating: 65, count: size))
    case .length:
      return try client.send(request, length: UInt64(size)) { body in for part in parts { try body.write(part) } }
    case .chunks: return try client.send(request) { body in for part in parts { try body.write(part) } }
    }
  }

  private static func client() throws -> HTTPClient {
    var options = HTTPClient.Options()
    options.tls.trustedRoots = try Certificates.shared().path("ca.pem")
    return HTTPClient(options)
  }

  private static func tls() throws -> TLS.Server {
    let files = try Certificates.shared()
    return try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
  }

  @Test(arguments: After.allCases, Kind.allCases)
  func `an answer that comes before the end of the body is returned`(_ after: After, _ kind: Kind) async throws {
    try await onCoroutine {
      for isSecure in [false, true] {
        let tls = try Self.tls()
        let listener = try Listener.bind(.loopback(port: 0))
        let isDone = Promise<Void>()
        let peer = co_launch(name: "peer") {
          let connection = try listener.accept()
          defer { connection.close() }
          let transport = Transport(connection: connection, tls: isSecure ? try tls.accept(connection) : nil)
          while try !transport.next().contains("\r\n\r\n") {}
          try transport.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\nbig\n")
          switch after {
          case .closes: try transport.shutdownWrite()
          case .lingers: try connection.closeLingering(for: .seconds(1))
          case .waits: try co_await(isDone)
          case .resets: break
          }
          try co_await(isDone)
        }
        try co_timeout(.seconds(60)) {
          let response = try Self.send(try Self.client(), listener.address.port ?? 0, kind, isSecure: isSecure)
          #expect(response.head.status == .contentTooLarge)
          let text = try response.collect(upTo: 10)
          #expect(text == Array("big\n".utf8))
        }
        isDone.fulfill(())
        try peer.join()
      }
    }
  }

  @Test(arguments: Kind.allCases, [false, true])
  func `a body arrives as a whole, while its answer comes, and the connection is kept`(
    _ kind: Kind,
    isSecure: Bool
  ) async throws {
    try await onCoroutine {
      let peers = Locked<Set<String>>([])
      var options = HTTPServer.Options()
      // Otherwise an answer that begins before the end of such a body announces a close.
      options.discardedSize = Self.size
      if isSecure { options.tls = try Self.tls() }
      try serving(options) { request, response in
        peers.withLock { _ = $0.insert("\(request.peer)") }
        // Each part is answered before the next one is read.
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while case let count = try buffer.withUnsafeMutableBytes({ try request.read(into: $0) }), count > 0 {
          try buffer.withUnsafeBytes { try response.write(UnsafeRawBufferPointer(rebasing: $0[..<count])) }
        }
      } _: { server in
        let client = try Self.client()
        for _ in 0..<2 {
          let response = try Self.send(client, server.port, kind, isSecure: isSecure)
          let body = try response.collect(upTo: .max)
          let isWhole = body == [UInt8](repeating: 65, count: Self.size)
          #expect(isWhole)
        }
        #expect(peers.current.count == 1)
      }
    }
  }

  @Test func `a body that fails, or has another length than declared, is an error, and no whole request`() async throws
  {
    struct Oops: Error {}
    try await onCoroutine {
      let bodies = Locked<[Int]>([])
      try serving { request, response in
        let body = try request.collect()
        bodies.withLock { $0.append(body.count) }
        try response.send("ok")
      } _: { server in
        let client = HTTPClient()
        let request = HTTPRequest(method: .post, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/")
        #expect(throws: Oops.self) { _ = try client.send(request) { _ in throw Oops() }.head }
        for length in [nil, 2] as [UInt64?] {
          #expect(throws: Oops.self) {
            _ = try client.send(request, length: length) { body in
              try body.write(
                co_sequence(of: UInt8.self) {
                  for byte in 0..<2 as Range<UInt8> { try $0(byte) }
                  throw Oops()
                }
              )
            }.head
          }
        }
        for count in [1, 3] {
          let error = #expect(throws: HTTPError.self) {
            _ = try client.send(request, length: 2) { try $0.write([UInt8](repeating: 1, count: count)) }.head
          }
          #expect(error?.code == "WRONG_LENGTH")
        }
        let parts = [[UInt8](repeating: 1, count: 5), [], [2]]
        let response = try client.send(request) { body in
          for part in parts { try body.write(part) }
        }
        #expect(response.head.status == .ok && bodies.current == [6])
      }
    }
  }

  @Test func `an address that is not allowed is not connected to`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("ok")
      } _: { server in
        var options = HTTPClient.Options()
        options.isAllowed = { "\($0)" != "127.0.0.1:\(server.port)" && "\($0)" != "[::1]:\(server.port)" }
        let client = HTTPClient(options)
        for host in ["127.0.0.1", "localhost", "[::1]", "127.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"] {
          let error = #expect(throws: NetError.self) { _ = try client.get("http://\(host):\(server.port)/").head }
          #expect(error?.code == EACCES)
          #expect(error?.description.contains("isAllowed refuses") == true)
        }
        let head = try HTTPClient().get("http://127.0.0.1:\(server.port)/").head
        #expect(head.status == .ok)
      }
    }
  }
}
#endif
