#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

@Suite("Proxies of the client", .timeLimit(.minutes(10)))
struct ProxyTests {
  /// A proxy that knows one server, whatever it is asked for, and what it was asked.
  private final class SmallProxy: Sendable {
    let running: Running
    let seen: Locked<[String]>

    init(to server: SocketAddress, refusing status: HTTPResponse.Status? = nil) throws {
      let seen = Locked<[String]>([])
      self.seen = seen
      running = try Running { request, response in
        let authorization = request[.proxyAuthorization].map { " \($0)" } ?? ""
        let host = String(request.host ?? "")
        if let status {
          seen.withLock { $0.append("\(request.method) \(host)") }
          throw HTTPStatusError(status)
        }
        guard request.method == .connect else {
          seen.withLock {
            $0.append("\(request.method) \(request.head.scheme ?? "") \(host) \(request.path)\(authorization)")
          }
          return try response.send("forwarded \(request[HTTPField.Name("host")!] ?? "")")
        }
        seen.withLock { $0.append("CONNECT \(host)\(authorization)") }
        try response.upgrade { connection, reader in
          let target = try Connection.connect(to: server)
          defer { target.close() }
          try target.write(reader.withBuffered { Array($0) })
          _ = try co_copy(connection, target, idle: nil)
        }
      }
    }

    var port: UInt16 { running.port }
  }

  private func proxies(_ values: [String: String]) -> Proxies { Proxies { values[$0] } }

  private func get(_ client: HTTPClient, _ url: String) throws -> String {
    String(decoding: try client.get(url).collect(upTo: 1_000), as: UTF8.self)
  }

