#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

@Suite("The client", .timeLimit(.minutes(10)))
struct ClientTests {
  private func fetch(_ client: HTTPClient, _ url: String) throws -> String {
    text(try client.get(url).collect(upTo: 10_000))
  }

  private func body(_ client: HTTPClient, _ request: HTTPRequest) throws -> [UInt8] {
    try client.send(request).collect(upTo: 10_000)
  }

  private func bodyText(_ client: HTTPClient, _ request: HTTPRequest) throws -> String {
    text(try body(client, request))
  }

  private func text(_ bytes: [UInt8]) -> String { String(decoding: bytes, as: UTF8.self) }

  @Test func `requests share connections, and bodies of every framing are read`() async throws {
    try await onCoroutine {
      let peers = Locked<Set<String>>([])
      try serving { request, response in
        peers.withLock { _ = $0.insert("\(request.peer)") }
        switch request.path {
        case "/parts":
          for part in 0..<100 { try response.write("\(part),") }
        case "/close":
          response.fields[.connection] = "close"
          try response.send("closed")
        case "/echo": try response.send(try request.collect())
        default: try response.send("\(request.method) \(request.path) \(request.query ?? "")")
        }
      } _: { server in
        let client = HTTPClient()
        defer { client.close() }
        let base = "http://127.0.0.1:\(server.port)"
        for _ in 0..<10 {
          #expect(try fetch(client, base + "/a?b#c") == "GET /a b")
          #expect(try fetch(client, base + "/parts").hasSuffix("98,99,"))
        }
        #expect(peers.current.count == 1)
        #expect(try fetch(client, base + "/close") == "closed")
        #expect(try fetch(client, base) == "GET / ")
        #expect(peers.current.count == 2)
        let post = HTTPRequest(method: .post, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/echo")
        let body = [UInt8](repeating: 67, count: 1_000_000)
        let echoed = try client.send(post, body: body).collect(upTo: 2_000_000)
        #expect(echoed == body)
        #expect(throws: HTTPError.bodyTooLarge) { _ = try client.get(base + "/parts").collect(upTo: 10) }
        let head = HTTPRequest(method: .head, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/")
        let fields = try client.send(head).head.headerFields
        #expect(fields[.contentLength] == "7")
      }
    }
  }

  @Test func `a response that is released before its end closes the connection, unless the rest is there`() async throws
  {
    try await onCoroutine {
      let peers = Locked<Set<String>>([])
      let gate = Promise<Void>()
      try serving { request, response in
        peers.withLock { _ = $0.insert("\(request.peer)") }
        try response.write("abc")
        if request.path == "/wait" { try co_await(gate) }
      } _: { server in
        let client = HTTPClient()
        let base = "http://127.0.0.1:\(server.port)"
        func drop(_ path: String) throws { _ = try client.get(base + path).head }
        try drop("/wait")
        gate.fulfill(())
        _ = try client.get(base).collect(upTo: 10)
        _ = try client.get(base).collect(upTo: 10)
        #expect(peers.current.count == 2)
        client.close()
      }
    }
  }

  @Test func `a connection that was idle for too long is not used again`() async throws {
    try await onCoroutine {
      let peers = Locked<Set<String>>([])
      try serving { request, response in
        peers.withLock { _ = $0.insert("\(request.peer)") }
        try response.send("ok")
      } _: { server in
        var options = HTTPClient.Options()
        options.idle = .milliseconds(100)
        let client = HTTPClient(options)
        let url = "http://127.0.0.1:\(server.port)/"
        for count in 1...3 {
          _ = try fetch(client, url)
          #expect(peers.current.count == count)
          try co_delay(.milliseconds(110))
        }
        client.close()
      }
    }
  }

  @Test func `a host has as many connections as allowed, and requests wait for their turn`() async throws {
    try await onCoroutine {
      let (inside, most) = (Locked(0), Locked(0))
      try serving { _, response in
        let now = inside.withLock {
          $0 += 1
          return $0
        }
        most.withLock { $0 = max($0, now) }
        try co_delay(.milliseconds(2))
        inside.withLock { $0 -= 1 }
        try response.send("ok")
      } _: { server in
        var options = HTTPClient.Options()
        options.connectionsOfHost = 3
        let client = HTTPClient(options)
        let url = "http://127.0.0.1:\(server.port)/"
        try co_scope { scope in
          for _ in 0..<30 {
            scope.launch {
              let actual13 = try fetch(client, url)
              #expect(actual13 == "ok")
            }
          }
        }
        #expect(most.current <= 3)
        client.close()
      }
    }
  }

  @Test func `redirects of safe methods are followed, without credentials to another origin`() async throws {
    try await onCoroutine {
      let other = try Running { request, response in
        try response.send("other \(request[.authorization] ?? "-") \(request[.accept] ?? "-")")
      }
      try serving { request, response in
        response.status = .found
        switch request.path {
        case "/a/b": response.fields[.location] = "../c?d"
        case "/c": response.fields[.location] = "/e"
        case "/e": response.fields[.location] = "http://127.0.0.1:\(other.port)/f"
        case "/loop": response.fields[.location] = "/loop"
        default: response.status = .ok
        }
        try response.send("\(request.path)")
      } _: { server in
        let client = HTTPClient()
        var request = HTTPRequest(method: .get, scheme: "http", authority: "127.0.0.1:\(server.port)", path: "/a/b")
        request.headerFields[.authorization] = "secret"
        request.headerFields[.accept] = "x"
        #expect(try bodyText(client, request) == "other - x")
        request.method = .post
        let status = try client.send(request).head.status
        #expect(status == .found)
        let loop = "http://127.0.0.1:\(server.port)/loop"
        #expect(throws: HTTPError.tooManyRedirects) { _ = try client.get(loop).head }
        client.close()
      }
      try other.stop()
    }
  }

  /// A server that answers by raw bytes: for each connection, an answer to each request, then a close.
  private func scripted(_ answers: [[String]], _ body: (UInt16) throws -> Void) throws -> Int {
    let listener = try Listener.bind(.loopback(port: 0))
    let count = Locked(0)
    let server = co_launch {
      for script in answers {
        let connection = try listener.accept()
        count.withLock { $0 += 1 }
        var reader = BufferedReader(connection)
        for answer in script {
          while let line = try reader.readLine(), !line.isEmpty {}
          try connection.write(Array(answer.utf8))
        }
        connection.close()
      }
    }
    try body(listener.address.port ?? 0)
    server.cancel()
    listener.close()
    return count.current
  }

  @Test func `a kept connection that the server has closed is replaced, for idempotent methods only`() async throws {
    try await onCoroutine {
      let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
      // The second request of the first connection gets a close, and no byte.
      let retried = try scripted([[ok, ""], [ok]]) { port in
        let client = HTTPClient()
        for _ in 0..<2 {
          let actual12 = try fetch(client, "http://127.0.0.1:\(port)/")
          #expect(actual12 == "ok")
        }
      }
      #expect(retried == 2)
      let posted = try scripted([[ok, ""], [ok]]) { port in
        let client = HTTPClient()
        let request = HTTPRequest(method: .post, scheme: "http", authority: "127.0.0.1:\(port)", path: "/")
        let actual11 = try bodyText(client, request)
        #expect(actual11 == "ok")
        #expect(throws: (any Error).self) { _ = try client.send(request).head }
      }
      #expect(posted == 1)
      // A part of a response came.
      let begun = try scripted([[ok, "HTTP/1.1 20"], [ok]]) { port in
        let client = HTTPClient()
        let actual10 = try fetch(client, "http://127.0.0.1:\(port)/")
        #expect(actual10 == "ok")
        #expect(throws: HTTPError.headIncomplete) { _ = try client.get("http://127.0.0.1:\(port)/").head }
      }
      #expect(begun == 1)
    }
  }

  /// What a server sends while nobody has asked, and the number of connections that two requests then need.
  @Test(
    arguments: [
      ("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\ninjected", 2), ("HTTP/1.1 408 Request Timeout\r\n\r\n", 2),
      ("HTTP/1.1 100 Continue\r\n\r\n", 2), ("H", 2), ("", 1),
    ],
    [false, true]
  )
  func `a response that nobody asked for is no answer to the next request`(
    _ extra: (text: String, connections: Int),
    isSecure: Bool
  ) async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      let listener = try Listener.bind(.loopback(port: 0))
      let (isIdle, isSent) = (Promise<Void>(), Promise<Void>())
      let count = Locked(0)
      let serving = co_launch(name: "peer") {
        while let connection = try? listener.accept() {
          count.withLock { $0 += 1 }
          let transport = Transport(connection: connection, tls: isSecure ? try tls.accept(connection) : nil)
          // The client resets what it gives up with unread bytes.
          while case let request = (try? transport.next()) ?? "", !request.isEmpty {
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer"
            try transport.send(answer)
            if isSent.isSettled { continue }
            try co_await(isIdle)
            try transport.send(extra.text)
            try connection.untilDelivered()
            isSent.fulfill(())
          }
        }
      }
      var options = HTTPClient.Options()
      options.tls.trustedRoots = files.path("ca.pem")
      let client = HTTPClient(options)
      let url = "\(isSecure ? "https" : "http")://localhost:\(listener.address.port ?? 0)/"
      #expect(try fetch(client, url) == "answer")
      isIdle.fulfill(())
      try co_await(isSent)
      #expect(try fetch(client, url) == "answer")
      #expect(count.current == extra.connections)
      serving.cancel()
    }
  }

