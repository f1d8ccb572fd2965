#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import Testing

/// Counts the reads that pass.
final class ReadCounter: ChannelOutboundHandler, @unchecked Sendable {
  // Sound because an EmbeddedChannel is used on one thread.
  typealias OutboundIn = Any
  var count = 0
  func read(context: ChannelHandlerContext) {
    count += 1
    context.read()
  }
}

/// What was written and flushed next, if anything.
func text(of channel: EmbeddedChannel) -> String? {
  (try? channel.readOutbound(as: ByteBuffer.self))??.text
}

/// A channel without a socket, whose loop is the thread of the test.
struct Embedded {
  let channel = EmbeddedChannel()
  let reads = ReadCounter()
  let connection: Bytes

  init() throws {
    try channel.pipeline.syncOperations.addHandler(reads)
    connection = try Bytes(wrapping: channel)
    try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
  }

  func receive(_ texts: String...) throws {
    for text in texts { try channel.writeInbound(ByteBuffer(string: text)) }
  }

  var sent: String? { text(of: channel) }

  func launch<Output: Sendable>(_ body: @escaping @Sendable (Bytes) throws -> Output) -> Job<Output> {
    let connection = connection
    let job = co_launch(on: channel.eventLoop) { try body(connection) }
    channel.embeddedEventLoop.run()
    return job
  }

  /// Runs what is ready, and returns the job's result, or that it waits.
  func result<Output>(of job: Job<Output>) -> String {
    channel.embeddedEventLoop.run()
    return job.isFinished ? outcome { try job.blockingWait() } : "waiting"
  }
}

/// Runs a test on a thread of its own, and shuts the channel's loop down afterwards.
func onEmbedded(_ body: @escaping @Sendable (Embedded) throws -> Void) async throws {
  try await onOwnThread {
    let embedded = try Embedded()
    defer {
      // An open channel and its pipeline would keep each other.
      embedded.channel.close(promise: nil)
      #expect(throws: Never.self) { try embedded.channel.embeddedEventLoop.syncShutdownGracefully() }
    }
    try body(embedded)
  }
}
#endif
