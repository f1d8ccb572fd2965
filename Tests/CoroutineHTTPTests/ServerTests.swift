#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Goes `levels` frames of at least 1 KiB deep, and returns their number.
@inline(never)
private func descend(_ levels: Int) -> Int {
  withUnsafeTemporaryAllocation(byteCount: 1_024, alignment: 8) {
    $0[0] = 1
    return levels == 0 ? 0 : descend(levels - 1) + Int($0[0])
  }
}

@Suite("The server", .timeLimit(.minutes(10)))
struct ServerTests {
  @Test func `a response has a date, a length and a type, and the connection is kept`() async throws {
    try await onCoroutine {
      try serving { request, response in
        response.fields[.server] = "test"
        try response.send("\(request.method) \(request.path) \(request.query ?? "-") \(request.host ?? "-")")
      } _: { server in
        let client = try Connection.connect(to: server.address)
        var reader = BufferedReader(client)
        for number in 0..<3 {
          let before = Int64(time(nil))
          try client.send("GET /a%20b?c=\(number) HTTP/1.1\r\nHost: example.org:80\r\n\r\n")
          var lines: [String] = []
          while let line = try reader.readLine(), !line.isEmpty { lines.append(line) }
          let after = Int64(time(nil))
          let body = "GET /a%20b c=\(number) example.org:80"
          #expect(lines[0] == "HTTP/1.1 200 OK")
          #expect(lines.contains("Server: test") && lines.contains("content-length: \(body.utf8.count)"))
          #expect(lines.contains("content-type: text/plain; charset=utf-8"))
          let date = try #require(lines.first { $0.hasPrefix("date: ") })
          var seconds: Int64 = 0
          #expect(chttp_parse_time(String(date.dropFirst(6)), &seconds) == 1)
          // However long the machine has stopped meanwhile.
          #expect(seconds >= before - 1 && seconds <= after + 1)
          #expect(!lines.contains { $0.hasPrefix("connection") })
          #expect(try reader.read(exactly: body.utf8.count) == Array(body.utf8))
        }
      }
    }
  }

  @Test(arguments: [false, true])
  func `a handler and onError have room for the nesting that Foundation allows, whatever the stack of the connection`(
    _ fails: Bool
  ) async throws {
    try await onCoroutine {
      let reached = Locked(0)
      var options = HTTPServer.Options()
      options.server.onError = { _, _ in reached.withLock { $0 = descend(1_600) } }
      try serving(options) { _, response in
        if fails { throw CoroutineError.abandoned }
        try co_yield()
        reached.withLock { $0 = descend(1_600) }
        try response.send("deep")
      } _: { server in
        let client = HTTPClient()
        let status = try client.get("http://127.0.0.1:\(server.port)/").head.status
        #expect(status == (fails ? .internalServerError : .ok))
      }
      #expect(reached.withLock { $0 } == 1_600)
    }
  }

  /// Of what onError is told; a handler's error is shown above.
  enum Fault: CaseIterable { case request, handshake, upgraded }

  @Test(arguments: Fault.allCases)
  func `onError has as much room, whatever it is told of`(_ fault: Fault) async throws {
    struct Oops: Error {}
    try await onCoroutine {
      let reached = Locked(0)
      var options = HTTPServer.Options()
      options.server.onError = { _, _ in reached.withLock { $0 = descend(1_600) } }
      if fault == .handshake {
        let files = try Certificates.shared()
        options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      }
      try serving(options) { _, response in
        try response.upgrade { _, _ in throw Oops() }
      } _: { server in
        let fields = fault == .upgraded ? "Host: a\r\nConnection: upgrade\r\nUpgrade: x\r\n" : ""
        _ = try ask(server.address, "GET / HTTP/1.1\r\n\(fields)\r\n")
      }
      #expect(reached.withLock { $0 } == 1_600)
    }
  }

