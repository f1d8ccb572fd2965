#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// The folder of the programs; nil if there are none.
private let folder = getenv("CO_HTTP_PEERS").map { String(cString: $0) + "/bin" }

/// Servers and clients in Python, from PyPI: `make test-peers` installs them, and says where.
@Suite("Peers in Python", .enabled(if: folder != nil, "make test-peers runs them"), .timeLimit(.minutes(10)))
struct PythonPeerTests {
  /// Each prints what has gone wrong.
  private static let clients = """
    import asyncio, ssl, sys, httpx, aiohttp
    base = sys.argv[1]
    context = ssl.create_default_context(cafile=sys.argv[2]) if base.startswith("https") else False
    def check(name, holds):
      if not holds: print(name)
    def parts(count, part):
      for _ in range(count): yield part
    with httpx.Client(verify=context, timeout=20, trust_env=False) as client:
      check("get", client.get(base + "/a?b=c").text == "GET /a b=c")
      check("parts", client.get(base + "/parts").text.count("\\n") == 100)
      check("redirect", client.get(base + "/redirect", follow_redirects=True).text == "GET /a ")
      check("head", client.head(base + "/a").headers["content-length"] == "8")
      for size in (0, 1, 100000, 3000000):
        check(f"echo {size}", client.post(base + "/echo", content=b"x" * size).content == b"x" * size)
      check("chunks", client.post(base + "/echo", content=parts(50, b"y" * 1000)).content == b"y" * 50000)
    async def main():
      async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=50)) as session:
        async def get(number):
          async with session.get(f"{base}/{number}") as answer: return await answer.text() == f"GET /{number} "
        check("many", all(await asyncio.gather(*[get(number) for number in range(300)])))
        async def chunks():
          for part in parts(100, b"q" * 997): yield part
        async with session.post(base + "/echo", data=chunks()) as answer:
          check("aiohttp chunks", await answer.read() == b"q" * 99700)
        async with session.post(base + "/echo", data=b"e" * 1000, expect100=True) as answer:
          check("aiohttp 100-continue", await answer.read() == b"e" * 1000)
        async with session.post(base + "/refuse", data=b"z" * 3000000) as answer:
          check("aiohttp 413", answer.status == 413)
    asyncio.run(main())
    """

  private static func options(isSecure: Bool) throws -> HTTPServer.Options {
    var options = HTTPServer.Options()
    options.bodySize = 4 << 20
    if isSecure {
      let files = try Certificates.shared()
      options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
    }
    return options
  }

  /// Runs a program of the folder; returns what it prints.
  private static func run(_ program: String, _ arguments: [String]) throws -> String {
    let end = try Peer.run("\(folder ?? "")/\(program)", arguments)
    return String(decoding: end.output, as: UTF8.self) + (end.status == 0 ? "" : "status \(end.status)")
  }

  @Test(arguments: [false, true])
  func `httpx and aiohttp use a server`(isSecure: Bool) async throws {
    try await onCoroutine {
      try serving(Self.options(isSecure: isSecure)) { request, response in
        switch request.path {
        case "/echo": try response.send(request.collect())
        case "/parts": for number in 0..<100 { try response.write("\(number)\n") }
        case "/redirect":
          response.status = .found
          response.fields[.location] = "/a"
        case "/refuse": throw HTTPStatusError(.contentTooLarge)
        default: try response.send("\(request.method) \(request.path) \(request.query ?? "")")
        }
      } _: { server in
        let url = "\(isSecure ? "https" : "http")://localhost:\(server.port)"
        let wrong = try Self.run("python", ["-c", Self.clients, url, Certificates.shared().path("ca.pem")])
        #expect(wrong.isEmpty)
      }
    }
  }

  @Test func `sslyze finds no weakness that it knows in a server with TLS`() async throws {
    try await onCoroutine {
      try serving(Self.options(isSecure: true)) { _, response in
        try response.send("ok")
      } _: { server in
        let scans = ["heartbleed", "openssl_ccs", "robot", "reneg", "fallback", "compression", "resum", "early_data"]
        let found = try Self.run("sslyze", scans.map { "--\($0)" } + ["localhost:\(server.port)"])
        #expect(found.contains("OK - Not vulnerable to Heartbleed"), "\(found)")
        #expect(!found.contains("VULNERABLE -"), "\(found)")
      }
    }
  }

  @Test func `a client uses httpbin`() async throws {
    try await onCoroutine {
      let authority = "\(try Self.freeAddress())"
      let base = "http://\(authority)"
      let server = try Peer.Running(
        "\(folder ?? "")/gunicorn",
        ["-b", authority, "--threads", "8", "httpbin:app"]
      )
      defer { withExtendedLifetime(server) {} }
      let client = HTTPClient()
      func text(_ path: String) throws -> String {
        String(decoding: try client.get(base + path).collect(upTo: 1 << 20), as: UTF8.self)
      }
      func status(_ path: String, _ change: (inout HTTPRequest) -> Void = { _ in }) throws -> Int {
        var request = try HTTPRequest(url: base + path)
        change(&request)
        return try client.send(request).head.status.code
      }
      while true {
        do { if try status("/get") == 200 { break } } catch is NetError { try co_delay(.milliseconds(100)) }
      }
      #expect(try text("/get?a=b").contains("\"a\": \"b\""))
      #expect(try text("/stream/20").split(separator: "\n").count == 20)
      #expect(try client.get(base + "/stream-bytes/100000?chunk_size=1000").collect(upTo: 1 << 20).count == 100_000)
      #expect(try text("/absolute-redirect/3").contains("/get"))
      #expect(throws: HTTPError.tooManyRedirects) { _ = try client.get(base + "/redirect/11").head }
      for code in [204, 304, 401, 404, 418, 503] { #expect(try status("/status/\(code)") == code) }
      #expect(try status("/range/1000") { $0.headerFields[.range] = "bytes=10-19" } == 206)
      #expect(try status("/basic-auth/u/p") { $0.headerFields[.authorization] = "Basic dTpw" } == 200)
      #expect(try status("/get") { $0.method = .head } == 200)
      #expect(try client.get(base + "/drip?numbytes=5&duration=1&delay=0").collect(upTo: 10).count == 5)
      let post = HTTPRequest(method: .post, scheme: "http", authority: authority, path: "/post")
      let body = [UInt8](repeating: 97, count: 500_000)
      #expect(try client.send(post, body: body).collect(upTo: 4 << 20).count > body.count)
      let sent = try client.send(post) { body in for _ in 0..<10 { try body.write("chunk".utf8) } }
      #expect(try sent.collect(upTo: 1 << 20).count > 50)
      #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(300)) { _ = try text("/delay/3") } }
      #expect(try text("/uuid").contains("uuid"))
    }
  }

  /// A port that was free a moment ago, of an address that no other test uses.
  private static func freeAddress() throws -> SocketAddress {
    let listener = try Listener.bind(ownLoopback())
    defer { listener.close() }
    return listener.address
  }
}
#endif
