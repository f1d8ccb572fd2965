#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import Testing

@Suite("A channel's errors", .timeLimit(.minutes(10)))
struct ChannelErrorTests {
  @Test func `an error is thrown once, after the values that came before it`() async throws {
    try await onEmbedded { embedded in
      try embedded.receive("a")
      embedded.channel.pipeline.fireErrorCaught(Oops())
      try embedded.receive("b")
      let job = embedded.launch { connection in
        var texts: [String] = []
        for _ in 0..<3 { texts.append(outcome { try connection.read()?.text ?? "end" }) }
        return texts.joined(separator: " ")
      }
      #expect(embedded.result(of: job) == "a Oops() b")
    }
  }

  @Test func `an error wakes a reader, and of two errors at once the first is thrown`() async throws {
    struct Second: Error {}
    try await onEmbedded { embedded in
      let job = embedded.launch { connection in
        (0..<3).map { _ in outcome { try connection.read()?.text ?? "end" } }.joined(separator: " ")
      }
      #expect(embedded.result(of: job) == "waiting")
      embedded.channel.pipeline.fireErrorCaught(Oops())
      embedded.channel.pipeline.fireErrorCaught(Second())
      #expect(embedded.result(of: job) == "waiting")
      // The first one was thrown before this one arrives.
      embedded.channel.pipeline.fireErrorCaught(Second())
      #expect(embedded.result(of: job) == "waiting")
      try embedded.receive("a")
      #expect(embedded.result(of: job) == "Oops() Second() a")
    }
  }

  @Test func `an error that the pipeline catches does not stop the output of a channel that lives`() async throws {
    try await onEmbedded { embedded in
      embedded.channel.pipeline.fireErrorCaught(Oops())
      let job = embedded.launch { connection in
        try connection.write(ByteBuffer(string: "a"))
        return outcome { try connection.read() }
      }
      #expect(embedded.result(of: job) == "Oops()")
      #expect(embedded.sent == "a")
    }
  }

  @Test func `an error that ends the channel reaches a write if that comes first, and then no read`() async throws {
    try await onEmbedded { embedded in
      embedded.channel.pipeline.fireErrorCaught(Oops())
      embedded.channel.pipeline.fireChannelInactive()
      let job = embedded.launch { connection in
        let first = outcome { try connection.write(ByteBuffer(string: "a")) }
        let second = outcome { try connection.write(ByteBuffer(string: "b")) }
        return "\(first) \(second) \(try connection.read()?.text ?? "end")"
      }
      #expect(embedded.result(of: job) == "Oops() ioOnClosedChannel end")
    }
  }

  @Test func `an error of a write is thrown by the next operation, once, even if many writes fail`() async throws {
    final class Failing: ChannelOutboundHandler {
      typealias OutboundIn = ByteBuffer
      var promises: [EventLoopPromise<Void>?] = []
      func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        promises.append(promise)
      }
      func flush(context: ChannelHandlerContext) {
        while let promise = promises.popLast() { promise?.fail(Oops()) }
      }
    }
    try await onOwnThread {
      let channel = EmbeddedChannel()
      defer { #expect(throws: Never.self) { try channel.embeddedEventLoop.syncShutdownGracefully() } }
      try channel.pipeline.syncOperations.addHandler(Failing())
      let connection = try Bytes(wrapping: channel)
      try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        try connection.write(ByteBuffer(string: "b"))
        try co_delay(.seconds(1))
        let first = outcome { try connection.write(ByteBuffer(string: "c")) }
        try connection.write(ByteBuffer(string: "d"))
        let second = outcome { try connection.read() }
        channel.pipeline.fireChannelInactive()
        let third = outcome { try connection.read()?.text ?? "end" }
        return "\(first) \(second) \(third)"
      }
      channel.embeddedEventLoop.run()
      channel.embeddedEventLoop.advanceTime(by: .seconds(1))
      let said = try job.blockingWait()
      #expect(said == "Oops() Oops() end")
    }
  }

  @Test func `a write that a handler refuses throws itself, and is no error of a later operation`() async throws {
    final class Refusing: ChannelOutboundHandler {
      typealias OutboundIn = ByteBuffer
      func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        if unwrapOutboundIn(data).text == "refused" {
          promise?.fail(Oops())
        } else {
          context.write(data, promise: promise)
        }
      }
    }
    try await onOwnThread {
      let channel = EmbeddedChannel()
      defer { #expect(throws: Never.self) { try channel.embeddedEventLoop.syncShutdownGracefully() } }
      try channel.pipeline.syncOperations.addHandler(Refusing())
      let connection = try Bytes(wrapping: channel)
      try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        let refused = outcome { try connection.write(ByteBuffer(string: "refused")) }
        try connection.write(ByteBuffer(string: "b"))
        channel.pipeline.fireChannelInactive()
        return "\(refused) \(try connection.read()?.text ?? "end")"
      }
      channel.embeddedEventLoop.run()
      let said = try job.blockingWait()
      #expect(said == "Oops() end")
      #expect([text(of: channel), text(of: channel), text(of: channel)] == ["a", "b", nil])
    }
  }
}
#endif
