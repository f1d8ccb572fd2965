#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import NIOPosix
import Testing

/// Holds the writes back until it is told to let them go or to fail them.
private final class Slow: ChannelDuplexHandler, @unchecked Sendable {
  // Sound because an EmbeddedChannel is used on one thread.
  typealias InboundIn = NIOAny
  typealias OutboundIn = ByteBuffer
  var held: [EventLoopPromise<Void>] = []
  var closes: [CloseMode] = []
  var closePromise: EventLoopPromise<Void>?

  func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
    if let promise { held.append(promise) }
  }

  func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
    closes.append(mode)
    if mode == .output { closePromise = promise } else { context.close(mode: mode, promise: promise) }
  }

  func endWrites(with error: (any Error)? = nil) {
    let ended = held
    held = []
    for promise in ended { if let error { promise.fail(error) } else { promise.succeed(()) } }
  }
}

@Suite("The end of a channel's output", .timeLimit(.minutes(10)))
struct FinishTests {
  private static func onSlow(_ body: @escaping @Sendable (EmbeddedChannel, Slow, Bytes) throws -> Void) async throws {
    try await onOwnThread {
      let channel = EmbeddedChannel()
      let slow = Slow()
      try channel.pipeline.syncOperations.addHandler(slow)
      let connection = try Bytes(wrapping: channel)
      try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
      defer {
        channel.close(promise: nil)
        #expect(throws: Never.self) { try channel.embeddedEventLoop.syncShutdownGracefully() }
      }
      try body(channel, slow, connection)
    }
  }

  @Test(arguments: [false, true])
  func `finish loses nothing, although the peer has ended its output and reads slowly`(isEarly: Bool) async throws {
    let size = 24 << 20
    try await onWorker(loops: 2) { group in
      let outcomes = Coroutine.Channel<String>(1)
      let server = try Running(group, halfClosure: true) { connection in
        if isEarly { _ = try readAll(connection) }
        try connection.write(ByteBuffer(repeating: 7, count: size))
        try outcomes.send(outcome { try connection.finish() })
      }
      let received = try connect(group, server.address, halfClosure: true) { connection in
        if isEarly { try connection.finish() }
        try co_delay(.milliseconds(100))
        if !isEarly { try connection.finish() }
        return try readAll(connection).readableBytes
      }
      #expect(received == size)
      #expect(try outcomes.receive() == "()")
      try server.stop()
    }
  }

  @Test func `finish closes the output when everything is written, and not before`() async throws {
    try await Self.onSlow { channel, slow, connection in
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        try connection.finish()
      }
      channel.embeddedEventLoop.run()
      #expect(slow.closes.isEmpty)
      slow.endWrites()
      channel.embeddedEventLoop.run()
      #expect(slow.closes == [.output])
      #expect(!job.isFinished)
      slow.closePromise?.succeed(())
      channel.embeddedEventLoop.run()
      #expect(job.isFinished && outcome { try job.blockingWait() } == "()")
    }
  }

  @Test func `a finish that is cancelled closes the output when everything is written`() async throws {
    try await Self.onSlow { channel, slow, connection in
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        try connection.finish()
      }
      channel.embeddedEventLoop.run()
      job.cancel()
      channel.embeddedEventLoop.run()
      #expect(job.isFinished)
      #expect(slow.closes.isEmpty)
      slow.endWrites()
      #expect(slow.closes == [.output])
    }
  }

  @Test func `an error that fails the writes and the end of the output is thrown once`() async throws {
    try await Self.onSlow { channel, slow, connection in
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        let first = outcome { try connection.finish() }
        return "\(first) \(outcome { try connection.read()?.text ?? "end" })"
      }
      channel.embeddedEventLoop.run()
      // As a channel that is reset.
      slow.endWrites(with: Oops())
      slow.closePromise?.fail(Oops())
      channel.pipeline.fireChannelInactive()
      channel.embeddedEventLoop.run()
      #expect(job.isFinished && outcome { try job.blockingWait() } == "Oops() end")
    }
  }

  /// Opens a gate when a read completes that has found nothing but the peer's end.
  private final class Bell: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    private let gate: Gate
    init(_ gate: Gate) { self.gate = gate }

    func channelReadComplete(context: ChannelHandlerContext) {
      gate.open()
      context.fireChannelReadComplete()
    }
  }

  @Test func `a coroutine that is woken while NIO finds the peer's end closes the channel after that`() async {
    // In a process of its own: in a debug build, NIO ends one that closes the channel within that callback.
    await #expect(processExitsWith: .success) {
      try await onWorker { group in
        let isFound = Gate()
        let server = try Running(
          group,
          halfClosure: true,
          configure: { try $0.pipeline.syncOperations.addHandler(Bell(isFound)) }
        ) { connection in
          let reader = co_launch { try connection.read() == nil }
          try isFound.pass()
          try connection.close()
          // Whichever came first, the end or the close.
          _ = outcome { try reader.join() }
        }
        // It sends nothing.
        try connect(group, server.address, halfClosure: true) { connection in
          try connection.finish()
          #expect(try connection.read() == nil)
        }
        try server.stop()
      }
    }
  }

  @Test func `a write that fails while an earlier error waits is not lost`() async throws {
    try await Self.onSlow { channel, slow, connection in
      channel.pipeline.fireErrorCaught(Oops())
      let job = co_launch(on: channel.eventLoop) {
        try connection.write(ByteBuffer(string: "a"))
        slow.endWrites(with: ChannelError.eof)
        return outcome { try connection.write(ByteBuffer(string: "b")) }
      }
      channel.embeddedEventLoop.run()
      #expect(outcome { try job.blockingWait() } == "Oops()")
    }
  }
}
#endif
