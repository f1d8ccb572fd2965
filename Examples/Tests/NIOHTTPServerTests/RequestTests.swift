import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import Testing

/// The request's method, target and body.
@Sendable
func echo(_ request: HTTPRequest, _ response: HTTPResponse) throws {
  let body = try request.collect()
  try response.send("\(request.head.method) \(request.head.uri) \(String(buffer: body))")
}

private let get = "GET / HTTP/1.1\r\nhost: x\r\n"

@Suite("Requests and responses", .timeLimit(.minutes(5)))
struct RequestTests {
  @Test func `curl gets and posts, and keeps its connection`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let url = server.url
      let posted = try curl(
        "--data",
        "the body",
        "\(url)/post",
        "--next",
        "--write-out",
        " %{num_connects}",
        "\(url)/get"
      )
      #expect(posted.output == "POST /post the bodyGET /get  0")
      let head = try curl("--head", "\(url)/head")
      #expect(head.output.contains("HTTP/1.1 200 OK\r\n"))
      #expect(head.output.contains("content-length: 11\r\n"))
      #expect(head.output.contains("date: "))
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `bodies are chunked both ways, or have the declared length`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.query("length") != nil { response.headers.add(name: "content-length", value: "8") }
        while let part = try request.read() { try response.write(part) }
        try response.write("")
        try response.finish(trailers: ["x-end": request.trailers?.first(name: "x-sum") ?? "none"])
      }
      let body = Data("12345678".utf8)
      let chunked = try curl(
        "--include",
        "--header",
        "transfer-encoding: chunked",
        "--data-binary",
        "@-",
        server.url,
        input: body
      )
      #expect(chunked.output.contains("transfer-encoding: chunked"))
      // Curl prints the trailers behind the body.
      #expect(chunked.output.contains("\r\n\r\n12345678x-end: none"))
      let fixed = try curl("--include", "--data-binary", "@-", "\(server.url)/?length", input: body)
      #expect(fixed.output.contains("content-length: 8"))
      #expect(!fixed.output.contains("chunked"))
      #expect(fixed.output.hasSuffix("12345678"))
      let trailers = try server.exchange(
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
          + "3\r\nabc\r\n1\r\nd\r\n0\r\nx-sum: 4\r\n\r\n"
      )
      #expect(trailers.hasSuffix("3\r\nabc\r\n1\r\nd\r\n0\r\nx-end: 4\r\n\r\n"), "\(trailers)")
      try server.stop()
    }
  }

  @Test func `pipelined requests are answered in order, whatever each of them waits for`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.path == "/1" { try co_delay(.milliseconds(20)) }
        try response.send(request.path)
      }
      let requests = (1...20).map { "GET /\($0) HTTP/1.1\r\nhost: x\r\n\($0 == 20 ? "connection: close\r\n" : "")\r\n" }
      let answer = try server.exchange(requests.joined())
      let bodies = answer.split(separator: "\r\n").compactMap { line in
        line.split(separator: "/").first.flatMap { Int($0.prefix { $0.isNumber }) }
      }
      #expect(bodies == Array(1...20), "\(answer)")
      try server.stop()
    }
  }

  @Test func `a client that waits for 100-continue gets it when the handler reads, and not if it refuses`() async throws
  {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.path == "/refuse" { throw HTTPStatusError(.forbidden) }
        try echo(request, response)
      }
      let connection = try server.connect()
      defer { connection.close() }
      let head = "POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n"
      try connection.write(head.utf8)
      let first = try connection.read(until: "\r\n\r\n")
      #expect(first == "HTTP/1.1 100 Continue\r\n\r\n")
      try connection.write("body".utf8)
      let second = try connection.read(until: "POST /read body")
      #expect(second.hasPrefix("HTTP/1.1 200 OK\r\n"))

      // The body was not sent, and will not be: the server cannot know what comes next, and closes.
      try connection.write(head.replacingOccurrences(of: "/read", with: "/refuse").utf8)
      let refused = try connection.read(until: "<end>")
      #expect(refused.hasPrefix("HTTP/1.1 403 Forbidden\r\n"))
      #expect(refused.hasSuffix("Forbidden\n<end>"))

      let unknown = try server.exchange(get + "expect: a miracle\r\n\r\n")
      #expect(unknown.hasPrefix("HTTP/1.1 417 "))
      let big = try curl(
        "--include",
        "--header",
        "expect: 100-continue",
        "--data-binary",
        "@-",
        "\(server.url)/read",
        input: Data(repeating: 120, count: 1 << 20)
      )
      #expect(big.output.contains("100 Continue"))
      #expect(big.output.contains("200 OK"))
      #expect(big.output.utf8.count > 1 << 20)
      try server.stop()
    }
  }

  @Test func `a response to HEAD, and one without a body by its status, sends none`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.path == "/none" { response.status = .noContent }
        if request.path == "/parts" {
          try response.write("some")
          try response.write("thing")
        } else {
          try response.send("something")
        }
      }
      let answer = try server.exchange(
        "HEAD /parts HTTP/1.1\r\nhost: x\r\n\r\nHEAD / HTTP/1.1\r\nhost: x\r\n\r\nGET /none HTTP/1.1\r\nhost: x\r\n\r\n"
          + "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
      )
      let parts = answer.components(separatedBy: "\r\n\r\n")
      #expect(parts.count == 5, "\(answer)")
      #expect(parts.dropLast().allSatisfy { $0.hasPrefix("HTTP/1.1 20") }, "\(answer)")
      #expect(!parts[0].contains("content-length"))
      #expect(parts[1].contains("content-length: 9"))
      #expect(parts[2].hasPrefix("HTTP/1.1 204 No Content") && !parts[2].contains("content-length"))
      #expect(parts[4] == "something")
      try server.stop()
    }
  }

  @Test func `HTTP 1.0 clients get bodies that the end of the connection ends, and keep it if they ask`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        if request.path == "/parts" { try response.write("some") } else { try response.send("thing") }
      }
      let parts = try server.exchange("GET /parts HTTP/1.0\r\n\r\n")
      #expect(parts.hasPrefix("HTTP/1.0 200 OK\r\n"))
      #expect(!parts.contains("transfer-encoding") && parts.hasSuffix("\r\n\r\nsome"))
      let kept = try server.exchange("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
      #expect(kept.components(separatedBy: "thing").count == 3, "\(kept)")
      #expect(kept.contains("connection: keep-alive") && kept.contains("connection: close"))
      try server.stop()
    }
  }

  @Test func `a client that ends its output still gets its response, and an incomplete body is refused`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      for (text, status) in [
        (get + "\r\n", "200"), (get + "content-length: 9\r\n\r\nhalf", "400"), ("GET / HT", "400"),
      ] {
        let connection = try server.connect()
        try connection.write(text.utf8)
        try connection.shutdownWrite()
        let answer = try connection.readAll()
        #expect(answer.hasPrefix("HTTP/1.1 \(status) "), "\(answer)")
        connection.close()
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a request to upgrade is served as it is, and is the last of its connection`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let answer = try curl("--include", "--http2", "\(server.url)/h2c")
      #expect(answer.output.contains("HTTP/1.1 200 OK\r\n") && answer.output.contains("connection: close"))
      #expect(answer.output.hasSuffix("GET /h2c "))
      try server.stop()
    }
  }

  @Test func `the path and the query are decoded`() async throws {
    try await onWorker { group in
      let server = try Running(group) { request, response in
        try response.send("\(request.path)|\(request.query("q") ?? "-")|\(request.query("none") ?? "-")")
      }
      let answer = try curl("\(server.url)/a%20b+c%zz?p=1&q=x+y%26z")
      #expect(answer.output == "/a b+c%zz|x y&z|-")
      try server.stop()
    }
  }
}
