import Clients
import Coroutine
import CoroutineNIO
import CoroutineNet
import Foundation
import Hummingbird
import HummingbirdCore
import HummingbirdCoroutines
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTPTypes
import Testing

@testable import HummingbirdSite

@Suite("A server of Hummingbird with synchronous handlers", .timeLimit(.minutes(5)))
struct ServerTests {
  private func router() -> Router<BasicEventLoopRequestContext> { Router(context: BasicEventLoopRequestContext.self) }

  @Test func `each answer of a synchronous handler is that of its async twin`() async throws {
    try await withServer(Site.router(BasicEventLoopRequestContext.self, onLoop: false)) { server in
      let site = "http://127.0.0.1:\(server.port)"
      for path in ["hello", "receipt"] {
        let answers = try ["", "async/"].map { try curl("--include", "\(site)/\($0)\(path)").output }
        func withoutDate(_ text: String) -> [String] {
          text.components(separatedBy: "\r\n").filter { !$0.lowercased().hasPrefix("date:") }
        }
        #expect(answers[0].hasPrefix("HTTP/1.1 200 OK\r\n"), "\(answers)")
        #expect(withoutDate(answers[0]) == withoutDate(answers[1]))
      }
      #expect(try curl("\(site)/receipt").output == "tea 2.50, cake 13.99\n")
      #expect(try curl("\(site)/count").output == (1...10).map { "\($0)\n" }.joined())
      let body = Data(repeating: 65, count: 3 << 20)
      #expect(try curl("--data-binary", "@-", "\(site)/size", input: body).output == "\(3 << 20) bytes\n")
      #expect(try curl("--output", "/dev/null", "--write-out", "%{http_code}", "\(site)/none").output == "404")
    }
  }

  @Test func `a handler of loopCoroutines stays on the loop of its connection`() async throws {
    let router = router()
    let isOnLoop: @Sendable (Request, BasicEventLoopRequestContext) throws -> String = { request, context in
      let before = context.eventLoop.inEventLoop
      try co_delay(.milliseconds(1))
      try co_await { await Task.yield() }
      return "\(before) \(context.eventLoop.inEventLoop)"
    }
    router.loopCoroutines.get("loop", use: isOnLoop)
    router.coroutines.get("pool", use: isOnLoop)
    try await withServer(router) { server in
      for _ in 0..<4 {
        let answers = try ["loop", "pool"].map { try curl("http://127.0.0.1:\(server.port)/\($0)").output }
        #expect(answers == ["true true", "false false"])
      }
    }
  }

  @Test func `a client that sends faster than the handler reads is stopped`() async throws {
    let size = 64 << 20
    let received = Locked(0)
    let next = Gate()
    let router = router()
    router.coroutines.post("slow") { request, _ in
      var body = request.body.reader()
      var sum = try body.read()?.readableBytes ?? 0
      try next.pass()
      while let part = try body.read() { sum += part.readableBytes }
      return "\(sum)"
    }
    let builder = HTTPServerBuilder.http1(configuration: .init(additionalChannelHandlers: [BodyCounter(received)]))
    try await withServer(router, builder) { server in
      let client = try Connection.connect(to: .ipv4("127.0.0.1", port: server.port))
      defer { client.close() }
      try client.write("POST /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: \(size)\r\n\r\n".utf8)
      let body = [UInt8](repeating: 65, count: size)
      // Sends whenever the system takes more, until neither the client nor the server goes on.
      var sent = 0
      _ = try server.settled {
        sent += client.sendNow(body[sent...])
        return sent + received.withLockedValue { $0 }
      }
      #expect(received.withLockedValue { $0 } < size / 8)
      next.open()
      try client.write(body[sent...])
      #expect(try client.readAll().hasSuffix("\(size)"))
    }
  }

