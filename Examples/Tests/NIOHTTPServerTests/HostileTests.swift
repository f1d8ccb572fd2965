import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import Testing

@Suite("Hostile clients, and handlers that frame badly", .timeLimit(.minutes(5)))
struct HostileTests {
  /// Requests whose end two readers may see at different places.
  ///
  /// None may lead to an answer for what follows them.
  @Test func `a request whose framing is ambiguous is refused, and nothing after it is answered`() async throws {
    try await onWorker { group in
      let paths = Locked<[String]>([])
      let server = try Running(group) { request, response in
        paths.withLockedValue { $0.append(request.path) }
        _ = try request.collect()
        try response.send(request.path)
      }
      let heads = [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 5\r\n",
        "content-length: 4, 4\r\n",
        "content-length: +4\r\n",
        "content-length: -4\r\n",
        "content-length: 4 4\r\n",
        "content-length : 4\r\n",
        "content-length: 0x4\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length:\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: chunked, chunked\r\n",
        "transfer-encoding: chunked,\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding : chunked\r\n",
        "transfer-encoding:\r\n chunked\r\ncontent-length: 4\r\n",
        "transfer-encoding: \u{b}chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "x: y\rtransfer-encoding: chunked\r\n",
        " x: y\r\n",
        "x\r\n",
        "x: \0\r\n",
      ]
      for head in heads {
        paths.withLockedValue { $0 = [] }
        let answer = try server.exchange(
          "POST /1 HTTP/1.1\r\nhost: x\r\n\(head)\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        #expect(answer.hasPrefix("HTTP/1.1 400 "), "\(head.debugDescription): \(answer)")
        #expect(!paths.current.contains("/2"), "\(head.debugDescription)")
      }
      let bodies = [
        "+0\r\n\r\n", "0x0\r\n\r\n", " 0\r\n\r\n", "0 \r\n\r\n", "0\n\n", "0;x=\"\n\"\r\n\r\n", "1\r\na0\r\n\r\n",
        "1\r\naX\r\n0\r\n\r\n", "fffffffffffffffff\r\n", "-1\r\n", "\r\n", "0\r\nx\r\n\r\n",
      ]
      for body in bodies {
        paths.withLockedValue { $0 = [] }
        let answer = try server.exchange(
          "POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\(body)"
            + "GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        #expect(answer.hasPrefix("HTTP/1.1 400 "), "\(body.debugDescription): \(answer)")
        #expect(!paths.current.contains("/2"), "\(body.debugDescription)")
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  /// A proxy in front of the server may decode such a body, or see its end elsewhere.
  @Test func `a transfer coding other than exactly chunked is refused with 501, and nothing after it is answered`()
    async throws
  {
    try await onWorker { group in
      let paths = Locked<[String]>([])
      let server = try Running(group) { request, response in
        paths.withLockedValue { $0.append(request.path) }
        _ = try request.collect()
        try response.send(request.path)
      }
      // The codec itself refuses `chunked` in front of another value, with 400: see the test before.
      let refused = [
        "gzip, chunked", "gzip,chunked", "identity, chunked", "", " ", ",", ", chunked", "chunked;q=1", "\"chunked\"",
        "gzip\r\ntransfer-encoding: chunked", "\r\ntransfer-encoding: chunked", "gzip", "identity", "xchunked",
      ]
      for coding in refused {
        let answer = try server.exchange(
          "POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: \(coding)\r\n\r\n0\r\n\r\n"
            + "GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        #expect(answer.hasPrefix("HTTP/1.1 501 "), "\(coding.debugDescription): \(answer)")
        #expect(answer.contains("connection: close"), "\(coding.debugDescription): \(answer)")
        #expect(paths.current.isEmpty, "\(coding.debugDescription)")
      }
      for coding in ["chunked", "Chunked", " chunked "] {
        let answer = try server.exchange(
          "POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: \(coding)\r\n\r\n0\r\n\r\n"
            + "GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        #expect(answer.hasPrefix("HTTP/1.1 200 ") && answer.contains("/2"), "\(coding.debugDescription): \(answer)")
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that ends its output receives the whole of a large response`() async throws {
    try await onWorker(loops: 2) { group in
      let size = 24 << 20
      let server = try Running(group) { _, response in try response.send(ByteBuffer(repeating: 65, count: size)) }
      let connection = try server.connect()
      try connection.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      try connection.shutdownWrite()
      try co_delay(.milliseconds(100))
      var taken = 0
      while true {
        let part = try connection.read(upTo: 1 << 20)
        if part.isEmpty { break }
        taken += part.count
      }
      connection.close()
      #expect(taken > size)
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a malformed body ends the connection, whatever the handler answers, and is no error of the server`()
    async throws
  {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.pause = .seconds(30)
      let server = try Running(group, limits: limits) { request, response in
        _ = try? request.collect()
        try response.send("ignored")
      }
      for rest in ["", "GET /2 HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let connection = try server.connect()
        defer { connection.close() }
        try connection.write("POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n".utf8)
        let first = try connection.read(until: "ignored")
        #expect(first.hasPrefix("HTTP/1.1 200 "))
        try? connection.write(rest.utf8)
        let end = try co_timeout(.seconds(10)) { try connection.readAll() }
        #expect(end == "")
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `an interim status as the last one of a response ends the connection`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.path == "/1" { response.status = .processing }
        try response.send("secret of \(request.path)")
      }
      let answer = try server.exchange(
        "GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
      )
      #expect(!answer.contains("secret"), "\(answer)")
      try server.stop()
    }
  }

  @Test func `a response has one content-length`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        response.headers.add(name: "content-length", value: request.query("a") ?? "")
        response.headers.add(name: "content-length", value: "9")
        try response.write("12345")
      }
      for declared in ["5", "%2B5", "05"] {
        let answer = try server.exchange("GET /?a=\(declared) HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        #expect(answer.components(separatedBy: "content-length").count == 2, "\(answer)")
        #expect(answer.contains("content-length: 5\r\n") && answer.hasSuffix("12345"), "\(answer)")
      }
      let answer = try server.exchange("GET /?a=-5 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
      #expect(!answer.contains("-5"), "\(answer)")
      try server.stop()
    }
  }
}
