import Coroutine
import CoroutineNet
import Glibc
import Testing

/// The proxy and the name server of Examples, against programs that other people wrote.
@Suite("Examples with real peers", .timeLimit(.minutes(10)))
struct ExamplePeerTests {
  /// Runs `body` beside a server.
  private static func beside<Output: Sendable>(
    _ handle: @escaping @Sendable (Connection) throws -> Void,
    _ body: @escaping @Sendable (SocketAddress) throws -> Output
  ) throws -> Output {
    let bound = Promise<SocketAddress>()
    let address = try ownLoopback()
    let server = co_launch { try Server.run(address, onListening: { bound.fulfill($0) }, handle) }
    defer { server.cancel() }
    let output = try body(try co_await(bound))
    server.cancel()
    try server.join()
    return output
  }

  /// A web server of one page, which says what it was asked for, and takes what it is sent.
  @Sendable private static func page(_ connection: Connection) throws {
    var reader = BufferedReader(connection)
    guard let line = try reader.readLine() else { return }
    var length = 0
    while let field = try reader.readLine(), !field.isEmpty {
      if field.lowercased().hasPrefix("content-length:") {
        length = Int(field.split(separator: " ").last ?? "") ?? 0
      }
      if field.lowercased() == "expect: 100-continue" { try connection.write("HTTP/1.1 100 Continue\r\n\r\n".utf8) }
    }
    let body = try reader.read(exactly: length)
    let text = "\(line)|\(body.count)|\(body.reduce(0) { $0 &+ Int($1) })"
    try connection.write("HTTP/1.1 200 OK\r\nContent-Length: \(text.utf8.count)\r\n\r\n\(text)".utf8)
  }

  @Test(.enabled(if: Peer.has("curl"), "curl is not installed"))
  func `curl reaches a server through the proxy, with a tunnel and without one`() async throws {
    try await onCoroutine {
      try Self.beside(Self.page) { site in
        try Self.beside(Proxy().serve) { proxy in
          let upload = [UInt8](repeating: 3, count: 2_000_000)
          for tunnel in [[], ["--proxytunnel"]] {
            let get = ["-sS", "-x", "http://\(proxy)"] + tunnel + ["http://\(site)/a/page?with=query"]
            let got = try Peer.run("curl", get)
            #expect(String(decoding: got.output, as: UTF8.self) == "GET /a/page?with=query HTTP/1.1|0|0")
            let put = ["-sS", "-x", "http://\(proxy)"] + tunnel + ["-T", "-", "-H", "Transfer-Encoding:"]
            let length = ["-H", "Content-Length: \(upload.count)", "http://\(site)/file"]
            let sent = try Peer.run("curl", put + length, input: upload)
            #expect(String(decoding: sent.output, as: UTF8.self) == "PUT /file HTTP/1.1|2000000|6000000")
          }
        }
      }
    }
  }

  @Test(.enabled(if: Peer.has("curl"), "curl is not installed"))
  func `curl gets the proxy's own answer where a server is not to be reached`() async throws {
    try await onCoroutine {
      try Self.beside(Proxy().serve) { proxy in
        func status(_ target: String, _ more: String...) throws -> String {
          let words = ["-s", "-o", "/dev/null", "-w", "%{http_code} %{http_connect}", "-x", "http://\(proxy)"]
          return String(decoding: try Peer.run("curl", words + more + [target]).output, as: UTF8.self)
        }
        try withSilentPort { port in
          let plain = try status("http://127.0.0.1:\(port)/")
          let tunnel = try status("http://127.0.0.1:\(port)/", "--proxytunnel")
          #expect(plain == "502 000" && tunnel == "000 502")
        }
        let long = "X-Long: \(String(repeating: "x", count: 20_000))"
        #expect(try status("http://127.0.0.1:1/", "-H", long) == "431 000")
      }
    }
  }

  @Test(.enabled(if: Peer.has("dig"), "dig is not installed"))
  func `dig gets answers of the name server from the two addresses that it asks`() async throws {
    try await onCoroutine {
      let socket = try DatagramSocket.bind(.any(port: 0))
      let server = co_launch { try NameServer.run(socket) }
      defer { server.cancel() }
      func ask(_ host: String, _ words: String...) throws -> String {
        // dig drops answers that come from another address than the one that it has asked.
        let common = ["@\(host)", "-p", "\(socket.address.port ?? 0)", "+tries=1", "+time=20"]
        return String(decoding: try Peer.run("dig", common + words).output, as: UTF8.self)
      }
      for host in ["127.0.0.1", "127.0.0.2"] {
        #expect(try ask(host, "+short", "localhost", "A") == "127.0.0.1\n", "\(host)")
        #expect(try ask(host, "192.0.2.7", "A").contains("192.0.2.7"), "\(host)")
        #expect(try ask(host, "no..such", "A").contains("NOERROR") == false, "\(host)")
      }
    }
  }

  @Test(.enabled(if: Peer.has("nc"), "nc is not installed"))
  func `nc talks through a copy, and sees the other end close`() async throws {
    try await onCoroutine {
      let echo: @Sendable (Connection) throws -> Void = { try $0.write(try $0.readAll()) }
      let sent = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 0x9E37 >> 7) }
      try Self.beside(echo) { target in
        let tunnel: @Sendable (Connection) throws -> Void = { connection in
          let server = try Connection.connect(to: target)
          defer { server.close() }
          try co_copy(connection, server, idle: .seconds(100))
        }
        try Self.beside(tunnel) { middle in
          let words = "\(middle)".split(separator: ":").map(String.init)
          let end = try Peer.run("nc", ["-N"] + words, input: sent)
          let isSame = end.output == sent
          #expect(isSame && end.status == 0)
        }
      }
    }
  }
}
