#if HTTP
import Coroutine
import CoroutineNet
import CoroutineTesting
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

@Suite("TLS", .timeLimit(.minutes(10)))
struct TLSTests {
  /// A server of echoes on TLS, and the error of its last handshake.
  final class Echo: Sendable {
    let listener: Listener
    let job: Job<Void>
    let failures = Channel<String>(.unbounded)
    let sessions = Channel<TLS.Session>(.unbounded)

    init(_ tls: TLS.Server) throws {
      let listener = try Listener.bind(.loopback(port: 0))
      self.listener = listener
      let (failures, sessions) = (failures, sessions)
      job = co_launch {
        try co_scope(failures: .isolated) { scope in
          while let connection = try? listener.accept() {
            _ = scope.launch {
              do {
                let stream = try tls.accept(connection)
                try sessions.send(stream.session)
                while case let bytes = try stream.read(upTo: 100_000), !bytes.isEmpty { try stream.write(bytes) }
                try stream.shutdownWrite()
              } catch {
                try failures.send("\(error)")
                connection.close()
              }
            }
          }
          scope.cancel()
        }
      }
    }

    var port: UInt16 { listener.address.port ?? 0 }

    func stop() throws {
      listener.close()
      try job.join()
    }
  }

  private func server(_ name: String = "server") throws -> TLS.Server {
    let files = try Certificates.shared()
    return try TLS.Server(certificateChain: files.path("\(name).pem"), privateKey: files.path("\(name).key"))
  }

  private func client() throws -> TLS.Client {
    var client = TLS.Client()
    client.trustedRoots = try Certificates.shared().path("ca.pem")
    return client
  }

  private func echo(_ stream: TLS.Stream, _ bytes: [UInt8]) throws -> [UInt8] {
    let writer = co_launch {
      try stream.write(bytes)
      try stream.shutdownWrite()
    }
    var all: [UInt8] = []
    while case let part = try stream.read(upTo: 100_000), !part.isEmpty { all += part }
    try writer.join()
    return all
  }

  @Test func `a client and a server exchange bytes in both directions at once, and end`() async throws {
    try await onCoroutine {
      let echo = try Echo(try server())
      let stream = try client().connect(host: "localhost", port: echo.port)
      #expect(stream.session.version == "TLSv1.3" && !stream.session.isResumed)
      let bytes = (0..<3_000_000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
      #expect(try self.echo(stream, bytes) == bytes)
      try echo.stop()
    }
  }

  @Test func `a sequence that fails is the error of the write, and no byte of it is sent`() async throws {
    struct Oops: Error {}
    try await onCoroutine {
      let echo = try Echo(try server())
      let stream = try client().connect(host: "localhost", port: echo.port)
      #expect(throws: Oops.self) {
        try stream.write(
          co_sequence(of: UInt8.self) {
            try $0(1)
            throw Oops()
          }
        )
      }
      #expect(try self.echo(stream, [2]) == [2])
      try echo.stop()
    }
  }

  @Test func `two ends that both write go on reading`() async throws {
    try await onCoroutine {
      let (near, far) = try Connection.pair()
      let tls = try server()
      let accepted = co_launch { try tls.accept(far) }
      let streams = [try client().start(on: near, host: "localhost"), try accepted.join()]
      // More than the sockets hold.
      let bytes = [UInt8](repeating: 7, count: 4_000_000)
      try co_timeout(.seconds(60)) {
        try co_scope { scope in
          for stream in streams {
            scope.launch(name: "writer") {
              try stream.write(bytes)
              try stream.shutdownWrite()
            }
            scope.launch(name: "reader") {
              var count = 0
              while case let part = try stream.read(upTo: 100_000), !part.isEmpty { count += part.count }
              #expect(count == bytes.count)
            }
          }
        }
      }
    }
  }

  @Test func `a handshake fits into the least stack`() async throws {
    try await onCoroutine {
      for name in ["server", "rsa"] {
        // An overflow would end the process.
        _ = try Self.handshakes(try server(name), try client(), stack: TLS.leastStack)
      }
    }
  }

