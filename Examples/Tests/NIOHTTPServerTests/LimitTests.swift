import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import Testing

@Suite("Limits and errors", .timeLimit(.minutes(5)))
struct LimitTests {
  @Test func `a head that is too large, malformed, or of another version is refused with a status`() async throws {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.headSize = 4096
      let server = try Running(group, limits: limits, echo)
      let long = String(repeating: "x", count: 5000)
      let many = (0..<400).map { "x-\($0): 12345678\r\n" }.joined()
      for (head, status) in [
        ("GET / HTTP/1.1\r\nhost: x\r\nx-long: \(long)\r\n\r\n", "431"),
        ("GET /\(long) HTTP/1.1\r\nhost: x\r\n\r\n", "431"),
        ("GET / HTTP/1.1\r\nhost: x\r\n\(many)\r\n", "431"),
        ("GET / HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "400"),
        ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "400"),
        ("GET / HTTP/3.0\r\nhost: x\r\n\r\n", "505"),
      ] {
        let answer = try server.exchange(head)
        #expect(answer.dropFirst(8).hasPrefix(" \(status) "), "\(head.prefix(60)): \(answer)")
        #expect(answer.contains("connection: close"))
      }
      // An earlier request of the same connection is answered first.
      let both = try server.exchange("GET /fine HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n")
      #expect(both.hasPrefix("HTTP/1.1 200 ") && both.contains("GET /fine HTTP/1.1 400 "), "\(both)")
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a body that is too large is refused, whether it is declared, chunked or limited by the handler`()
    async throws
  {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.bodySize = 100_000
      let server = try Running(group, limits: limits) { request, response in
        _ = try request.collect(upTo: request.path == "/small" ? 10 : .max)
        try response.send("taken")
      }
      let big = Data(repeating: 65, count: 4 << 20)
      for (path, header, size) in [
        ("/", "x: declared", big.count), ("/", "transfer-encoding: chunked", big.count), ("/small", "x: declared", 11),
        ("/small", "transfer-encoding: chunked", 11),
      ] {
        // Curl sends a part of the body before it reads the answer: the server must not reset the connection.
        let answer = try curl(
          "--include",
          "--header",
          "expect:",
          "--header",
          header,
          "--data-binary",
          "@-",
          server.url + path,
          input: big.prefix(size)
        )
        #expect(answer.output.hasPrefix("HTTP/1.1 413 "), "\(path) \(header): \(answer)")
      }
      let fits = try curl("--data-binary", "@-", "\(server.url)/", input: big.prefix(100_000))
      #expect(fits.output == "taken")
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a handler that does not read a body keeps the connection if the body is short`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in try response.send(request.path) }
      let short = try server.exchange(
        "POST /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbodyGET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
      )
      #expect(short.contains("/1HTTP") && short.hasSuffix("/2"), "\(short)")
      let long = try curl("--data-binary", "@-", "\(server.url)/long", input: Data(repeating: 1, count: 4 << 20))
      #expect(long.output == "/long")
      try server.stop()
    }
  }

  @Test func `a client that sends nothing is closed when idle, and refused within a body`() async throws {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.idle = .milliseconds(30)
      let impatient = try Running(group, limits: limits, echo)
      let idle = try impatient.exchange("")
      #expect(idle.isEmpty)
      // A server of its own, because a slow client of the first one would be idle before it has sent the head.
      limits = HTTPLimits()
      limits.pause = .milliseconds(30)
      let server = try Running(group, limits: limits, echo)
      let late = try server.exchange("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
      #expect(late.hasPrefix("HTTP/1.1 408 "), "\(late)")
      try impatient.stop()
      try server.stop()
    }
  }

  @Test func `connections beyond the limit wait, and are served when others have ended`() async throws {
    try await onWorker(loops: 2) { group in
      var limits = HTTPLimits()
      limits.connections = 2
      let pair = Gate()
      // A handler ends before its connection does, so at most as many handlers run as there are connections.
      let handlers = Locked<(now: Int, most: Int)>((0, 0))
      let server = try Running(group, limits: limits) { request, response in
        let isPair = handlers.withLockedValue { handlers in
          handlers.now += 1
          handlers.most = max(handlers.most, handlers.now)
          return handlers.most > 1
        }
        defer { handlers.withLockedValue { $0.now -= 1 } }
        // Two are served at once. Without a limit, the others would arrive while these wait.
        if isPair { pair.open() }
        try pair.pass()
        try co_delay(.milliseconds(20))
        if request.path == "/fails" { throw Oops() }
        try response.send("served")
      }
      try co_scope { scope in
        for number in 0..<20 {
          scope.launch {
            // A connection whose handler fails makes room as well.
            let path = number % 4 == 0 ? "/fails" : "/"
            let answer = try server.exchange("GET \(path) HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            #expect(answer.hasPrefix(path == "/" ? "HTTP/1.1 200 " : "HTTP/1.1 500 "), "\(answer)")
          }
        }
      }
      #expect(handlers.withLockedValue { $0.most } == 2)
      try server.stop()
    }
  }

  @Test func `a server at its limit ends`() async throws {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.connections = 1
      let server = try Running(group, limits: limits, echo)
      let served = try server.connect()
      try served.write("GET /1 HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      _ = try served.read(until: "GET /1 ")
      let waiting = try server.connect()
      try waiting.write("GET /2 HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      try server.stop()
      #expect(try served.readAll() == "")
      // The system resets what nobody has accepted.
      #expect((try? waiting.readAll())?.isEmpty ?? true)
      for connection in [served, waiting] { connection.close() }
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `an error of a handler is answered by its status, or closes a response that has begun`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        switch request.path {
        case "/status": throw HTTPStatusError(.notFound, "no such thing")
        case "/other": throw Oops()
        case "/late":
          try response.write("half")
          throw Oops()
        case "/short":
          response.headers.add(name: "content-length", value: "10")
          try response.write("half")
        case "/long":
          response.headers.add(name: "content-length", value: "2")
          try response.write("half")
        case "/twice":
          try response.send("once")
          try response.send("twice")
        default: response.headers.add(name: "x-injected", value: "a\r\nset-cookie: b")
        }
      }
      let status = try curl("--include", "\(server.url)/status", "--next", "\(server.url)/status")
      #expect(status.output.hasPrefix("HTTP/1.1 404 ") && status.output.hasSuffix("no such thing\nno such thing\n"))
      let other = try curl("--include", "\(server.url)/other")
      #expect(other.output.hasPrefix("HTTP/1.1 500 ") && !other.output.contains("Oops"))
      // 18: the transfer ended before the body; 52: not a byte came.
      for path in ["/late", "/short", "/long", "/inject"] {
        let broken = try curl("--include", server.url + path)
        #expect([18, 52].contains(broken.status), "\(path): \(broken)")
        #expect(!broken.output.contains("set-cookie"))
      }
      let twice = try curl("\(server.url)/twice")
      #expect(twice.output == "once")
      try server.stop()
      let errors = server.errors.current
      #expect(errors.filter { $0 == "Oops()" }.count == 2, "\(errors)")
      #expect(errors.contains("contentLength(declared: 10, written: 4)"), "\(errors)")
      #expect(errors.contains("contentLength(declared: 2, written: 4)"), "\(errors)")
      #expect(errors.contains("headSent"), "\(errors)")
    }
  }

  @Test func `a request that a handler has kept reads nothing of the next one`() async throws {
    try await onWorker { group in
      // Sound because the connection's coroutine alone uses it.
      nonisolated(unsafe) var kept: (HTTPRequest, HTTPResponse)?
      let outcomes = Locked<[String]>([])
      let server = try Running(group) { request, response in
        if let (first, answer) = kept {
          for attempt in [{ _ = try first.read() }, { try answer.write("stolen") }] {
            do {
              try attempt()
              outcomes.withLockedValue { $0.append("done") }
            } catch {
              outcomes.withLockedValue { $0.append("\(error)") }
            }
          }
        }
        kept = (request, response)
        try response.send(request.path)
      }
      let answer = try server.exchange(
        "GET /1 HTTP/1.1\r\nhost: x\r\n\r\n"
          + "POST /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 6\r\n\r\nsecret"
      )
      #expect(answer.hasSuffix("/2") && !answer.contains("stolen"))
      #expect(outcomes.current == ["exchangeEnded", "exchangeEnded"])
      try server.stop()
    }
  }
}
