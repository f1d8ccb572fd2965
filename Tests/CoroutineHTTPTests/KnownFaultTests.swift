#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import HTTPTypes
import Testing

/// What bug reports of other servers describe, and what the example on SwiftNIO's codec had as well.
@Suite("Known faults of other servers", .timeLimit(.minutes(10)))
struct KnownFaultTests {
  private static let next = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

  @Test(arguments: ["gzip", "gzip, chunked", "identity, chunked", "identity", "chunked, identity", "x", ""])
  func `a transfer coding other than chunked is no body of length zero`(_ coding: String) async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send("\(request.path)")
      } _: { server in
        let answer = try ask(
          server.address,
          "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \(coding)\r\n\r\n0\r\n\r\n" + Self.next
        )
        #expect([[400], [501]].contains(statuses(answer)) && answer.contains("connection: close\r\n"), "\(answer)")
      }
    }
  }

  @Test func `a target in absolute form has a path, and its own host`() async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send("\(request.path)|\(request.query ?? "-")|\(request.host ?? "-")")
      } _: { server in
        let close = "Host: a\r\nConnection: close\r\n\r\n"
        let answer = try ask(server.address, "GET http://b:8/c?d HTTP/1.1\r\n" + close)
        #expect(answer.body == "/c|d|b:8")
        let short = try ask(server.address, "GET HTTP://b HTTP/1.1\r\n" + close)
        #expect(short.body == "/|-|b")
      }
    }
  }

  @Test func `a version of another protocol is none of HTTP`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("ok")
      } _: { server in
        for version in ["RTSP/1.0", "ICE/1.0", "HTTP/1.1x", "HTTPS/1.1"] {
          let found = try askStatuses(server.address, "GET / \(version)\r\nHost: a\r\n\r\n" + Self.next)
          #expect(found == [400], "\(version)")
        }
      }
    }
  }

  @Test func `a close is announced if the body will not be read`() async throws {
    try await onCoroutine {
      try serving { _, response in
        try response.send("early")
      } _: { server in
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
        let answer = try ask(server.address, head)
        #expect(statuses(answer) == [200] && answer.contains("connection: close\r\n") && answer.hasSuffix("early"))
      }
    }
  }

  @Test func `a field with a line end is answered with 500, and not with a close`() async throws {
    try await onCoroutine {
      try serving { request, response in
        try response.send("ok", type: "a\r\nset-cookie: b")
      } _: { server in
        let answer = try ask(server.address, Self.next)
        #expect(statuses(answer) == [500] && !answer.contains("set-cookie"), "\(answer)")
        #expect(server.errors.current.count == 1)
      }
    }
  }

  @Test func `a handler that waits for something else learns that its client has gone`() async throws {
    try await onCoroutine {
      let (began, ended) = (Promise<Void>(), Promise<String>())
      let never = Channel<Int>()
      try serving { _, response in
        began.fulfill()
        do {
          _ = try never.receive()
        } catch {
          ended.fulfill("\(error)")
          throw error
        }
      } _: { server in
        let client = try Connection.connect(to: server.address)
        try client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        try co_await(began)
        client.close()
        #expect(try co_await(ended).contains("PEER_HAS_GONE"))
      }
    }
  }
}
#endif
