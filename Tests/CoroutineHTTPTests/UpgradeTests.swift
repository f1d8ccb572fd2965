#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// How an upgraded connection ends: plain, and over TLS.
@Suite("Upgraded connections", .timeLimit(.minutes(10)))
struct UpgradeTests {
  private static let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"

  private static func options(isSecure: Bool) throws -> HTTPServer.Options {
    var options = HTTPServer.Options()
    if isSecure {
      let files = try Certificates.shared()
      options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
    }
    return options
  }

  /// Connects and upgrades; `first` goes along with the request.
  private static func upgraded(_ address: SocketAddress, isSecure: Bool, _ first: String = "") throws -> Transport {
    try upgraded(Connection.connect(to: address), isSecure: isSecure, first)
  }

  private static func upgraded(_ connection: Connection, isSecure: Bool, _ first: String = "") throws -> Transport {
    var tls: TLS.Stream?
    if isSecure {
      var client = TLS.Client()
      client.trustedRoots = try Certificates.shared().path("ca.pem")
      tls = try client.start(on: connection, host: "localhost")
    }
    let transport = Transport(connection: connection, tls: tls)
    try transport.send(upgrade + first)
    #expect(try transport.next().hasPrefix("HTTP/1.1 101 "))
    return transport
  }

  @Test(arguments: ["Content-Length: 4", "Transfer-Encoding: chunked"], [false, true])
  func `a client that waits for 100-continue sends its body before the upgrade`(_ framing: String, isSecure: Bool)
    async throws
  {
    try await onCoroutine {
      try serving(try Self.options(isSecure: isSecure)) { _, response in
        try response.upgrade { connection, reader in
          while let line = try reader.readLine() { try connection.write("<\(line)>".utf8) }
        }
      } _: { server in
        let connection = try Connection.connect(to: server.address)
        var tls: TLS.Stream?
        if isSecure {
          var client = TLS.Client()
          client.trustedRoots = try Certificates.shared().path("ca.pem")
          tls = try client.start(on: connection, host: "localhost")
        }
        let transport = Transport(connection: connection, tls: tls)
        let fields = "Host: a\r\nConnection: upgrade\r\nUpgrade: echo\r\nExpect: 100-continue\r\n\(framing)\r\n\r\n"
        try transport.send("POST / HTTP/1.1\r\n" + fields)
        #expect(try transport.next() == "HTTP/1.1 100 Continue\r\n\r\n")
        try transport.send(framing.contains("chunked") ? "4\r\nbody\r\n0\r\n\r\n" : "body")
        try transport.send("one\n")
        try transport.shutdownWrite()
        let rest = try co_timeout(.seconds(60)) { try transport.rest() }
        #expect(rest.hasPrefix("HTTP/1.1 101 ") && rest.hasSuffix("\r\n\r\n<one>"), "\(rest)")
      }
    }
  }

  /// How a client goes.
  enum Going: CaseIterable { case ends, closes, resets }

