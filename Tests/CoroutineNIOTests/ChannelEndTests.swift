#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import Testing

@Suite("A channel's end", .timeLimit(.minutes(10)))
struct ChannelEndTests {
  @Test func `close ends the reads and writes of all coroutines, and a second close does nothing`() async throws {
    try await onEmbedded { embedded in
      let reader = embedded.launch { connection in outcome { try connection.read() } }
      try embedded.receive()
      let closer = embedded.launch { connection in
        try connection.write(ByteBuffer(string: "last"))
        try connection.close()
        try connection.close()
        let read = outcome { try connection.read() }
        let write = outcome { try connection.write(ByteBuffer(string: "late")) }
        return "\(read) \(write)"
      }
      #expect(embedded.result(of: reader).contains("ioOnClosedChannel"))
      #expect(embedded.result(of: closer) == "ioOnClosedChannel ioOnClosedChannel")
      #expect(embedded.sent == "last")
      #expect(!embedded.channel.isActive)
    }
  }

  @Test func `a cancelled coroutine closes the channel`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { connection in
        defer { try? connection.close() }
        _ = try connection.read()
      }
      job.cancel()
      #expect(embedded.result(of: job).contains("CancellationError"))
      #expect(!embedded.channel.isActive)
    }
  }

  @Test func `finish ends the output, and reading goes on`() async throws {
    final class Half: ChannelOutboundHandler {
      typealias OutboundIn = ByteBuffer
      let modes = Locked<[CloseMode]>([])
      func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        modes.withLock { $0.append(mode) }
        if mode == .output { promise?.succeed(()) } else { context.close(mode: mode, promise: promise) }
      }
    }
    try await onOwnThread {
      let channel = EmbeddedChannel()
      defer { #expect(throws: Never.self) { try channel.embeddedEventLoop.syncShutdownGracefully() } }
      let half = Half()
      try channel.pipeline.syncOperations.addHandler(half)
      let connection = try Bytes(wrapping: channel)
      try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        try connection.finish()
        let write = outcome { try connection.write(ByteBuffer(string: "b")) }
        let again = outcome { try connection.finish() }
        return "\(write) \(again) \(try connection.read()?.text ?? "end")"
      }
      channel.embeddedEventLoop.run()
      let sent = try channel.readOutbound(as: ByteBuffer.self)?.text
      #expect(sent == "a")
      try channel.writeInbound(ByteBuffer(string: "answer"))
      channel.embeddedEventLoop.run()
      let result = try job.blockingWait()
      #expect(result == "outputClosed outputClosed answer")
      #expect(half.modes.current == [.output])
    }
  }

  @Test func `finish throws if a handler has no half-closure, and the output stays open`() async throws {
    final class Whole: ChannelOutboundHandler {
      typealias OutboundIn = ByteBuffer
      func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        if mode == .all { return context.close(mode: mode, promise: promise) }
        promise?.fail(ChannelError.operationUnsupported)
      }
    }
    try await onEmbedded { embedded in
      try embedded.channel.pipeline.syncOperations.addHandler(Whole(), position: .first)
      let job = embedded.launch { connection in
        try connection.write(ByteBuffer(string: "a"))
        let finished = outcome { try connection.finish() }
        try connection.write(ByteBuffer(string: "b"))
        return finished
      }
      #expect(embedded.result(of: job) == "\(ChannelError.operationUnsupported)")
      #expect(embedded.sent == "a")
      #expect(embedded.sent == "b")
    }
  }

  @Test func `the functions throw outside a coroutine`() async throws {
    try await onEmbedded { embedded in
      #expect(throws: CoroutineError.self) { try embedded.connection.read() }
      #expect(throws: CoroutineError.self) { try embedded.connection.write(ByteBuffer()) }
      #expect(throws: CoroutineError.self) { try embedded.connection.finish() }
      #expect(throws: CoroutineError.self) { try embedded.connection.close() }
      #expect(embedded.channel.isActive)
    }
  }

  @Test func `a removed handler ends the coroutine's reads`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { try $0.read()?.text ?? "end" }
      try embedded.channel.close().wait()
      #expect(embedded.result(of: job) == "end")
    }
  }

  @Test func `a closed channel cannot be wrapped`() async throws {
    try await onOwnThread {
      let channel = EmbeddedChannel()
      defer { #expect(throws: Never.self) { try channel.embeddedEventLoop.syncShutdownGracefully() } }
      try channel.close().wait()
      channel.embeddedEventLoop.run()
      #expect(throws: ChannelError.self) { try Bytes(wrapping: channel) }
    }
  }
}
#endif