  @Test(arguments: [
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "BODY_INCOMPLETE"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", "BODY_INCOMPLETE"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "HPE_INVALID_CHUNK_SIZE"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "HPE_UNEXPECTED_CONTENT_LENGTH"),
    ("HTTP/1.1 2x0 OK\r\n\r\n", "HPE_INVALID_STATUS"),
    ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "FOLDED_FIELD"),
    ("garbage\r\n\r\n", "HPE_INVALID_CONSTANT"),
    ("", "HEAD_INCOMPLETE"),
  ])
  func `a response that is no HTTP or ends too early is an error`(_ answer: String, _ code: String) async throws {
    try await onCoroutine {
      _ = try scripted([[answer]]) { port in
        let error = #expect(throws: HTTPError.self) {
          _ = try HTTPClient().get("http://127.0.0.1:\(port)/").collect(upTo: 100)
        }
        #expect(error?.code == code, "\(String(describing: error))")
      }
    }
  }

  @Test(arguments: [("/long", "BODY_TOO_LARGE"), ("/short", "BODY_INCOMPLETE"), ("/chunks", "HPE_INVALID_CHUNK_SIZE")])
  func `an error of a server that the handler asks is the handler's`(_ path: String, _ code: String) async throws {
    try await onCoroutine {
      let answers = [
        "/long": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
        "/short": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        "/chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
      ]
      _ = try scripted([[answers[path] ?? ""]]) { port in
        try serving { _, response in
          let answer = try HTTPClient().get("http://127.0.0.1:\(port)/").collect(upTo: 4)
          try response.send(String(decoding: answer, as: UTF8.self))
        } _: { server in
          let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
          // Its own client has done nothing wrong: the connection goes on.
          let statuses = try askStatuses(server.address, request)
          #expect(statuses == [500])
          #expect(server.errors.current.count == 1)
          #expect(server.errors.current.first?.contains(code) == true)
        }
      }
    }
  }

  @Test func `interim responses are dropped, and a body without a length ends with the connection`() async throws {
    try await onCoroutine {
      let answer = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\n\r\nabc"
      _ = try scripted([[answer]]) { port in
        let actual9 = try fetch(HTTPClient(), "http://127.0.0.1:\(port)/")
        #expect(actual9 == "abc")
      }
    }
  }

  @Test(arguments: VariantTests.badFields.map(\.text))
  func `trailers of a response are checked as its head is`(_ trailers: String) async throws {
    try await onCoroutine {
      let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
      // What a client of the handed-over bytes would take for the next response.
      _ = try scripted([[head + trailers + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]]) { port in
        #expect(throws: HTTPError.self) { _ = try HTTPClient().get("http://127.0.0.1:\(port)/").collect(upTo: 10) }
      }
    }
  }

  @Test func `a body may begin with a line feed`() async throws {
    try await onCoroutine {
      _ = try scripted([["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\n\nc"]]) { port in
        let body = try fetch(HTTPClient(), "http://127.0.0.1:\(port)/")
        #expect(body == "\n\nc")
      }
    }
  }

  @Test func `a client uses TLS, and its sessions and connections`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      var options = HTTPServer.Options()
      options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      try serving(options) { request, response in
        if request.path == "/close" { response.fields[.connection] = "close" }
        try response.send("\(request.head.scheme ?? "") \(request.tls?.isResumed == true)")
      } _: { server in
        var options = HTTPClient.Options()
        options.tls.trustedRoots = files.path("ca.pem")
        let client = HTTPClient(options)
        let base = "https://localhost:\(server.port)"
        let actual8 = try fetch(client, base + "/close")
        #expect(actual8 == "https false")
        let actual7 = try fetch(client, base + "/")
        #expect(actual7 == "https true")
        client.close()
        #expect(throws: TLSError.self) { _ = try HTTPClient().get(base).head }
      }
    }
  }

  @Test func `an upgrade over TLS is a connection as any other`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      var options = HTTPServer.Options()
      options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      try serving(options) { _, response in
        try response.upgrade { connection, reader in
          while let line = try reader.readLine() { try connection.write(Array("<\(line)>".utf8)) }
        }
      } _: { server in
        var client = TLS.Client()
        client.trustedRoots = files.path("ca.pem")
        let stream = try client.connect(host: "localhost", port: server.port)
        try stream.write(
          Array("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\none\n".utf8)
        )
        var answer = ""
        while !answer.contains("<one>") { answer += text(try stream.read(upTo: 1_000)) }
        try stream.write(Array("two\n".utf8))
        try stream.shutdownWrite()
        while case let bytes = try stream.read(upTo: 1_000), !bytes.isEmpty { answer += text(bytes) }
        #expect(answer.hasSuffix("\r\n\r\n<one><two>"))
      }
    }
  }

  @Test(arguments: [
    ("http://a/b/c?d", "../e", "http://a/e"), ("http://a/b/c", "d?e", "http://a/b/d?e"),
    ("http://a/b/c", "?e", "http://a/b/c?e"), ("http://a:1/b", "//c/d", "http://c/d"),
    ("http://a/b", "https://c:2/d#e", "https://c:2/d"), ("http://a", "/./b/../c/.", "http://a/c/"),
    ("http://a", "../../b", "http://a/b"), ("http://[::1]:8/x", "y", "http://[::1]:8/y"),
    ("http://a/b", "/straße/x y?z=ü z", "http://a/stra%C3%9Fe/x%20y?z=%C3%BC%20z"),
    ("http://a/b", " /c\t ", "http://a/c"), ("http://a/b", "c\\d?e\\f", "http://a/c/d?e\\f"),
    ("http://a/b", "\\\\c\\d", "http://c/d"), ("http://a/b", "/%41%zz", "http://a/%41%zz"),
    ("http://a/b", "http://c/\"<>", "http://c/%22%3C%3E"), ("http://a/b", "1:2", "http://a/1:2"),
  ])
  func `a location is resolved`(_ url: String, _ location: String, _ expected: String) throws {
    var location = location
    let result = try RequestURL(url).resolving(location.withUTF8 { RequestURL.escaping($0) })
    #expect("\(result.origin.scheme)://\(result.origin.authority)\(result.path)" == expected)
  }

  @Test(arguments: [
    "ftp://a/", "mailto:a@b", "javascript:alert(1)", "http://u:p@a/", "//u@a/", "http://", "http:///a",
    "http://a:99999/",
    "http://b\u{fc}cher.example/",
  ])
  func `a redirect that cannot be followed is an error, and not a response`(_ location: String) async throws {
    try await onCoroutine {
      let answer = "HTTP/1.1 302 Found\r\nLocation: \(location)\r\nContent-Length: 0\r\n\r\n"
      _ = try scripted([[answer], [answer]]) { port in
        let error = #expect(throws: HTTPError.self) { _ = try HTTPClient().get("http://127.0.0.1:\(port)/").head }
        #expect(error?.code == "INVALID_REDIRECT")
        var options = HTTPClient.Options()
        options.redirects = 0
        let status = try HTTPClient(options).get("http://127.0.0.1:\(port)/").head.status
        #expect(status == .found)
      }
    }
  }

  @Test func `a request of a URL has its parts, and a query that is escaped`() throws {
    let request = try HTTPRequest(method: .put, url: "https://a.example:8/b?c#d", query: ["e f": "g&h=ü", "": "+"])
    #expect(request.method == .put && request.scheme == "https" && request.authority == "a.example:8")
    #expect(request.path == "/b?c&e%20f=g%26h%3D%C3%BC&=%2B")
    #expect(
      try HTTPRequest(url: "http://a").path == "/" && HTTPRequest(url: "http://a?", query: ["b": "c"]).path == "/?b=c"
    )
    for text in ["", "a", "ftp://a", "http://u@a", "http://a/ä"] {
      #expect(throws: HTTPError.self) { _ = try HTTPRequest(url: text) }
    }
  }

  /// The ways on which a request leaves.
  enum Route: CaseIterable { case direct, secure, proxy, tunnel }

  @Test(arguments: Route.allCases, [HTTPRequest.Method.get, .post, .options])
  func `a path that is none reaches no server, and not another host`(_ route: Route, _ method: HTTPRequest.Method)
    async throws
  {
    try await onCoroutine {
      let files = try Certificates.shared()
      var serverOptions = HTTPServer.Options()
      if route == .secure {
        serverOptions.tls = try TLS.Server(
          certificateChain: files.path("server.pem"),
          privateKey: files.path("server.key")
        )
      }
      let seen = Locked<[String]>([])
      try serving(serverOptions) { request, response in
        seen.withLock { $0.append("\(request.method) \(request.host ?? "") \(request.path)") }
        try response.send(try request.collect())
      } _: { server in
        var options = HTTPClient.Options()
        options.tls.trustedRoots = files.path("ca.pem")
        let proxies = Proxies { ["http_proxy", "https_proxy"].contains($0) ? "http://127.0.0.1:\(server.port)" : nil }
        let client = HTTPClient(options, proxies)
        defer { client.close() }
        let isProxied = route == .proxy || route == .tunnel
        let authority = isProxied ? "good.test" : "localhost:\(server.port)"
        let scheme = route == .secure || route == .tunnel ? "https" : "http"
        func send(_ path: String?, _ way: Int) throws {
          var request = HTTPRequest(method: method, scheme: scheme, authority: authority, path: path)
          if way == 1 { request.headerFields[.upgrade] = "x" }
          if way == 2 {
            _ = try client.send(request) { try $0.write("x".utf8) }.collect(upTo: 10)
          } else {
            _ = try client.send(request).collect(upTo: 10)
          }
        }
        let bad = [
          ".evil.test/", "@evil.test/", ":81/", "x", "", "?q", "#", "/x#fragment", "/a b", "/a\tb", "/a\r\nb: c",
          "/\0x", "/\u{7f}x", "/\u{e4}", "http://evil.test/", "//evil.test/#", "**", "*/",
        ]
        for path in bad + (method == .options ? [] : ["*"]) {
          for way in 0..<3 {
            let error = #expect(throws: HTTPError.self, "\(path), \(way)") { try send(path, way) }
            #expect(error?.code == "INVALID_URL", "\(path), \(way)")
          }
        }
        #expect(seen.current == [])
        // A tunnel needs a real proxy.
        guard route != .tunnel else { return }
        for way in 0..<3 {
          let good: [(String?, String)] = [(nil, "/"), ("/", "/"), ("//x", "//x"), ("/a:81@b?c", "/a:81@b")]
          for (path, expected) in good + (method == .options ? [("*", isProxied ? "/" : "*")] : []) {
            try send(path, way)
            #expect(seen.current.last == "\(method) \(authority) \(expected)")
          }
        }
      }
    }
  }

  @Test func `a location is resolved against the whole server as well`() throws {
    let origin = try #require(Origin(scheme: "http", authority: "a"))
    for (location, path) in [("x?y", "/x?y"), ("?y", "/?y"), ("/z", "/z")] {
      let next = try RequestURL(origin: origin, path: "*").resolving(location)
      #expect(next.path == path)
    }
  }

  @Test(arguments: [false, true]) func `every request goes to the address of the options`(_ isUnix: Bool) async throws {
    try await onCoroutine {
      let path = "/tmp/coroutine-http-\(getpid())-\(UInt64.random(in: 0 ... .max)).sock"
      let server = try Running(at: isUnix ? .unix(path) : .loopback(port: 0)) { request, response in
        if request.path == "/redirect" {
          response.status = .found
          response.fields[.location] = "http://other.invalid/there"
        }
        try response.send("\(request.host ?? "") \(request.path)")
      }
      var options = HTTPClient.Options()
      options.address = server.address
      let client = HTTPClient(options, Proxies { $0 == "http_proxy" ? "http://127.0.0.1:1" : nil })
      for _ in 0..<2 {
        let first = try fetch(client, "http://nowhere.invalid/a")
        #expect(first == "nowhere.invalid /a")
        let second = try fetch(client, "http://nowhere.invalid/redirect")
        #expect(second == "other.invalid /there")
      }
      client.close()
      try server.stop()
    }
  }

  @Test func `of a host that is not asked any more, nothing is kept`() async throws {
    try await onCoroutine {
      try serving { request, response in
        if request.path == "/close" { response.fields[.connection] = "close" }
        try response.send("ok")
      } _: { server in
        let pool = ClientPool(mostOfHost: 1, idle: .seconds(30))
        for port in UInt16(1)...100 {
          let origin = try #require(Origin(scheme: "http", authority: "a.example:\(port)"))
          let permit = try pool.acquire(origin)
          #expect(pool.hostCount == 1 && permit.origin == origin)
          // One that waits, and gives up.
          #expect(throws: TimeoutError.self) { try co_timeout(.zero) { _ = try pool.acquire(origin) } }
          withExtendedLifetime(permit) {}
        }
        #expect(pool.hostCount == 0)
        let origin = try #require(Origin(scheme: "http", authority: "127.0.0.1:\(server.port)"))
        pool.keep(try ClientConnection(Transport(connection: try .connect(to: server.address), tls: nil)), origin)
        #expect(pool.hostCount == 1)
        let taken = pool.take(origin)
        #expect(taken != nil && pool.hostCount == 0)
      }
    }
  }

  @Test(arguments: [(true, 2), (false, 1)])
  func `a caller says whether one request may be repeated`(_ isIdempotent: Bool, _ connections: Int) async throws {
    try await onCoroutine {
      let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
      for method in [HTTPRequest.Method.post, .get] {
        let made = try scripted([[ok, ""], [ok]]) { port in
          let client = HTTPClient()
          let request = HTTPRequest(method: method, scheme: "http", authority: "127.0.0.1:\(port)", path: "/")
          _ = try bodyText(client, request)
          if isIdempotent {
            let second = try client.send(request, isIdempotent: true).collect(upTo: 10)
            #expect(text(second) == "ok")
          } else {
            #expect(throws: (any Error).self) { _ = try client.send(request, isIdempotent: false).head }
          }
        }
        #expect(made == connections, "\(method)")
      }
    }
  }

  @Test func `a client that follows no redirects gets them with their fields`() async throws {
    try await onCoroutine {
      let answer = "HTTP/1.1 302 Found\r\nLocation: /next\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
      for redirects in [0, -1, .min] {
        _ = try scripted([[answer]]) { port in
          var options = HTTPClient.Options()
          options.redirects = redirects
          let head = try HTTPClient(options).get("http://127.0.0.1:\(port)/").head
          #expect(head.status == .found && head.headerFields[.setCookie] == "a=b")
        }
      }
    }
  }

  @Test func `errors of the client say what the caller can do`() async throws {
    try await onCoroutine {
      for url in ["http://user@a.example/", "http://user:password@a.example"] {
        let error = #expect(throws: HTTPError.self) { _ = try HTTPClient().get(url).head }
        #expect(error?.description.contains("field authorization") == true)
      }
      let large = "HTTP/1.1 200 OK\r\nX: " + String(repeating: "x", count: 70_000)
      _ = try scripted([[large]]) { port in
        let error = #expect(throws: HTTPError.headTooLarge) {
          _ = try HTTPClient().get("http://127.0.0.1:\(port)/").head
        }
        #expect(error?.description.contains("headSize") == false)
      }
    }
  }

  @Test(arguments: ["", "a", "ftp://a", "http://", "http://u@a/", "http://a b/", "http://a:99999/", "http://a/ä"])
  func `a text that is no URL is refused`(_ text: String) async throws {
    try await onCoroutine {
      let error = #expect(throws: HTTPError.self) { _ = try HTTPClient().get(text).head }
      #expect(error?.code == "INVALID_URL")
    }
  }

  /// Behind an authority, `.evil.test/` would be a part of the host.
  @Test(arguments: [".evil.test/", "@evil.test/", ":81/", "x", "http://evil.test/", "*", "/a#b", "/a b"])
  func `a path that is none is refused before a connection is made`(_ path: String) async throws {
    try await onCoroutine {
      // Nothing listens there: a connection would be refused.
      let request = HTTPRequest(method: .get, scheme: "http", authority: "127.0.0.1:1", path: path)
      let error = #expect(throws: HTTPError.self) { _ = try HTTPClient().send(request) }
      #expect(error?.code == "INVALID_URL")
    }
  }
}
#endif
