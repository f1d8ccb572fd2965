import Clients
import Coroutine
import CoroutineNet
import Foundation
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTP1
import NIOHTTPServer
import Testing

@Suite("The end of a connection", .timeLimit(.minutes(5)))
struct EndTests {
  @Test func `a client that sends a head of megabytes learns why it was refused`() async throws {
    try await onWorker { group in
      let received = Locked(0)
      let server = try Running(
        group,
        configure: { try $0.pipeline.syncOperations.addHandler(Counter(received)) },
        echo
      )
      let long = String(repeating: "x", count: 2 << 20)
      let connection = try server.connect()
      defer { connection.close() }
      try connection.write("GET / HTTP/1.1\r\nhost: x\r\nx-long: \(long)".utf8)
      try connection.shutdownWrite()
      let answer = try connection.readAll()
      try server.stop()
      #expect(answer.hasPrefix("HTTP/1.1 431 "), "\(answer)")
      // The server does not stop at the second read after the error, and reset the connection.
      #expect(received.current > 1 << 20)
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that sends further requests receives the whole last response`() async throws {
    try await onWorker(loops: 2) { group in
      let body = ByteBuffer(repeating: 65, count: 4 << 20)
      let server = try Running(group) { _, response in try response.send(body) }
      let next = "GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
      let requests = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + String(repeating: next, count: 1 << 15)
      for _ in 0..<8 {
        let answer = try server.whileSending(requests)
        #expect(answer.hasPrefix("HTTP/1.1 200 ") && answer.hasSuffix(String(buffer: body)), "\(answer.utf8.count)")
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test(arguments: ["CONNECT x:80", "GET /"])
  func `what a client sends after a request to upgrade is not stored`(request: String) async throws {
    try await onWorker { group in
      let stored = Locked(0)
      let server = try Running(group) { request, response in
        let pipeline = request.channel!.pipeline.syncOperations
        let decoder = try pipeline.handler(type: ByteToMessageHandler<HTTPRequestDecoder>.self)
        try pipeline.addHandler(Counter(stored), position: .before(decoder))
        try response.send("no")
      }
      let connection = try server.connect()
      defer { connection.close() }
      try connection.write("\(request) HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n".utf8)
      _ = try connection.read(until: "\r\n\r\nno")
      try? connection.write(Array(repeating: 65, count: 8 << 20))
      try? connection.shutdownWrite()
      _ = try? connection.readAll()
      try server.stop()
      #expect(stored.current == 0)
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that takes nothing of the last response is closed`() async throws {
    try await onWorker { group in
      var limits = HTTPLimits()
      limits.pause = .milliseconds(50)
      let closed = Coroutine.Channel<Void>(.dropOldest(2))
      let server = try Running(group, limits: limits) { request, response in
        request.channel!.closeFuture.whenComplete { _ in _ = closed.trySend(()) }
        // Until the system takes no more, but the channel still does: the handler does not wait for the client.
        var full = 0
        while full < 10 {
          let unsent = try request.channel!.syncOptions!.getOption(.bufferedWritableBytes)
          full = unsent > 0 ? full + 1 : 0
          if unsent == 0 { try response.write(ByteBuffer(repeating: 7, count: 16 << 10)) }
          try co_delay(.milliseconds(1))
        }
      }
      // The server ends the connection as it was asked to, or because the client has ended its output.
      for header in ["connection: close\r\n", ""] {
        let connection = try server.connect()
        try connection.write("GET / HTTP/1.1\r\nhost: x\r\n\(header)\r\n".utf8)
        if header.isEmpty { try connection.shutdownWrite() }
        _ = try closed.receive()
        connection.close()
      }
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that takes a large part slowly is not closed`() async throws {
    try await onWorker(loops: 2) { group in
      let size = 40 << 20
      var limits = HTTPLimits()
      limits.pause = .seconds(20)
      let server = try Running(group, limits: limits) { request, response in
        try response.write(ByteBuffer(repeating: 7, count: size))
        try response.write("end")
      }
      let connection = try server.connect()
      defer { connection.close() }
      try connection.write("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".utf8)
      // For 24 seconds: longer than the limit, which is for a client that takes nothing.
      var taken = 0
      var last: [UInt8] = []
      var pause = 1 << 20
      while true {
        let part = try connection.read(upTo: 64 << 10)
        if part.isEmpty { break }
        taken += part.count
        last = (last + part).suffix(16)
        if taken > pause {
          pause += 1 << 20
          try co_delay(.milliseconds(600))
        }
      }
      #expect(taken > size)
      #expect(String(decoding: last, as: UTF8.self).hasSuffix("end\r\n0\r\n\r\n"))
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a response whose write has failed is the last one, whatever the handler does`() async throws {
    try await onWorker(loops: 2) { group in
      let second = Promise<String>()
      let server = try Running(group) { request, response in
        guard request.path == "/1" else { return try response.send("the next response") }
        let part = ByteBuffer(repeating: 7, count: 1 << 20)
        while (try? co_timeout(.milliseconds(50)) { try response.write(part) }) != nil {}
        do {
          try response.write("after")
          second.fulfill("written")
        } catch {
          second.fulfill("\(error)")
        }
      }
      let connection = try server.connect()
      defer { connection.close() }
      try connection.write("GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n".utf8)
      // The client reads nothing until a write has failed.
      let outcome = try co_await(second)
      #expect(outcome == "responseBroken")
      try server.stop()
      var answer: [UInt8] = []
      while let part = try? connection.read(upTo: 1 << 20), !part.isEmpty { answer += part }
      let text = String(decoding: answer, as: UTF8.self)
      #expect(text.hasPrefix("HTTP/1.1 200 ") && !text.contains("after") && !text.contains("the next response"))
      #expect(!text.hasSuffix("\r\n0\r\n\r\n"))
    }
  }

  @Test func `trailers that are refused leave the response as it was`() async throws {
    try await onWorker { group in
      let server = try Running(group) { _, response in
        try response.write("body")
        for trailers: HTTPHeaders in [["x y": "z"], ["x": "a\r\nset-cookie: b"], ["": "z"]] {
          do { try response.finish(trailers: trailers) } catch HTTPParserError.invalidHeaderToken {
            try response.write("!")
          }
        }
        try response.finish(trailers: ["x-end": "fine\t\u{e9}"])
      }
      let request = "GET / HTTP/1.1\r\nhost: x\r\n"
      let answer = try server.exchange("\(request)\r\n\(request)connection: close\r\n\r\n")
      let end = "body\r\n1\r\n!\r\n1\r\n!\r\n1\r\n!\r\n0\r\nx-end: fine\t\u{e9}\r\n\r\n"
      #expect(answer.components(separatedBy: end).count == 3, "\(answer)")
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test func `a client that resets its connection is no error of the server`() async throws {
    try await onWorker { group in
      let server = try Running(group) { _, response in try response.send("the response") }
      let connection = try server.connect()
      // The server discards the body, whose rest never comes.
      try connection.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nhalf".utf8)
      _ = try connection.read(until: "HTTP/1.1 200 ")
      // The system resets a connection that is closed with unread input.
      connection.close()
      try server.stop()
      #expect(server.errors.current.isEmpty)
    }
  }
}

/// Counts the bytes that pass.
private final class Counter: ChannelInboundHandler, Sendable {
  typealias InboundIn = ByteBuffer
  typealias InboundOut = ByteBuffer

  private let count: Locked<Int>

  init(_ count: Locked<Int>) { self.count = count }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    count.withLockedValue { $0 += Self.unwrapInboundIn(data).readableBytes }
    context.fireChannelRead(data)
  }
}

extension Running {
  /// Sends `text`, reads at the same time until the server ends its output, and returns what the server has sent.
  fileprivate func whileSending(_ text: String) throws -> String {
    let connection = try connect()
    defer { connection.close() }
    let sending = co_launch { try? connection.write(text.utf8) }
    defer { sending.cancel() }
    return try connection.readAll()
  }
}
