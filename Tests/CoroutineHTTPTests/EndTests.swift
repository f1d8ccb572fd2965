#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@Suite("The end of a connection", .timeLimit(.minutes(10)))
struct EndTests {
  private static let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

  /// Sends `text`, reads at the same time until the server ends its output, and returns what the server has sent.
  private func whileSending(_ text: String, to address: SocketAddress, ends: Bool = false) throws -> String {
    let client = try Connection.connect(to: address)
    defer { client.close() }
    let bytes = Array(text.utf8)
    let sending = co_launch {
      try client.write(bytes)
      if ends { try client.shutdownWrite() }
    }
    defer { sending.cancel() }
    return try co_timeout(.seconds(60)) { try client.rest() }
  }

  @Test func `a client that sends a head of megabytes learns why it was refused`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("ok")
      } _: { server in
        let head = "GET / HTTP/1.1\r\nHost: a\r\nX: " + String(repeating: "x", count: 900_000)
        let answer = try whileSending(head, to: server.address, ends: true)
        #expect(statuses(answer) == [431] && !answer.contains("<reset>"), "\(answer)")
        #expect(server.errors.current.count == 1)
      }
    }
  }

  @Test func `a client that sends further requests receives the whole last response`() async throws {
    try await onCoroutine {
      let body = [UInt8](repeating: 65, count: 4 << 20)
      try serving { _, response in
        try response.send(body)
      } _: { server in
        let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
        let requests = Self.last + String(repeating: next, count: 1 << 14)
        for _ in 0..<4 {
          let answer = try whileSending(requests, to: server.address)
          #expect(answer.hasPrefix("HTTP/1.1 200 ") && !answer.contains("<reset>"))
          #expect(answer.utf8.count > body.count && answer.utf8.count < body.count + 500, "\(answer.utf8.count)")
        }
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test func `a client that sends further requests and takes its time receives the whole last response`() async throws {
    try await onCoroutine {
      let body = [UInt8](repeating: 65, count: 1 << 20)
      // The handler ends at once: the system holds the response.
      try serving { _, response in
        try response.send(body)
      } _: { server in
        var small = SocketOptions()
        small.receiveBuffer = 64 << 10
        let client = try Connection.connect(to: server.address, options: small)
        defer { client.close() }
        try client.send(Self.last)
        var taken = 0
        // For longer than the server reads on for a client that takes nothing; each time with something to read.
        while case let part = try client.read(upTo: 256 << 10), !part.isEmpty {
          taken += part.count
          if taken < body.count { try co_delay(.milliseconds(500)) }
          _ = try? client.write("GET /next HTTP/1.1\r\n".utf8)
        }
        #expect(taken > body.count, "\(taken)")
      }
    }
  }

  @Test func `a client that ends its output receives the whole of a large response`() async throws {
    try await onCoroutine {
      let size = 24 << 20
      try serving { _, response in
        try response.send([UInt8](repeating: 65, count: size))
      } _: { server in
        let client = try Connection.connect(to: server.address)
        try client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        try client.shutdownWrite()
        var taken = 0
        while case let part = try client.read(upTo: 1 << 20), !part.isEmpty { taken += part.count }
        #expect(taken > size)
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test func `a client that takes a large part slowly is not closed`() async throws {
    try await onCoroutine {
      let size = 16 << 20
      var options = HTTPServer.Options()
      // Long enough for a busy machine, on which the client itself may pause for seconds.
      options.pause = .seconds(10)
      try serving(options) { _, response in
        let part = [UInt8](repeating: 65, count: size)
        try part.withUnsafeBytes { try response.write($0) }
        try response.write("end")
      } _: { server in
        // A small buffer, so that the server's write lasts as long as the client takes its time.
        var small = SocketOptions()
        small.receiveBuffer = 64 << 10
        let client = try Connection.connect(to: server.address, options: small)
        try client.send(Self.last)
        // For longer than the limit, which is for a client that takes nothing.
        var (taken, next, end) = (0, 1 << 20, [UInt8]())
        while case let part = try client.read(upTo: 64 << 10), !part.isEmpty {
          taken += part.count
          end = (end + part).suffix(16)
          if taken > next {
            next += 1 << 20
            try co_delay(.milliseconds(750))
          }
        }
        #expect(taken > size && String(decoding: end, as: UTF8.self).hasSuffix("end\r\n0\r\n\r\n"))
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test func `a response whose write has failed is the last one, whatever the handler does`() async throws {
    try await onCoroutine {
      let second = Promise<String>()
      try serving { request, response in
        guard request.path == "/1" else { return try response.send("the next response") }
        let part = [UInt8](repeating: 65, count: 1 << 20)
        var hasFailed = false
        while !hasFailed {
          do {
            try co_timeout(.milliseconds(50)) { try part.withUnsafeBytes { try response.write($0) } }
          } catch {
            hasFailed = true
          }
        }
        do {
          try response.write("after")
          second.fulfill("written")
        } catch {
          second.fulfill("\(error)")
        }
      } _: { server in
        let client = try Connection.connect(to: server.address)
        try client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        // The client reads nothing until a write has failed.
        #expect(try co_await(second).contains("RESPONSE_ENDED"))
        let answer = try client.rest()
        #expect(answer.hasPrefix("HTTP/1.1 200 ") && !answer.contains("after") && !answer.contains("the next response"))
        #expect(!answer.hasSuffix("\r\n0\r\n\r\n"))
      }
    }
  }

  @Test func `a client that resets its connection is no error of the server`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("the response")
      } _: { server in
        let client = try Connection.connect(to: server.address)
        // The server drops the body, whose rest never comes.
        try client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\nhalf")
        _ = try client.read(upTo: 8)
        // The system resets a connection that is closed with unread input.
        client.close()
        #expect(try askStatuses(server.address, Self.last) == [200])
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test func `a malformed body ends the connection, whatever the handler answers`() async throws {
    try await onCoroutine {
      try serving { request, response in
        _ = try? request.collect()
        try response.send("ignored")
      } _: { server in
        let chunks = "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
        for rest in ["", "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n"] {
          let answer = try ask(server.address, chunks + rest)
          #expect(statuses(answer) == [200] && answer.hasSuffix("ignored"), "\(answer)")
        }
        #expect(server.errors.current.isEmpty)
      }
    }
  }

  @Test func `connections beyond the limit wait, and are served when others have ended`() async throws {
    try await onCoroutine {
      struct Oops: Error {}
      var options = HTTPServer.Options()
      options.server.maxConnections = 2
      let pair = Promise<Void>()
      let handlers = Locked<(now: Int, most: Int)>((0, 0))
      try serving(options) { request, response in
        let isPair = handlers.withLock { handlers in
          handlers.now += 1
          handlers.most = max(handlers.most, handlers.now)
          return handlers.most > 1
        }
        defer { handlers.withLock { $0.now -= 1 } }
        // Two are served at once. Without a limit, the others would arrive while these wait.
        if isPair { pair.fulfill() }
        try co_await(pair)
        try co_delay(.milliseconds(5))
        if request.path == "/fails" { throw Oops() }
        try response.send("served")
      } _: { server in
        try co_scope { scope in
          for number in 0..<20 {
            scope.launch {
              // A connection whose handler fails makes room as well.
              let path = number % 4 == 0 ? "/fails" : "/"
              let answer = try ask(server.address, "GET \(path) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
              #expect(statuses(answer) == [path == "/" ? 200 : 500], "\(answer)")
            }
          }
        }
        #expect(handlers.withLock { $0.most } == 2)
      }
    }
  }

  @Test func `requests race with the server's end, and each is answered as a whole or not at all`() async throws {
    try await onCoroutine {
      var answered = 0
      for round in 0..<20 {
        // At an address of its own: the clients connect until nobody listens there.
        let server = try Running(at: ownLoopback()) { request, response in try response.send(try request.collect()) }
        let clients = (0..<4).map { _ in co_launch { try Self.postUntilClosed(server.address) } }
        for _ in 0..<(round * 20) { try co_yield() }
        try server.stop()
        for client in clients {
          let (whole, broken) = try client.join()
          #expect(broken.isEmpty)
          answered += whole
        }
        #expect(server.errors.current.isEmpty)
      }
      #expect(answered > 0)
    }
  }

  /// Posts on one connection after the other until the server is gone; returns the answers that were whole, and others.
  private static func postUntilClosed(_ address: SocketAddress) throws -> (whole: Int, broken: [String]) {
    var (whole, broken) = (0, [String]())
    while let client = try? Connection.connect(to: address) {
      defer { client.close() }
      var answer = ""
      do {
        while true {
          answer = ""
          try client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
          while !answer.hasSuffix("body"), case let part = try client.read(upTo: 500), !part.isEmpty {
            answer += String(decoding: part, as: UTF8.self)
          }
          if answer.isEmpty { break }
          guard statuses(answer) == [200], answer.hasSuffix("body") else {
            broken.append(answer)
            break
          }
          whole += 1
        }
      } catch let error as NetError {
        // A request that was not answered at all may be reset, but not an answer that has begun.
        if !answer.isEmpty { broken.append("\(answer) \(error)") }
      }
    }
    return (whole, broken)
  }
}
#endif