  @Test(arguments: Going.allCases, [false, true])
  func `a handler learns that its client has gone, after what had arrived`(_ going: Going, isSecure: Bool) async throws
  {
    try await onCoroutine {
      let end = Promise<(lines: [String], error: (any Error)?)>()
      try serving(try Self.options(isSecure: isSecure)) { _, response in
        try response.upgrade { connection, reader in
          var lines: [String] = []
          do {
            while let line = try reader.readLine() { lines.append(line) }
            try connection.write("all".utf8)
            end.fulfill((lines, nil))
          } catch {
            end.fulfill((lines, error))
          }
        }
      } _: { server in
        let client = try Self.upgraded(server.address, isSecure: isSecure, "one\n")
        try client.send("two\n")
        switch going {
        case .ends:
          try client.shutdownWrite()
          #expect(try client.next() == "all")
        case .closes: client.connection.close()
        case .resets: client.connection.reset()
        }
        let (lines, error) = try co_timeout(.seconds(60)) { try co_await(end) }
        // A reset may overtake bytes.
        #expect(lines == ["one", "two"] || going == .resets)
        switch going {
        case .ends: #expect(error == nil)
        // Without TLS it is an end as any other, and the write may still be taken.
        case .closes: #expect(!isSecure || (error as? NetError)?.code == ECONNRESET, "\(String(describing: error))")
        case .resets: #expect((error as? NetError)?.code == ECONNRESET)
        }
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test(arguments: [false, true])
  func `a handler that writes to a client that takes nothing can give up, and its place is free`(
    isSecure: Bool
  ) async throws {
    try await onCoroutine {
      var options = try Self.options(isSecure: isSecure)
      options.server.maxConnections = 1
      try serving(options) { request, response in
        if request.path == "/next" { return try response.send("ok") }
        try response.upgrade { connection, _ in
          while true {
            try co_timeout(.milliseconds(50)) { try connection.write([UInt8](repeating: 1, count: 100_000)) }
          }
        }
      } _: { server in
        let silent = try Self.upgraded(server.address, isSecure: isSecure)
        try co_timeout(.seconds(60)) {
          var client = HTTPClient.Options()
          client.tls.trustedRoots = try Certificates.shared().path("ca.pem")
          let url = "\(isSecure ? "https" : "http")://localhost:\(server.port)/next"
          #expect(try HTTPClient(client).get(url).head.status == .ok)
        }
        silent.connection.close()
      }
    }
  }

  @Test(arguments: [false, true], [false, true])
  func `a handler closes or resets its connection, and the client sees it while the handler goes on`(
    isSecure: Bool,
    resets: Bool
  ) async throws {
    try await onCoroutine {
      let gate = Promise<Void>()
      try serving(try Self.options(isSecure: isSecure)) { _, response in
        try response.upgrade { connection, reader in
          _ = try reader.readLine()
          try connection.write("part".utf8)
          if resets { connection.reset() } else { connection.close() }
          try co_await(gate)
        }
      } _: { server in
        let client = try Self.upgraded(server.address, isSecure: isSecure)
        try client.send("go\n")
        let rest = { try co_timeout(.seconds(60)) { try client.rest() } }
        if resets { #expect(throws: (any Error).self) { try rest() } } else { #expect(try rest() == "part") }
        gate.fulfill(())
      }
    }
  }

  @Test(arguments: [false, true])
  func `a client upgrades as well, gets what came behind the head, and leaves its place to others`(
    isSecure: Bool
  ) async throws {
    try await onCoroutine {
      try serving(try Self.options(isSecure: isSecure)) { request, response in
        if request.offeredProtocols != ["echo"] { return try response.send("plain") }
        if request.path == "/refused" { throw HTTPStatusError(.unauthorized) }
        try response.upgrade { connection, reader in
          try connection.write("hello\n".utf8)
          while let line = try reader.readLine() { try connection.write("\(line)!\n".utf8) }
        }
      } _: { server in
        var options = HTTPClient.Options()
        options.connectionsOfHost = 1
        options.tls.trustedRoots = try Certificates.shared().path("ca.pem")
        let client = HTTPClient(options)
        let url = "\(isSecure ? "https" : "http")://localhost:\(server.port)/"
        var request = try HTTPRequest(url: url)
        request.headerFields[.upgrade] = "echo"
        let response = try client.send(request)
        #expect(response.head.headerFields[.upgrade] == "echo")
        try response.upgrade { connection, reader in
          #expect(try reader.readLine() == "hello")
          try connection.write("one\n".utf8)
          #expect(try reader.readLine() == "one!")
          let plain = try co_timeout(.seconds(60)) { try client.get(url).collect(upTo: 100) }
          #expect(plain == Array("plain".utf8))
          try connection.shutdownWrite()
          #expect(try reader.readLine() == nil)
        }
        request.path = "/refused"
        let refused = try client.send(request)
        #expect(refused.head.status == .unauthorized)
        let error = #expect(throws: HTTPError.self) { try refused.upgrade { _, _ in } }
        #expect("\(error.map { "\($0)" } ?? "")".contains("401"))
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test(arguments: Going.allCases)
  func `what is copied from a stream with TLS that was cut off is reset at the other end`(_ going: Going) async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      let (front, back) = (try Listener.bind(.loopback(port: 0)), try Listener.bind(.loopback(port: 0)))
      let proxy = co_launch {
        let stream = try tls.accept(front.accept())
        let target = try Connection.connect(to: back.address)
        defer { target.close() }
        _ = try? stream.withConnection { try co_copy($0, target, idle: nil) }
      }
      var settings = TLS.Client()
      settings.trustedRoots = files.path("ca.pem")
      let client = try settings.connect(host: "localhost", port: front.address.port ?? 0)
      try client.write([1])
      let target = try back.accept()
      #expect(try target.read(upTo: 10) == [1])
      switch going {
      case .ends: try client.shutdownWrite()
      case .closes: client.connection.close()
      case .resets: client.connection.reset()
      }
      let rest = try co_timeout(.seconds(60)) { try target.rest() }
      #expect(rest == (going == .ends ? "" : "<reset>"))
      target.close()
      try co_timeout(.seconds(60)) { try proxy.join() }
    }
  }

  @Test(arguments: [Going.closes, .resets], [false, true])
  func `a handler that only writes learns that its client has gone`(_ going: Going, isSecure: Bool) async throws {
    try await onCoroutine {
      let end = Promise<Void>()
      try serving(try Self.options(isSecure: isSecure)) { _, response in
        try response.upgrade { connection, _ in
          defer { end.fulfill(()) }
          while true { try connection.write([UInt8](repeating: 1, count: 10_000)) }
        }
      } _: { server in
        let client = try Self.upgraded(server.address, isSecure: isSecure)
        let reading = co_launch { while try !client.next().isEmpty {} }
        // More than the handler's end holds, which does not read it.
        #expect(throws: TimeoutError.self) {
          try co_timeout(.seconds(1)) { while true { try client.send(String(repeating: "x", count: 100_000)) } }
        }
        reading.cancel()
        _ = try? reading.join()
        if going == .resets { client.connection.reset() } else { client.connection.close() }
        try co_timeout(.seconds(60)) { try co_await(end) }
      }
    }
  }

  @Test(arguments: [false, true])
  func `what a handler has written reaches a client that takes it slowly`(isSecure: Bool) async throws {
    try await onCoroutine {
      let size = 300_000
      var options = try Self.options(isSecure: isSecure)
      options.server.listener.socket.sendBuffer = 16_384
      try serving(options) { _, response in
        try response.upgrade { connection, reader in
          _ = try reader.readLine()
          try connection.write([UInt8](repeating: 65, count: size))
        }
      } _: { server in
        var socket = SocketOptions()
        socket.receiveBuffer = 8_192
        let connection = try Connection.connect(to: server.address, options: socket)
        let client = try Self.upgraded(connection, isSecure: isSecure)
        try client.send("go\n")
        var (count, next) = (0, 16_384)
        while case let part = try client.next(), !part.isEmpty {
          count += part.utf8.count
          // The slowness is what is tested: more than two seconds in all, and much less between two parts.
          if count >= next {
            try co_delay(.milliseconds(200))
            next += 16_384
          }
        }
        #expect(count == size)
      }
    }
  }

  @Test func `a reader and a copy work over a stream with TLS, and TLS begins behind bytes that were read`()
    async throws
  {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      var settings = TLS.Client()
      settings.trustedRoots = files.path("ca.pem")
      let client = settings
      let (near, far) = try Connection.pair()
      let (target, behind) = try Connection.pair()
      let serving = co_launch {
        var reader = BufferedReader(far)
        #expect(try reader.readLine() == "STARTTLS")
        // The hello may have come with the line; nothing more follows it before the answer.
        if reader.bufferedCount == 0 { _ = try reader.fill() }
        let stream = try tls.accept(far, startingWith: reader.takeBuffered())
        _ = try stream.withConnection { try co_copy($0, target, idle: nil) }
        target.close()
      }
      let upper = co_launch {
        var reader = BufferedReader(behind)
        while let line = try reader.readLine() { try behind.write("\(line.uppercased())\n".utf8) }
        try behind.shutdownWrite()
      }
      try near.write("STARTTLS\n".utf8)
      try client.start(on: near, host: "localhost").withConnection { connection in
        var reader = BufferedReader(connection)
        for line in ["one", "two"] {
          try connection.write("\(line)\n".utf8)
          #expect(try reader.readLine() == line.uppercased())
        }
        try connection.shutdownWrite()
        #expect(try reader.readLine() == nil)
      }
      try serving.join()
      try upper.join()
    }
  }
}
#endif