  @Test func `a handler whose stack cannot be had is answered with 500, and onError is told`() async throws {
    try await onCoroutine {
      let told = Locked("")
      var options = HTTPServer.Options()
      options.handlerStack = .bytes(17 << 20)
      options.server.onError = { error, _ in told.withLock { $0 = "\(error)" } }
      try serving(options) { _, response in
        try response.send("not here")
      } _: { server in
        let status = try HTTPClient().get("http://127.0.0.1:\(server.port)/").head.status
        #expect(status == .internalServerError)
      }
      #expect(told.withLock { $0 }.contains("16 MiB"))
    }
  }

  @Test func `the type of a text is what was said, else what is in the fields, else text/plain`() async throws {
    try await onCoroutine {
      try serving { request, response in
        switch request.path {
        case "/field": response.fields[.contentType] = "text/html"
        case "/both":
          response.fields[.contentType] = "text/html"
          return try response.send("a,b", type: "text/csv")
        default: break
        }
        try response.send("text")
      } _: { server in
        let client = HTTPClient()
        for (path, type) in [
          ("/field", "text/html"), ("/both", "text/csv"), ("/none", "text/plain; charset=utf-8"),
        ] {
          let response = try client.get("http://127.0.0.1:\(server.port)\(path)")
          let fields = response.head.headerFields[values: .contentType]
          #expect(fields == [type])
        }
      }
    }
  }

  @Test(arguments: ["whole", "parts", "large", "nothing", "error", "file", "HEAD"])
  func `an answer does not wait for the handler of the next request`(_ kind: String) async throws {
    try await onCoroutine {
      let gate = Promise<Void>()
      try serving { request, response in
        switch request.path {
        case "/next": try co_await(gate)
        case "/parts": try response.write("part")
        case "/large": return try response.send([UInt8](repeating: 65, count: 20_000))
        case "/nothing":
          response.status = .noContent
          return
        case "/error": throw HTTPStatusError(.ok, "error")
        case "/file": return try response.sendFile("/etc/passwd")
        default: return try response.send("whole")
        }
      } _: { server in
        let client = try Connection.connect(to: server.address)
        let method = kind == "HEAD" ? "HEAD" : "GET"
        try client.send("\(method) /\(kind) HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n")
        let answer = try co_timeout(.seconds(60)) { String(decoding: try client.read(upTo: 65_536), as: UTF8.self) }
        #expect(answer.hasPrefix("HTTP/1.1 20"), "\(answer)")
        gate.fulfill(())
        var rest = answer
        while statuses(rest).count < 2 { rest += String(decoding: try client.read(upTo: 65_536), as: UTF8.self) }
        #expect(statuses(rest)[1] == 200)
      }
    }
  }