  @Test func `a plain request goes to the proxy in absolute form, and its name is not resolved here`() async throws {
    try await onCoroutine {
      let proxy = try SmallProxy(to: .loopback(port: 1))
      let client = HTTPClient(.init(), proxies(["http_proxy": "http://us%40er:p%3Aw@127.0.0.1:\(proxy.port)/"]))
      defer { client.close() }
      #expect(try get(client, "http://nowhere.invalid:81/a?b") == "forwarded nowhere.invalid:81")
      var request = HTTPRequest(method: .get, scheme: "http", authority: "nowhere.invalid", path: "/c")
      request.headerFields[.proxyAuthorization] = "other"
      _ = try client.send(request).collect(upTo: 100)
      // us@er:p:w
      let user = " Basic dXNAZXI6cDp3"
      #expect(
        proxy.seen.current == ["GET http nowhere.invalid:81 /a\(user)", "GET http nowhere.invalid /c\(user)"]
      )
      try proxy.running.stop()
    }
  }

  @Test func `a request over TLS goes through a tunnel, and the server's certificate is checked`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      var options = HTTPServer.Options()
      options.tls = try TLS.Server(certificateChain: files.path("other.pem"), privateKey: files.path("other.key"))
      try serving(options) { request, response in
        try response.send("\(request.tls?.serverName ?? "-") \(request[.proxyAuthorization] ?? "-")")
      } _: { server in
        let proxy = try SmallProxy(to: server.address)
        let values = ["https_proxy": "u:p@127.0.0.1:\(proxy.port)"]
        var options = HTTPClient.Options()
        options.tls.trustedRoots = files.path("ca.pem")
        // The certificate is that of another name.
        let client = HTTPClient(options, proxies(values))
        let error = #expect(throws: TLSError.self) { _ = try client.get("https://nowhere.invalid/").head }
        #expect(error != nil)
        #expect(proxy.seen.current == ["CONNECT nowhere.invalid:443 Basic dTpw"])
        client.close()
        let trusting = HTTPClient(options, proxies(values))
        #expect(try get(trusting, "https://other.test/") == "other.test -")
        #expect(try get(trusting, "https://other.test/") == "other.test -")
        // The second request used the first one's tunnel.
        #expect(proxy.seen.current.count == 2)
        trusting.close()
        try proxy.running.stop()
      }
    }
  }

  @Test func `a proxy that refuses a tunnel is an error with its status`() async throws {
    try await onCoroutine {
      for status in [HTTPResponse.Status.forbidden, .proxyAuthenticationRequired, .badGateway] {
        let proxy = try SmallProxy(to: .loopback(port: 1), refusing: status)
        let client = HTTPClient(.init(), proxies(["HTTPS_PROXY": "http://127.0.0.1:\(proxy.port)"]))
        let error = #expect(throws: HTTPError.self) { _ = try client.get("https://nowhere.invalid/").head }
        #expect(error?.code == "PROXY_REFUSED" && error?.description.contains("\(status.code)") == true)
        client.close()
        try proxy.running.stop()
      }
    }
  }

  @Test func `servers of this machine are asked without a proxy`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("direct")
      } _: { server in
        let client = HTTPClient(.init(), proxies(["http_proxy": "http://nowhere.invalid:1"]))
        let answer = try get(client, "http://127.0.0.1:\(server.port)/")
        #expect(answer == "direct")
        client.close()
      }
    }
  }

  @Test(arguments: [
    ("", "a.example", true), ("*", "a.example", false), ("a.example", "a.example", false),
    ("example", "a.example", false), (".example", "a.example", false), (".a.example", "a.example", false),
    ("b.example, a.example", "a.example", false), ("xample", "a.example", true), ("A.EXAMPLE", "a.example", false),
    ("a.example:80", "a.example", false), ("a.example:81", "a.example", true), ("10.0.0.1", "10.0.0.1", false),
    ("::2", "[::2]", false), ("[::2]:80", "[::2]", false), ("[::2]:81", "[::2]", true), (",", "a.example", true),
    ("", "localhost", false), ("", "127.1.2.3", false), ("", "127.example", true), ("", "[::1]", false),
    ("", "x.localhost", false), ("", "localhost.", false), ("", "x.localhost.", false), ("", "127.0.0.1.", false),
    (".a.example", "b.a.example", false), ("*.a.example", "b.a.example", false), ("*.a.example", "a.example", false),
    ("a.example.", "a.example", false), ("a.example", "a.example.", false), ("a.example.:80", "b.a.example.", false),
    ("b.example a.example", "a.example", false), ("10.0.0.0/8", "10.1.2.3", false), ("10.0.0.0/8", "11.1.2.3", true),
    ("192.168.4.0/22", "192.168.7.255", false), ("192.168.4.0/22", "192.168.8.0", true),
    ("0.0.0.0/0", "9.9.9.9", false), ("10.0.0.0/33", "10.0.0.0", true), ("10.0.0.0/x", "10.0.0.0", true),
    ("10.0.0.0/-1", "10.0.0.0", true), ("fd00::/8", "[fd12::1]", false), ("[fd00::]/8", "[fe80::1]", true),
    ("10.0.0.0/8", "[::a00:1]", true), ("10.0.0.0/8", "10.example", true), ("0:0:0:0:0:0:0:2", "[::2]", false),
    ("0.0.1", "10.0.0.1", true),
  ])
  func `no_proxy names hosts and domains`(_ exceptions: String, _ host: String, _ isProxied: Bool) throws {
    let proxies = proxies(["http_proxy": "p:1", "no_proxy": exceptions])
    let origin = try #require(Origin(scheme: "http", authority: host))
    #expect(try (proxies.proxy(for: origin) != nil) == isProxied)
  }

  @Test(arguments: [
    "http://user:secret@a:1/path", "https://user:secret@a:1", "user:secret@a b:1", "http://user:secret@", "user:secret",
    "http://user:secret", "http://user:se/cret@a:1", "http://user:se?cret@a:99999", "http://user:sec@ret@a:b",
    "user:secret@a://b", "http:/user:secret@a", "http://user:secret\u{7}@a",
    "http://user:secret:1@\u{301}a/",
  ])
  func `no error shows the user and the password of a URL`(_ text: String) async throws {
    try await onCoroutine {
      var count = 0
      func check(_ name: String, _ body: () throws -> Void) {
        // Some are valid for a proxy.
        guard let error = Result(catching: body).failure else { return }
        count += 1
        let shown = "\(error)"
        #expect(!shown.contains("sec") && !shown.contains("ret@") && !shown.contains("cret"), "\(name): \(shown)")
        #expect(!shown.contains("\u{7}"))
      }
      for name in ["http_proxy", "https_proxy"] {
        let origin = try #require(Origin(scheme: String(name.dropLast(6)), authority: "a.example"))
        check(name) { _ = try proxies([name: text]).proxy(for: origin) }
      }
      let client = HTTPClient()
      check("get") { _ = try client.get(text).head }
      let authority = String(text.dropFirst(text.hasPrefix("http://") ? 7 : 0))
      check("send") { _ = try client.send(.init(method: .get, scheme: "http", authority: authority, path: "/")).head }
      let start = try RequestURL("http://a/")
      // As the location of a redirect some are paths, which are no secrets.
      if text.contains("://") { check("location") { _ = try start.resolving(text) } }
      #expect(count > 1)
    }
  }

  @Test func `a proxy that is no URL is an error, and no request leaves without it`() throws {
    for text in ["https://a:1", "socks5://a:1", "http://", "http://a:b", "a b", "http://a:1/path"] {
      let origin = try #require(Origin(scheme: "http", authority: "a.example"))
      let error = #expect(throws: HTTPError.self) { _ = try proxies(["http_proxy": text]).proxy(for: origin) }
      #expect(error?.code == "INVALID_PROXY", "\(text)")
    }
    let origin = try #require(Origin(scheme: "http", authority: "a.example"))
    // A client of a web server can set it.
    #expect(try proxies(["HTTP_PROXY": "a:1", "https_proxy": "a:1"]).proxy(for: origin) == nil)
    let secure = try #require(Origin(scheme: "https", authority: "a.example"))
    #expect(try proxies(["HTTPS_PROXY": "b:2", "https_proxy": "a:1"]).proxy(for: secure)?.origin.host == "a")
  }
}

extension Result {
  fileprivate var failure: Failure? { if case .failure(let error) = self { error } else { nil } }
}
#endif