  /// What the page says of stacks.
  ///
  /// In a process of its own, where no coroutine had these stacks before.
  @Test func `a handshake touches a third of the least stack at most`() async throws {
    let end = await #expect(processExitsWith: .success, observing: [\.standardOutputContent]) {
      try await onCoroutine {
        let files = try Certificates.shared()
        for name in ["server", "rsa"] {
          let tls = try TLS.Server(certificateChain: files.path("\(name).pem"), privateKey: files.path("\(name).key"))
          try tls.verifyClients(roots: files.path("ca.pem"))
          var client = TLS.Client()
          client.trustedRoots = files.path("ca.pem")
          client.certificateChain = files.path("client.pem")
          client.privateKey = files.path("client.key")
          let (accepting, connecting) = try TLSTests.handshakes(tls, client, stack: .bytes(256 << 10))
          print(
            "stack of a handshake with \(name): \(accepting >> 10) KiB accepting, \(connecting >> 10) KiB connecting"
          )
          // 64 KiB, of which the runtime and the program have two thirds.
          #expect(max(accepting, connecting) <= 24 << 10)
        }
      }
    }
    let lines = String(decoding: end?.standardOutputContent ?? [], as: UTF8.self).split(separator: "\n")
    print(lines.filter { $0.hasPrefix("stack of a handshake") }.joined(separator: "\n"))
  }

  /// Makes a handshake on stacks of a size; returns the bytes of stack that each side has touched.
  static func handshakes(_ tls: TLS.Server, _ client: TLS.Client, stack: StackSize) throws -> (Int, Int) {
    let (near, far) = try Connection.pair()
    let accepted = co_launch(stack: stack) {
      let stream = try tls.accept(far)
      try stream.write(stream.read(upTo: 100))
      return touchedStack()
    }
    let connected = co_launch(stack: stack) {
      let stream = try client.start(on: near, host: "localhost")
      try stream.write(Array("hello".utf8))
      guard try stream.read(upTo: 100) == Array("hello".utf8) else { throw NetError.endOfStream }
      return touchedStack()
    }
    return try (accepted.join(), connected.join())
  }

  @Test func `a certificate that is not trusted, has expired or has another name is refused`() async throws {
    try await onCoroutine {
      for (name, host, sentence) in [
        ("alien", "localhost", "self-signed"), ("expired", "localhost", "expired"), ("server", "127.0.0.2", "mismatch"),
        ("server", "other.test", "subjectAltName"), ("common", "common.test", "subjectAltName"),
      ] {
        let echo = try Echo(try server(name))
        let connection = try Connection.connect(to: echo.listener.address)
        let error = #expect(throws: TLSError.self) {
          _ = try client().start(on: connection, host: host)
        }
        #expect(error?.description.contains(sentence) == true, "\(String(describing: error))")
        connection.close()
        #expect(try echo.failures.receive()?.contains("alert") == true)
        try echo.stop()
      }
    }
  }

  @Test func `a server shows the certificate of the name, agrees on a protocol, and reloads`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try server()
      try tls.add(
        serverName: "other.test",
        certificateChain: files.path("other.pem"),
        privateKey: files.path("other.key")
      )
      try tls.add(
        serverName: "*.wild.test",
        certificateChain: files.path("other.pem"),
        privateKey: files.path("other.key")
      )
      try tls.setApplicationProtocols(["http/1.1", "x"])
      let echo = try Echo(tls)
      var client = try client()
      client.applicationProtocols = ["x", "http/1.1"]
      for host in ["localhost", "other.test", "a.wild.test"] {
        let connection = try Connection.connect(to: echo.listener.address)
        let stream = try client.start(on: connection, host: host)
        #expect(stream.session.applicationProtocol == "http/1.1")
        #expect(try self.echo(stream, [1]) == [1])
        #expect(try echo.sessions.receive()?.serverName == host)
      }
      try tls.reload()
      client.applicationProtocols = ["unknown"]
      let connection = try Connection.connect(to: echo.listener.address)
      #expect(throws: TLSError.self) { _ = try client.start(on: connection, host: "localhost") }
      try echo.stop()
    }
  }

  @Test func `a session is resumed, also after a reload`() async throws {
    try await onCoroutine {
      let tls = try server()
      let echo = try Echo(tls)
      let client = try client()
      var resumed: [Bool] = []
      for round in 0..<3 {
        if round == 2 { try tls.reload() }
        let stream = try client.connect(host: "localhost", port: echo.port)
        resumed.append(stream.session.isResumed)
        #expect(try self.echo(stream, [1, 2]) == [1, 2])
      }
      #expect(resumed == [false, true, true])
      try echo.stop()
    }
  }

  @Test func `a client without the certificate that the server asks for is refused`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try server()
      try tls.verifyClients(roots: files.path("ca.pem"))
      let echo = try Echo(tls)
      var client = try client()
      client.certificateChain = files.path("client.pem")
      client.privateKey = files.path("client.key")
      let stream = try client.connect(host: "localhost", port: echo.port)
      #expect(try self.echo(stream, [1]) == [1])
      #expect(try echo.sessions.receive()?.peerCertificate != nil)
      // In TLS 1.3 the client learns of the refusal with its first read.
      let other = try self.client().connect(host: "localhost", port: echo.port)
      #expect(throws: TLSError.self) { _ = try other.read(upTo: 1) }
      #expect(try echo.failures.receive()?.contains("certificate") == true)
      try echo.stop()
    }
  }

  @Test func `garbage, plain HTTP and a stream that is cut off are errors with a sentence`() async throws {
    try await onCoroutine {
      let echo = try Echo(try server())
      for text in ["GET / HTTP/1.1\r\n\r\n", "\u{16}\u{3}\u{1}garbage garbage garbage", "\0\0\0\0\0\0\0\0\0\0\0"] {
        let connection = try Connection.connect(to: echo.listener.address)
        try connection.write(Array(text.utf8))
        _ = try connection.rest()
        let failure = try echo.failures.receive() ?? ""
        #expect(failure.contains("TLS failed: "))
        if text.hasPrefix("GET") { #expect(failure.contains("https"), "\(failure)") }
      }
      let stream = try client().connect(host: "localhost", port: echo.port)
      try stream.write([1])
      #expect(try stream.read(upTo: 1) == [1])
      // The end of the connection, without that of TLS.
      try stream.connection.shutdownWrite()
      #expect(try echo.failures.receive()?.contains("cut off") == true)
      try echo.stop()
    }
  }

  @Test func `a cancelled handshake and a read with a deadline throw at once`() async throws {
    try await onCoroutine {
      let (near, far) = try Connection.pair()
      let tls = try server()
      let waiting = co_launch(name: "waits for a hello") { _ = try tls.accept(far) }
      while !CoroutineRuntime.snapshot().coroutines.contains(where: {
        $0.name == "waits for a hello" && $0.state == .waiting
      }) { try co_yield() }
      waiting.cancel()
      #expect(throws: CancellationError.self) { try waiting.join() }
      // The end of the stream has closed its connection.
      #expect(try near.read(upTo: 1).isEmpty)
      // So the client's peer is another one, which is silent and stays open.
      let (open, silent) = try Connection.pair()
      let client = try client()
      #expect(throws: TimeoutError.self) {
        try co_timeout(.milliseconds(10)) { _ = try client.start(on: open, host: "localhost") }
      }
      silent.close()
    }
  }

  @Test func `a client that speaks TLS to a server without it is told so`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("plain")
      } _: { server in
        let error = #expect(throws: TLSError.self) { _ = try client().connect(host: "localhost", port: server.port) }
        #expect(error?.description.contains("the peer does not speak TLS") == true, "\(String(describing: error))")
      }
    }
  }

  @Test func `a file that is not there is an error that says so`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let (chain, key, none) = (files.path("server.pem"), files.path("server.key"), files.path("none.pem"))
      let server = try server()
      func check(_ name: String, _ body: () throws -> Void) {
        let error = #expect(throws: TLSError.self, "\(name)") { try body() }
        let text = error?.description ?? ""
        #expect(text.contains("No such file") && text.contains(none) && !text.contains("unknown"), "\(name): \(text)")
      }
      check("chain") { _ = try TLS.Server(certificateChain: none, privateKey: key) }
      check("key") { _ = try TLS.Server(certificateChain: chain, privateKey: none) }
      check("add") { try server.add(serverName: "a", certificateChain: chain, privateKey: none) }
      check("roots") { try server.verifyClients(roots: none) }
      let connection = try Connection.pair().0
      var client = TLS.Client()
      client.trustedRoots = none
      check("trusted roots") { _ = try client.start(on: connection, host: "a") }
    }
  }

  /// Otherwise OpenSSL asks at the terminal, and blocks the thread meanwhile.
  @Test(arguments: [["ec"], ["pkcs8", "-topk8"]])
  func `a key with a pass phrase is refused, and no terminal is asked for it`(_ command: [String]) async throws {
    try await onCoroutine { try Peer.withFolder { try refusesPassPhrase(command, $0) } }
  }

  private func refusesPassPhrase(_ command: [String], _ folder: String) throws {
    let files = try Certificates.shared()
    let (chain, key, secret) = (files.path("server.pem"), files.path("server.key"), "\(folder)/secret.key")
    let cipher = command == ["ec"] ? ["-aes256"] : ["-v2", "aes256"]
    try files.openssl(command + ["-in", key, "-out", secret] + cipher + ["-passout", "pass:secret"])
    Self.expectPassPhrase(secret) { _ = try TLS.Server(certificateChain: chain, privateKey: secret) }
    let server = try server()
    Self.expectPassPhrase(secret) { try server.add(serverName: "a", certificateChain: chain, privateKey: secret) }
    let connection = try Connection.pair().0
    var client = try client()
    client.certificateChain = chain
    client.privateKey = secret
    Self.expectPassPhrase(secret) { _ = try client.start(on: connection, host: "a") }
    let copy = "\(folder)/copy.key"
    try Peer.write(try Peer.read(key), to: copy)
    let reloaded = try TLS.Server(certificateChain: chain, privateKey: copy)
    try Peer.write(try Peer.read(secret), to: copy)
    Self.expectPassPhrase(copy) { try reloaded.reload() }
  }

  private static func expectPassPhrase(_ file: String, _ body: () throws -> Void) {
    do {
      try body()
      Issue.record("\(file) is taken")
    } catch {
      let text = "\(error)"
      #expect(error is TLSError && text.contains("has a pass phrase") && text.contains(file), "\(text)")
    }
  }

  @Test func `files that do not fit together are refused with their names`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      for (chain, key) in [("server.pem", "other.key"), ("none.pem", "server.key"), ("server.key", "server.key")] {
        let error = #expect(throws: TLSError.self) {
          _ = try TLS.Server(certificateChain: files.path(chain), privateKey: files.path(key))
        }
        #expect(error?.description.contains(files.folder) == true)
      }
    }
  }

  /// OpenSSL checks no name if it is empty, and takes one with a dot in front for all below it.
  @Test(arguments: ["", ".", "..", ".localhost", ".localhost."])
  func `a host without a name is refused, and not taken for every name`(_ host: String) async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let connection = try Connection.connect(to: listener.address)
      defer { connection.close() }
      var client = TLS.Client()
      client.trustedRoots = try Certificates.shared().path("ca.pem")
      let error = #expect(throws: TLSError.self) { _ = try client.start(on: connection, host: host) }
      #expect(error?.description.contains("no name of a host") == true, "\(String(describing: error))")
    }
  }

  @Test func `no path and no name with a zero byte reaches OpenSSL`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let (chain, key, roots) = (files.path("server.pem"), files.path("server.key"), files.path("ca.pem"))
      let server = try TLS.Server(certificateChain: chain, privateKey: key)
      func check(_ name: String, _ body: () throws -> Void) {
        let error = #expect(throws: TLSError.self, "\(name)") { try body() }
        #expect(error?.description.contains("zero byte") == true, "\(name)")
      }
      check("chain") { _ = try TLS.Server(certificateChain: chain + "\0x", privateKey: key) }
      check("key") { _ = try TLS.Server(certificateChain: chain, privateKey: key + "\0x") }
      check("name") { try server.add(serverName: "a\0.b", certificateChain: chain, privateKey: key) }
      check("roots") { try server.verifyClients(roots: roots + "\0x") }
      let listener = try Listener.bind(.loopback(port: 0))
      func start(_ host: String, _ change: (inout TLS.Client) -> Void) throws {
        var client = TLS.Client()
        change(&client)
        let connection = try Connection.connect(to: listener.address)
        defer { connection.close() }
        _ = try client.start(on: connection, host: host)
      }
      check("host") { try start("localhost\0.example") { $0.trustedRoots = roots } }
      check("trusted roots") { try start("localhost") { $0.trustedRoots = roots + "\0" } }
      check("client's chain") { try start("localhost") { $0.certificateChain = chain + "\0" } }
      check("client's key") {
        try start("localhost") {
          $0.certificateChain = chain
          $0.privateKey = key + "\0"
        }
      }
    }
  }

  @Test(.enabled(if: Peer.has("curl"))) func `curl and openssl s_client use an HTTP server with TLS`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      var options = HTTPServer.Options()
      options.tls = try server()
      try options.tls?.setApplicationProtocols(["http/1.1"])
      let size = 300_000
      try serving(options) { request, response in
        switch request.path {
        case "/file": try response.sendFile(files.path("large"))
        case "/post": try response.send(try request.collect())
        default: try response.send("\(request.tls?.version ?? "plain") \(request.head.scheme ?? "")")
        }
      } _: { server in
        try Peer.write([UInt8](repeating: 66, count: size), to: files.path("large"))
        func curl(_ path: String, _ more: String...) throws -> [UInt8] {
          let url = "https://localhost:\(server.port)\(path)"
          return try Peer.run("curl", ["-s", "-m", "120", "--cacert", files.path("ca.pem")] + more + [url]).output
        }
        func curlText(_ path: String, _ more: String...) throws -> String {
          let url = "https://localhost:\(server.port)\(path)"
          let arguments = ["-s", "-m", "120", "--cacert", files.path("ca.pem")] + more + [url]
          return String(decoding: try Peer.run("curl", arguments).output, as: UTF8.self)
        }
        #expect(try curlText("/") == "TLSv1.3 https")
        #expect(try curlText("/", "--tls-max", "1.2") == "TLSv1.2 https")
        #expect(try curl("/file") == [UInt8](repeating: 66, count: size))
        #expect(try curl("/post", "--data-binary", "@\(files.path("large"))").count == size)
        let end = try Peer.run(
          "openssl",
          "s_client",
          "-connect",
          "localhost:\(server.port)",
          "-CAfile",
          files.path("ca.pem"),
          "-quiet",
          "-verify_return_error",
          "-servername",
          "localhost",
          input: Array("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".utf8)
        )
        #expect(String(decoding: end.output, as: UTF8.self).hasSuffix("TLSv1.3 https"))
        // Plain HTTP gets an alert, or nothing; and the server goes on.
        let plain = try ask(server.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(!plain.contains("200 OK"))
        #expect(try curlText("/") == "TLSv1.3 https")
      }
    }
  }
}

/// The bytes of the calling coroutine's stack, from here on, in pages that have been touched.
@inline(never)
private func touchedStack() -> Int {
  var here: UInt8 = 0
  return withUnsafeMutablePointer(to: &here) { here in
    var page = UInt(bitPattern: here) & ~4_095
    var (count, isResident): (Int, UInt8) = (0, 0)
    while mincore(UnsafeMutableRawPointer(bitPattern: page), 4_096, &isResident) == 0, isResident & 1 == 1 {
      count += 4_096
      page -= 4_096
    }
    return count
  }
}
#endif