  @Test func `a body that a client takes slowly is written slowly, and arrives as it is written`() async throws {
    let parts = 512
    let written = Locked(0)
    let next = Gate()
    let router = router()
    router.coroutines.get("stream") { _, _ in
      Response(
        status: .ok,
        body: .coroutine { writer in
          try writer.write("first")
          // The client has the first part before the second one is written.
          try next.pass()
          for _ in 0..<parts {
            try writer.write(ByteBuffer(repeating: 66, count: 64 << 10))
            written.withLockedValue { $0 += 1 }
          }
          writer.trailers = [.eTag: "end"]
        }
      )
    }
    try await withServer(router) { server in
      let client = try Connection.connect(to: .ipv4("127.0.0.1", port: server.port))
      defer { client.close() }
      try client.write("GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".utf8)
      _ = try client.read(until: "first\r\n")
      next.open()
      let count = try server.settled { written.withLockedValue { $0 } }
      #expect(count < parts / 2)
      let rest = try client.readAll()
      #expect(rest.utf8.count { $0 == 66 } == parts * 64 << 10)
      #expect(rest.lowercased().hasSuffix("0\r\netag: end\r\n\r\n"))
    }
  }

  @Test func `a body that fails is seen to be incomplete, and ends with its request's Task`() async throws {
    let ended = Gate()
    let router = router()
    router.coroutines.get("half") { _, _ in
      Response(
        status: .ok,
        body: .coroutine { writer in
          try writer.write("half")
          throw Oops()
        }
      )
    }
    router.coroutines.get("endless") { _, _ in
      Response(
        status: .ok,
        body: .coroutine { writer in
          do {
            while true { try writer.write("more") }
          } catch {
            ended.open()
            throw error
          }
        }
      )
    }
    try await withServer(router) { server in
      // 18: the body is shorter than it was declared, or has no end.
      #expect(try curl("http://127.0.0.1:\(server.port)/half").status == 18)
      let client = try Connection.connect(to: .ipv4("127.0.0.1", port: server.port))
      try client.write("GET /endless HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      _ = try client.read(until: "more")
      client.close()
      // A body that went on would keep this test until its time limit.
      try ended.pass()
    }
  }

  @Test func `a body of another length than the declared one is never sent as a complete one`() async throws {
    let refused = Promise<String>()
    let router = router()
    router.coroutines.get("short") { _, _ in
      Response(status: .ok, body: .coroutine(contentLength: 10) { try $0.write("four") })
    }
    router.coroutines.get("long") { _, _ in
      Response(
        status: .ok,
        body: .coroutine(contentLength: 6) { writer in
          try writer.write("four")
          do {
            try writer.write("more")
          } catch {
            refused.fulfill("\(error)")
            throw error
          }
        }
      )
    }
    try await withServer(router) { server in
      for path in ["short", "long"] {
        let answer = try curl("http://127.0.0.1:\(server.port)/\(path)")
        #expect(answer.status == 18 && answer.output == "four", "\(path): \(answer)")
      }
      #expect(
        try co_await(refused)
          == "the body was declared to have 6 bytes, and 8 were written: declare the right number, or none"
      )
    }
  }

  @Test func `a body whose read has failed is never taken for a complete one`() async throws {
    let answers = Promise<[String]>()
    let router = router()
    router.coroutines.post("slow") { request, _ -> String in
      var body = request.body.reader()
      var seen: [String] = []
      while seen.count < 3 {
        do {
          try co_timeout(.milliseconds(20)) {
            while try body.read() != nil {}
            seen.append("complete")
          }
        } catch {
          seen.append("\(type(of: error))")
        }
      }
      answers.fulfill(seen)
      return "done"
    }
    try await withServer(router) { server in
      let client = try Connection.connect(to: .ipv4("127.0.0.1", port: server.port))
      try client.write("POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf".utf8)
      let seen = try co_await(answers)
      #expect(seen.first == "TimeoutError" && !seen.contains("complete"), "\(seen)")
      client.close()
    }
  }
}

/// Counts the bytes of bodies that have reached the server.
private final class BodyCounter: ChannelInboundHandler, RemovableChannelHandler, Sendable {
  typealias InboundIn = HTTPRequestPart
  typealias InboundOut = HTTPRequestPart

  private let count: Locked<Int>

  init(_ count: Locked<Int>) { self.count = count }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    if case .body(let part) = Self.unwrapInboundIn(data) { count.withLockedValue { $0 += part.readableBytes } }
    context.fireChannelRead(data)
  }
}
