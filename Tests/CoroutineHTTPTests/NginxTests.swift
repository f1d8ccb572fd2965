#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

/// nginx as a client and as a server.
@Suite("Beside nginx", .timeLimit(.minutes(10)))
struct NginxTests {
  private static let program: String? = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"].first { path in
    access(path, X_OK) == 0
  }

  /// Starts nginx with a server, and calls `body` with its host and port, and the folder of its files.
  private func withNginx(
    _ location: String,
    more: String = "",
    _ body: (_ authority: String, _ files: String) throws -> Void
  ) throws {
    let program = try #require(Self.program)
    try Peer.withFolder { folder in
      // A port that was free a moment ago, of an address that no other test uses.
      let listener = try Listener.bind(ownLoopback())
      let address = listener.address
      listener.close()
      // A process that another test is starting has a copy of the listener until it runs its program.
      while (try? Connection.connect(to: address).close()) != nil { try co_yield() }
      let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map { "\($0)_temp_path \(folder)/\($0);" }
      let configuration = """
        daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/errors;
        events { worker_connections 256; }
        http {
          access_log off; keepalive_requests 10000; client_max_body_size 64m; \(temporary.joined(separator: " "))
          \(more)
          server { listen \(address); location / { \(location.replacing("FOLDER", with: folder)) } }
        }
        """
      try Peer.write(Array(configuration.utf8), to: "\(folder)/nginx.conf")
      let nginx = try Peer.Running(program, ["-c", "\(folder)/nginx.conf", "-e", "\(folder)/errors"])
      while (try? Connection.connect(to: address).close()) == nil { try co_delay(.milliseconds(10)) }
      try body("\(address)", folder)
      withExtendedLifetime(nginx) {}
    }
  }

  @Test(.enabled(if: program != nil, "needs nginx: scripts/setup http"))
  func `nginx in front keeps its connections, and passes bodies in both directions`() async throws {
    try await onCoroutine {
      let peers = Locked<Set<String>>([])
      try serving { request, response in
        peers.withLock { _ = $0.insert("\(request.peer)") }
        switch request.path {
        case "/large":
          let part = [UInt8](repeating: 66, count: 100_000)
          for _ in 0..<50 { try part.withUnsafeBytes { try response.write($0) } }
        case "/none": throw HTTPStatusError(.notFound)
        default: try response.send(try request.collect())
        }
      } _: { server in
        let upstream = "upstream ours { server 127.0.0.1:\(server.port); keepalive 4; }"
        let pass = """
          proxy_pass http://ours; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off;
          """
        try withNginx(pass, more: upstream) { authority, folder in
          let url = "http://\(authority)"
          let body = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 &* 31) }
          try Peer.write(body, to: "\(folder)/body")
          for fields in [["-H", "transfer-encoding: chunked"], ["-H", "expect: 100-continue"], []] {
            let arguments = ["-s", "-m", "60"] + fields + ["--data-binary", "@\(folder)/body", "\(url)/echo"]
            let echoed = try Peer.run("curl", arguments).output
            #expect(echoed == body, "\(fields)")
          }
          let large = try Peer.run("curl", "-s", "-m", "60", "\(url)/large").output.count
          #expect(large == 5_000_000)
          let status = try Peer.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "\(url)/none").output
          #expect(status == Array("404".utf8))
          let many = (0..<100).flatMap { ["-d", "\($0);", "\(url)/echo", "--next", "-s"] }.dropLast(2)
          let all = try Peer.run("curl", ["-s", "-m", "60"] + many).output
          #expect(String(decoding: all, as: UTF8.self) == (0..<100).map { "\($0);" }.joined())
          // 105 requests on few connections.
          #expect(peers.current.count < 20, "\(peers.current.count)")
          #expect(server.errors.current.isEmpty)
        }
      }
    }
  }

  @Test(.enabled(if: program != nil, "needs nginx: scripts/setup http"))
  func `the client reads files of nginx on few connections`() async throws {
    try await onCoroutine {
      try withNginx("root FOLDER; etag on;") { authority, folder in
        let file = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
        try Peer.write(file, to: "\(folder)/file")
        let client = HTTPClient()
        defer { client.close() }
        func request(_ method: HTTPRequest.Method, _ path: String) -> HTTPRequest {
          HTTPRequest(method: method, scheme: "http", authority: authority, path: path)
        }
        try co_scope { scope in
          for _ in 0..<8 {
            scope.launch {
              for _ in 0..<20 {
                let whole = try client.get("http://\(authority)/file").collect(upTo: 2_000_000)
                #expect(whole == file)
              }
            }
          }
        }
        var part = request(.get, "/file")
        part.headerFields[.range] = "bytes=10-19"
        let ten = try client.send(part).collect(upTo: 100)
        #expect(ten == Array(file[10..<20]))
        let head = try client.send(request(.head, "/file")).head
        #expect(head.status == .ok && head.headerFields[.contentLength] == "1000000")
        var unchanged = request(.get, "/file")
        unchanged.headerFields[.ifNoneMatch] = head.headerFields[.eTag]
        let notModified = try client.send(unchanged).head.status
        #expect(notModified == .notModified)
        let missing = try client.send(request(.get, "/none")).head.status
        #expect(missing == .notFound)
        let refused = try client.send(request(.post, "/file"), body: [1, 2, 3]).head.status
        #expect(refused == .methodNotAllowed)
      }
    }
  }
}
#endif
