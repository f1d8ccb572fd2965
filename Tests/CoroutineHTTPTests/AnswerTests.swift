#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import HTTPTypes
import Testing

@Suite("Answers to errors and to upgrades", .timeLimit(.minutes(10)))
struct AnswerTests {
  private struct Oops: Error {}

  private func fields(_ answer: String) -> [String: String] {
    var all: [String: String] = [:]
    for line in answer.components(of: "\r\n\r\n")[0].components(of: "\r\n").dropFirst() {
      guard let colon = line.firstIndex(of: ":") else { continue }
      let name = line[..<colon].lowercased()
      let value = String(line[colon...].dropFirst(2))
      all[name] = all[name].map { "\($0), \(value)" } ?? value
    }
    return all
  }

  @Test(arguments: [
    ("/401", 401), ("/503", 503), ("/413", 413), ("/oops", 500), ("/chunks", 400), ("/100", 500),
  ])
  func `an error keeps the fields that were set, without those of another body`(_ path: String, _ status: Int)
    async throws
  {
    try await onCoroutine {
      try serving { request, response in
        response.fields[.accessControlAllowOrigin] = "*"
        response.fields[.contentType] = "image/png"
        response.fields[.contentEncoding] = "gzip"
        response.fields[.eTag] = "\"1\""
        response.fields[.contentLength] = "99"
        response.fields[.cacheControl] = "no-store"
        switch request.path {
        case "/401":
          response.fields[.wwwAuthenticate] = "Basic realm=\"x\""
          throw HTTPStatusError(.unauthorized)
        case "/503":
          response.fields[.retryAfter] = "5"
          throw HTTPStatusError(.serviceUnavailable)
        case "/413": _ = try request.collect(upTo: 1)
        case "/chunks": _ = try request.collect()
        case "/100": throw HTTPStatusError(.continue)
        default: throw Oops()
        }
      } _: { server in
        let body = path == "/chunks" ? "Transfer-Encoding: chunked\r\n\r\nx\r\n" : "Content-Length: 3\r\n\r\nabc"
        let answer = try ask(server.address, "POST \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\(body)")
        #expect(statuses(answer) == [status], "\(answer)")
        let fields = fields(answer)
        #expect(fields["content-type"] == "text/plain; charset=utf-8" && fields["etag"] == nil)
        #expect(fields["content-encoding"] == nil && fields["content-length"] == "\(answer.body.utf8.count)")
        #expect(fields["access-control-allow-origin"] == "*" && fields["cache-control"] == "no-store", "\(answer)")
        #expect(
          (fields["www-authenticate"] != nil) == (status == 401) && (fields["retry-after"] == "5") == (status == 503)
        )
      }
    }
  }

  @Test func `the answer to a body that pauses keeps the fields as well`() async throws {
    try await onCoroutine {
      var options = HTTPServer.Options()
      options.pause = .milliseconds(300)
      try serving(options) { request, response in
        response.fields[.accessControlAllowOrigin] = "*"
        _ = try request.collect()
      } _: { server in
        let answer = try ask(server.address, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc")
        #expect(statuses(answer) == [408] && fields(answer)["access-control-allow-origin"] == "*", "\(answer)")
      }
    }
  }

  @Test(arguments: ["GET", "POST", "HEAD"])
  func `205 has no body, and says so`(_ method: String) async throws {
    try await onCoroutine {
      try serving { request, response in
        response.status = .resetContent
        if request.path == "/parts" { return try response.write("part") }
        try response.send("text")
      } _: { server in
        for path in ["/", "/parts"] {
          let answer = try ask(server.address, "\(method) \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
          #expect(
            statuses(answer) == [205] && answer.body.isEmpty && fields(answer)["content-length"] == "0",
            "\(answer)"
          )
        }
      }
    }
  }

  @Test(arguments: [100, 101, 103, 199], ["/send", "/write", "/finish", "/return"])
  func `an interim status is an error that says why`(_ status: Int, _ way: String) async throws {
    try await onCoroutine {
      try serving { request, response in
        response.status = .init(code: status)
        switch way {
        case "/send": try response.send("text")
        case "/write": try response.write("text")
        case "/finish": try response.finish()
        default: break
        }
      } _: { server in
        for (method, version) in [("GET", "1.1"), ("HEAD", "1.1"), ("GET", "1.0")] {
          for fields in ["Connection: close", "Connection: close, upgrade\r\nUpgrade: x"] {
            let request = "\(method) \(way) HTTP/\(version)\r\nHost: a\r\n\(fields)\r\n\r\n"
            let answer = try ask(server.address, request)
            #expect(statuses(answer) == [500], "\(answer)")
          }
        }
        #expect(server.errors.current.count == 6)
        #expect(server.errors.current.allSatisfy { $0.contains("200 to 999") }, "\(server.errors.current)")
      }
    }
  }

  /// A request's version and fields, what the handler names, and the answer: a status, and the protocol it names.
  struct Upgrade: Sendable, CustomStringConvertible {
    let request: String
    var named: String?
    let status: Int
    var answered: String?
    var description: String { request }
  }

  @Test(arguments: [
    Upgrade(request: "1.1\r\nUpgrade: a\r\nConnection: upgrade", status: 101, answered: "a"),
    Upgrade(request: "1.1\r\nUpgrade: h2c, b\r\nConnection: Upgrade", status: 101, answered: "h2c"),
    Upgrade(request: "1.1\r\nUpgrade: h2c, B/1\r\nConnection: x, Upgrade", named: "b/1", status: 101, answered: "b/1"),
    Upgrade(
      request: "1.1\r\nUpgrade: h2c\r\nUpgrade: b\r\nConnection: Upgrade",
      named: "b",
      status: 101,
      answered: "b"
    ),
    Upgrade(request: "1.1\r\nUpgrade: h2c\r\nConnection: Upgrade", named: "b", status: 426, answered: "b"),
    Upgrade(request: "1.0\r\nUpgrade: b\r\nConnection: Upgrade", named: "b", status: 426, answered: "b"),
    Upgrade(request: "1.1\r\nUpgrade: b", named: "b", status: 426, answered: "b"),
    Upgrade(request: "1.0\r\nUpgrade: b\r\nConnection: Upgrade", status: 400),
    Upgrade(request: "1.1\r\nUpgrade: b", status: 400),
    Upgrade(request: "1.1\r\nConnection: Upgrade", status: 400),
    Upgrade(request: "1.1\r\nUpgrade: ,\r\nConnection: Upgrade", status: 400),
    Upgrade(request: "1.1", named: "b", status: 426, answered: "b"),
  ])
  func `an upgrade is made to one protocol that the client offers`(_ upgrade: Upgrade) async throws {
    try await onCoroutine {
      let seen = Locked("")
      try serving { request, response in
        let offered = request.offeredProtocols
        seen.withLock { $0 = "\(request.version) \(offered.isEmpty)" }
        response.fields[.upgrade] = upgrade.named
        try response.upgrade { connection, _ in try connection.send("upgraded") }
      } _: { server in
        let answer = try ask(server.address, "GET / HTTP/\(upgrade.request)\r\nHost: a\r\n\r\n", ends: true)
        let fields = fields(answer)
        #expect(statuses(answer) == [upgrade.status] && fields["upgrade"] == upgrade.answered, "\(answer)")
        #expect(answer.hasSuffix("\r\n\r\nupgraded") == (upgrade.status == 101))
        if upgrade.answered != nil { #expect(fields["connection"]?.contains("upgrade") == true, "\(answer)") }
        let isWanted =
          upgrade.request.hasPrefix("1.1\r\nUpgrade: ") && upgrade.request.contains("pgrade: ,") == false
          && upgrade.request.contains("Connection")
        #expect(seen.current == "HTTP/\(upgrade.request.prefix(3)) \(!isWanted)")
        // A refusal is told.
        #expect(server.errors.current.count == (upgrade.status == 101 ? 0 : 1))
        #expect(server.errors.current.allSatisfy { $0.contains("NOT_AN_UPGRADE") }, "\(server.errors.current)")
      }
    }
  }
}
#endif
