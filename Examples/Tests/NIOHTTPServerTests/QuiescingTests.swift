import NIOCore
import NIOEmbedded
import NIOHTTP1
import Testing

@testable import NIOHTTPServer

@Suite("The handler that ends idle connections")
struct QuiescingTests {
  /// A pipeline of the handler and a recorder, as its server uses it.
  private final class Connection {
    let channel = EmbeddedChannel()
    let handler = QuiescingHandler()
    private let recorder = Recorder()

    init() throws {
      try channel.pipeline.syncOperations.addHandlers([handler, recorder])
    }

    // An open channel and its pipeline refer to each other for ever.
    deinit { _ = try? channel.finish() }

    var received: [String] { recorder.received }

    func head(_ path: String) throws {
      try channel.writeInbound(HTTPServerRequestPart.head(.init(version: .http1_1, method: .GET, uri: path)))
    }

    func end() throws { try channel.writeInbound(HTTPServerRequestPart.end(nil)) }

    func stop() { channel.pipeline.fireUserInboundEventTriggered(ChannelShouldQuiesceEvent()) }
  }

  private final class Recorder: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart

    var received: [String] = []

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
      switch Self.unwrapInboundIn(data) {
      case .head(let head): received.append("head \(head.uri)")
      case .body: received.append("body")
      case .end: received.append("end")
      }
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) { received.append("\(event)") }
  }

  @Test func `an idle connection gets the end of input, and no request after it`() throws {
    let connection = try Connection()
    #expect(!connection.handler.isStopping)
    try connection.handler.waiting {
      connection.stop()
      #expect(connection.received == ["inputClosed"])
      try connection.head("/late")
      try connection.end()
    }
    #expect(connection.handler.isStopping)
    #expect(connection.received == ["inputClosed"])
  }

  @Test func `a request that has arrived is not cut off, taken or not`() throws {
    let connection = try Connection()
    try connection.handler.waiting {
      try connection.head("/1")
      // The coroutine has been woken, and has not run yet.
      connection.stop()
      try connection.end()
    }
    connection.handler.tookHead()
    #expect(connection.received == ["head /1", "end"])
    #expect(connection.handler.isStopping)
  }

  @Test func `a stop within an exchange reports no end of input`() throws {
    let connection = try Connection()
    try connection.handler.waiting { try connection.head("/1") }
    connection.handler.tookHead()
    connection.stop()
    try connection.end()
    #expect(connection.received == ["head /1", "end"])
    #expect(connection.handler.isStopping)
  }

  @Test func `a connection that is idle again after requests gets the end of input`() throws {
    let connection = try Connection()
    for path in ["/1", "/2"] {
      try connection.handler.waiting { try connection.head(path) }
      connection.handler.tookHead()
      try connection.end()
    }
    connection.handler.waiting { connection.stop() }
    #expect(connection.received == ["head /1", "end", "head /2", "end", "inputClosed"])
  }

  @Test func `other events pass`() throws {
    let connection = try Connection()
    connection.handler.waiting { connection.channel.pipeline.fireUserInboundEventTriggered("other") }
    #expect(connection.received == ["other"])
    #expect(!connection.handler.isStopping)
  }
}