  @Test func `answers to requests that arrive together have their order`() async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send("\(request.path)")
      } _: { server in
        let requests = (0..<20).map { "GET /\($0) HTTP/1.1\r\nHost: a\r\n\r\n" }.joined()
        let answer = try ask(server.address, requests, ends: true)
        let bodies = answer.components(of: "HTTP/1.1 ").dropFirst().map { $0.body }
        #expect(bodies == (0..<20).map { "/\($0)" })
      }
    }
  }

  @Test(arguments: [
    ("", ""), ("a=b", "[a|b]"), ("a=b&a=c&d", "[a|b][a|c][d|]"), ("a+b=c%20d%2Be", "[a b|c d+e]"),
    ("=x&&y==z", "[|x][y|=z]"), ("%C3%BC=%zz%4", "[ü|%zz%4]"), ("%FF", "[\u{fffd}|]"),
  ])
  func `a query is read as names and values`(_ query: String, _ items: String) async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send(request.queryItems.map { "[\($0.name)|\($0.value)]" }.joined())
      } _: { server in
        let body = try HTTPClient().get("http://127.0.0.1:\(server.port)/?\(query)").collect(upTo: 1_000)
        #expect(String(decoding: body, as: UTF8.self) == items)
      }
    }
  }

  @Test func `a body with a length and one in chunks are read in parts`() async throws {
    try await onCoroutine {
      try serving { request, response in
        var size = 0
        var sum = 0
        try withUnsafeTemporaryAllocation(byteCount: 1_000, alignment: 1) { buffer in
          while case let count = try request.read(into: buffer), count > 0 {
            size += count
            for byte in buffer[..<count] { sum += Int(byte) }
          }
        }
        try response.send("\(size) \(sum) \(request.trailers?[HTTPField.Name("x-end")!] ?? "-")")
      } _: { server in
        let body = String(repeating: "a", count: 300_000)
        let sum = 300_000 * 97
        let plain = try ask(
          server.address,
          "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n" + body
        )
        #expect(plain.body == "300000 \(sum) -")
        let chunk = "7530\r\n" + body.prefix(30_000) + "\r\n"
        let chunks = try ask(
          server.address,
          "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            + String(repeating: chunk, count: 10) + "0\r\nX-End: yes\r\n\r\n"
        )
        #expect(chunks.body == "300000 \(sum) yes")
        // In pieces that end anywhere.
        let client = try Connection.connect(to: server.address)
        for byte in "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".utf8 {
          try client.write([byte])
        }
        for byte in "1\r\na\r\n0\r\nA:\r\nX-End: \t y e s \r\nB: c\r\n\r\n".utf8 {
          try client.write([byte])
          try co_yield()
        }
        #expect(try client.rest().body == "1 97 y e s")
      }
    }
  }

  @Test func `a part of a response is sent at once, in chunks, of the declared length, or until the close`()
    async throws
  {
    try await onCoroutine {
      let gate = Promise<Void>()
      try serving { request, response in
        if request.path == "/length" { response.fields[.contentLength] = "6" }
        try response.write("abc")
        if request.path == "/gate" { try co_await(gate) }
        try response.write("def")
        try response.finish(trailers: request.path == "/chunks" ? [.eTag: "x"] : nil)
      } _: { server in
        func get(_ path: String, _ version: String = "1.1") -> String {
          "GET \(path) HTTP/\(version)\r\nHost: a\r\nConnection: close\r\n\r\n"
        }
        let chunks = try ask(server.address, get("/chunks"))
        #expect(chunks.body == "3\r\nabc\r\n3\r\ndef\r\n0\r\nETag: x\r\n\r\n")
        let length = try ask(server.address, get("/length"))
        #expect(length.body == "abcdef" && length.contains("content-length: 6\r\n"))
        let old = try ask(server.address, get("/old", "1.0"))
        #expect(old.body == "abcdef" && !old.contains("chunked") && old.contains("connection: close"))
        let client = try Connection.connect(to: server.address)
        try client.send(get("/gate"))
        var first = ""
        while !first.contains("abc") { first += String(decoding: try client.read(upTo: 1_000), as: UTF8.self) }
        gate.fulfill(())
        #expect(try client.rest() == "3\r\ndef\r\n0\r\n\r\n")
      }
    }
  }

  @Test(arguments: [
    "content-length", "Transfer-Encoding", "Host", "connection", "keep-alive", "upgrade", "trailer",
  ])
  func `a trailer that belongs into the head is refused, and the response can still end`(_ name: String) async throws {
    try await onCoroutine {
      let codes = Locked<[String]>([])
      try serving { request, response in
        if request.path != "/whole" { try response.write("x") }
        do {
          try response.finish(trailers: [.eTag: "y", HTTPField.Name(name)!: "1"])
          codes.withLock { $0.append("none") }
        } catch let error as HTTPError {
          codes.withLock { $0.append(error.code) }
          if request.path == "/thrown" { throw error }
          try response.finish(trailers: [.eTag: "y"])
        }
      } _: { server in
        func get(_ path: String) -> String { "GET \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" }
        let part = try ask(server.address, get("/part"))
        #expect(part.body == "1\r\nx\r\n0\r\nETag: y\r\n\r\n")
        #expect(try ask(server.address, get("/whole")).body == "0\r\nETag: y\r\n\r\n")
        // The client sees that it is incomplete.
        #expect(try ask(server.address, get("/thrown")).body == "1\r\nx\r\n")
        #expect(codes.current == Array(repeating: "INVALID_TRAILER", count: 3))
      }
    }
  }

  @Test func `a response to HEAD, and one with status 204 or 304, has no body`() async throws {
    try await onCoroutine {
      try serving { request, response in
        switch request.path {
        case "/204": response.status = .noContent
        case "/304": response.status = .notModified
        default: break
        }
        if request.path == "/parts" { try response.write("abc") } else { try response.send("abc") }
      } _: { server in
        func get(_ path: String, _ method: String = "GET", _ more: String = "") -> String {
          "\(method) \(path) HTTP/1.1\r\nHost: a\r\n\(more)\r\n"
        }
        let answer = try ask(
          server.address,
          get("/", "HEAD") + get("/parts", "HEAD") + get("/204") + get("/304")
            + get("/", "GET", "Connection: close\r\n")
        )
        #expect(statuses(answer) == [200, 200, 204, 304, 200])
        let parts = answer.components(of: "HTTP/1.1 ").dropFirst()
        #expect(parts.dropLast().allSatisfy { $0.body.isEmpty } && parts.last?.body == "abc")
        #expect(parts.dropFirst(2).dropLast().allSatisfy { !$0.contains("content-length") })
        #expect(parts.first?.contains("content-length: 3") == true)
      }
    }
  }

  @Test func `100-continue is sent when the body is asked for, and not otherwise`() async throws {
    try await onCoroutine {
      try serving { request, response in
        if request.path == "/read" { try response.send(try request.collect()) } else { try response.send("no") }
      } _: { server in
        let fields = "Host: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        let client = try Connection.connect(to: server.address)
        try client.send("POST /read HTTP/1.1\r\n" + fields)
        var reader = BufferedReader(client)
        #expect(try reader.readLine() == "HTTP/1.1 100 Continue")
        #expect(try reader.readLine() == "")
        try client.send("abc")
        #expect(try reader.readLine() == "HTTP/1.1 200 OK")
        let other = try ask(server.address, "POST /other HTTP/1.1\r\n" + fields)
        #expect(statuses(other) == [200] && other.contains("connection: close\r\n") && other.body == "no")
      }
    }
  }

  @Test func `a body that the handler leaves is dropped, or the close is announced`() async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send("ok")
      } _: { server in
        let next = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        let small = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        #expect(try askStatuses(server.address, small + next) == [200, 200])
        let body = String(repeating: "a", count: 200_000)
        let large = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + body
        let answer = try ask(server.address, large + next)
        #expect(statuses(answer) == [200] && answer.contains("connection: close\r\n"))
      }
    }
  }

  @Test func `the status of an error is the answer, and an incomplete response is closed`() async throws {
    struct Oops: Error {}
    try await onCoroutine {
      try serving { request, response in
        switch request.path {
        case "/status": throw HTTPStatusError(.forbidden, "no entry")
        case "/error": throw Oops()
        case "/late":
          try response.write("abc")
          throw Oops()
        case "/short":
          response.fields[.contentLength] = "5"
          try response.write("abc")
        case "/long":
          response.fields[.contentLength] = "2"
          try response.write("abc")
        case "/nothing": response.status = .accepted
        default: break
        }
      } _: { server in
        func get(_ path: String, _ more: String = "") -> String { "GET \(path) HTTP/1.1\r\nHost: a\r\n\(more)\r\n" }
        let answer = try ask(
          server.address,
          get("/status") + get("/error") + get("/nothing") + get("/late") + get("/status")
        )
        #expect(statuses(answer) == [403, 500, 202, 200])
        #expect(answer.contains("no entry") && !answer.contains("0\r\n\r\n0"))
        #expect(!answer.hasSuffix("0\r\n\r\n"))
        #expect(try askStatuses(server.address, get("/short") + get("/status")) == [200])
        let long = try ask(server.address, get("/long") + get("/status"))
        #expect(!long.contains("abc"))
        #expect(server.errors.current.count == 4)
      }
    }
  }

  @Test(arguments: ["a\r\nx: y", "a\nb", "a\0b", "a\rb"])
  func `a field that would split the response gives 500`(_ value: String) async throws {
    try await onCoroutine {
      try serving { request, response in
        if request.path == "/caught" {
          try? response.send("ok", type: value)
        } else if request.path == "/reason" {
          response.status = .init(code: 200, reasonPhrase: value)
          try response.send("ok")
        } else {
          try response.send("ok", type: value)
        }
      } _: { server in
        func get(_ path: String) -> String { "GET \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" }
        for path in ["/", "/caught"] {
          let answer = try ask(server.address, get(path))
          #expect(statuses(answer) == [500] && !answer.contains("x: y"))
        }
        // swift-http-types makes spaces of them.
        let reason = try ask(server.address, get("/reason"))
        #expect(!reason.contains(value))
      }
    }
  }

  @Test func `a client that takes nothing holds the handler back`() async throws {
    try await onCoroutine {
      let written = Locked(0)
      try serving { request, response in
        let part = [UInt8](repeating: 65, count: 65_536)
        for _ in 0..<400 {
          try part.withUnsafeBytes { try response.write($0) }
          written.withLock { $0 += part.count }
        }
      } _: { server in
        let client = try Connection.connect(to: server.address)
        try client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        var last = -1
        while case let now = written.current, now == 0 || now != last {
          last = now
          try co_delay(.milliseconds(50))
        }
        #expect(written.current < 400 * 65_536)
        let rest = co_launch { try client.rest().utf8.count }
        #expect(try rest.join() > 400 * 65_536)
        #expect(written.current == 400 * 65_536)
      }
    }
  }

  @Test func `upgrade hands the connection over with the bytes that were read ahead`() async throws {
    try await onCoroutine {
      try serving { request, response in
        if request.path == "/plain" { return try response.send("plain") }
        try response.upgrade { connection, reader in
          while let line = try reader.readLine() { try connection.write(Array("<\(line)>".utf8)) }
        }
      } _: { server in
        let fields = "Host: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
        let answer = try ask(server.address, "GET / HTTP/1.1\r\n" + fields + "one\ntwo\n", ends: true)
        #expect(statuses(answer) == [101])
        #expect(answer.contains("Upgrade: echo\r\n") && answer.contains("connection: upgrade\r\n"))
        #expect(answer.body == "<one><two>")
        let tunnel = try ask(server.address, "CONNECT b:1 HTTP/1.1\r\nHost: b:1\r\n\r\nthree\n", ends: true)
        #expect(statuses(tunnel) == [200] && tunnel.body == "<three>" && !tunnel.contains("content-length"))
        // An upgrade that the handler does not make is a request as any other.
        let next = "GET /plain HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        let plain = try ask(server.address, "GET /plain HTTP/1.1\r\n" + fields + next)
        #expect(statuses(plain) == [200, 200])
        #expect(try askStatuses(server.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") == [400])
      }
    }
  }

  @Test func `the head as the currency type has what was sent`() async throws {
    try await onCoroutine {
      try serving { request, response in
        let head = request.head
        let fields = head.headerFields.map { "\($0.name.rawName)=\($0.value)" }.joined(separator: ";")
        try response.send(
          "\(head.method) \(head.scheme ?? "") \(head.authority ?? "") \(head.path ?? "") \(fields)"
            + " \(request[.accept] ?? "-") \(request[.cookie] ?? "-") \(request[.range] ?? "-")"
        )
      } _: { server in
        let answer = try ask(
          server.address,
          "PUT http://b/c?d HTTP/1.1\r\nHost: a\r\nAccept: x\r\nCookie: e=f\r\nACCEPT: y\r\ncookie: g\r\n"
            + "Connection: close\r\n\r\n"
        )
        #expect(
          answer.body
            == "PUT http b /c?d Accept=x;Cookie=e=f;ACCEPT=y;cookie=g;Connection=close x, y e=f; g -"
        )
      }
    }
  }
}
#endif
