#if NIO
import CTestSupport
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import Testing

/// Counts the reads that pass.
private final class ReadCounter: ChannelOutboundHandler, @unchecked Sendable {
  // Sound because an EmbeddedChannel is used on one thread.
  typealias OutboundIn = Any
  var count = 0
  func read(context: ChannelHandlerContext) {
    count += 1
    context.read()
  }
}

/// What was written and flushed next, if anything.
private func text(of channel: EmbeddedChannel) -> String? {
  (try? channel.readOutbound(as: ByteBuffer.self))??.text
}

/// A channel without a socket, whose loop is the thread of the test.
private struct Embedded {
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
    let job = channel.eventLoop.co_launch { try body(connection) }
    channel.embeddedEventLoop.run()
    return job
  }

  /// Runs what is ready, and returns the job's result, or that it waits.
  func result<Output>(of job: Job<Output>) -> String {
    channel.embeddedEventLoop.run()
    return job.isFinished ? outcome { try job.wait() } : "waiting"
  }
}

/// Runs a test on a thread of its own, and shuts the channel's loop down afterwards.
private func onEmbedded(_ body: @escaping @Sendable (Embedded) throws -> Void) async throws {
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

@Suite("A channel's reads and writes", .timeLimit(.minutes(5)))
struct ChannelTests {
  @Test func `values come in order, those before the end of input first, and then nil for ever`() async throws {
    try await onEmbedded { embedded in
      try embedded.receive("a", "b")
      let job = embedded.launch { connection in
        var texts: [String] = []
        while let bytes = try connection.read() { texts.append(bytes.text) }
        for _ in 0..<2 { texts.append(try connection.read()?.text ?? "end") }
        return texts.joined(separator: " ")
      }
      try embedded.receive("c")
      try embedded.receive("d")
      #expect(embedded.result(of: job) == "waiting")
      embedded.channel.pipeline.fireChannelInactive()
      #expect(embedded.result(of: job) == "a b c d end end")
    }
  }

  @Test func `a read is requested only while a coroutine waits, and one at a time`() async throws {
    try await onEmbedded { embedded in
      #expect(embedded.reads.count == 0)
      let goesOn = Gate()
      let job = embedded.launch { connection in
        let first = try connection.read()
        try goesOn.pass()
        let second = try connection.read()
        return "\(first?.text ?? "") \(second?.text ?? "")"
      }
      #expect(embedded.reads.count == 1)
      try embedded.receive("a")
      // The coroutine has the value, and does not wait for another one.
      #expect(embedded.reads.count == 1)
      try embedded.receive("b")
      goesOn.open()
      #expect(embedded.result(of: job) == "a b")
      #expect(embedded.reads.count == 1)
    }
  }

  @Test func `a read that brings no value is repeated while a coroutine waits`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { try $0.read()?.text }
      // As a decoder does that needs more bytes.
      embedded.channel.pipeline.fireChannelReadComplete()
      embedded.channel.pipeline.fireChannelReadComplete()
      #expect(embedded.reads.count == 3)
      job.cancel()
      #expect(embedded.result(of: job).contains("CancellationError"))
      embedded.channel.pipeline.fireChannelReadComplete()
      #expect(embedded.reads.count == 3)
    }
  }

  @Test func `a cancelled read consumes nothing`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { try $0.read()?.text }
      job.cancel()
      try embedded.receive("kept")
      #expect(embedded.result(of: job).contains("CancellationError"))
      let next = embedded.launch { try $0.read()?.text ?? "end" }
      #expect(embedded.result(of: next) == "kept")
    }
  }

  @Test func `two readers get each value once`() async throws {
    try await onEmbedded { embedded in
      let jobs = (0..<2).map { _ in
        embedded.launch { connection in
          var texts: [String] = []
          while let bytes = try connection.read() {
            texts.append(bytes.text)
            try co_yield()
          }
          return texts
        }
      }
      for index in 0..<10 { try embedded.receive("\(index)") }
      embedded.channel.embeddedEventLoop.run()
      embedded.channel.pipeline.fireChannelInactive()
      embedded.channel.embeddedEventLoop.run()
      let all = try jobs.flatMap { try $0.wait() }
      #expect(all.sorted() == (0..<10).map { "\($0)" })
    }
  }

  @Test func `a burst of values leaves no memory when they are taken`() async {
    // A process of its own, because the heap is that of all tests.
    await #expect(processExitsWith: .success) {
      try await onEmbedded { embedded in
        let before = cts_heap_bytes()
        for _ in 0..<100_000 { embedded.channel.pipeline.fireChannelRead(ByteBuffer()) }
        embedded.channel.pipeline.fireChannelReadComplete()
        let job = embedded.launch { connection in
          for _ in 0..<100_000 { _ = try connection.read() }
          return try connection.read()?.text ?? "end"
        }
        #expect(embedded.result(of: job) == "waiting")
        #expect(cts_heap_bytes() < before + 1 << 20)
        try embedded.receive("a")
        #expect(embedded.result(of: job) == "a")
      }
    }
  }

  @Test func `what is written is flushed when the drain ends, whatever the coroutine waits for`() async throws {
    try await onEmbedded { embedded in
      let pause = Gate()
      let seen = Locked<[String?]>([])
      let channel = embedded.channel
      let job = embedded.launch { connection in
        try connection.write(ByteBuffer(string: "a"))
        seen.withLock { $0.append(text(of: channel)) }
        _ = try connection.read()
        try connection.write(ByteBuffer(string: "b"))
        try pause.pass()
        return "done"
      }
      #expect(seen.current == [nil])
      #expect(embedded.sent == "a")
      try embedded.receive("go on")
      #expect(embedded.sent == "b")
      pause.open()
      #expect(embedded.result(of: job) == "done")
    }
  }

  @Test func `a coroutine that was started at once requests a read, and flushes, outside a drain`() async throws {
    try await onEmbedded { embedded in
      let connection = embedded.connection
      let job = embedded.channel.eventLoop.co_launch(start: .immediate) {
        try connection.write(ByteBuffer(string: "a"))
        return try connection.read()?.text ?? "end"
      }
      #expect(embedded.reads.count == 1)
      #expect(embedded.sent == "a")
      try embedded.receive("b")
      #expect(embedded.result(of: job) == "b")
      let pause = Gate()
      let writer = embedded.channel.eventLoop.co_launch(start: .immediate) {
        try connection.write(ByteBuffer(string: "c"))
        try pause.pass()
      }
      embedded.channel.embeddedEventLoop.run()
      #expect(embedded.sent == "c")
      pause.open()
      #expect(embedded.result(of: writer) == "()")
    }
  }

  /// Responds to each read at once, with the number of the read.
  private final class Source: ChannelDuplexHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundIn = ByteBuffer
    private var count = 0

    func read(context: ChannelHandlerContext) {
      count += 1
      context.fireChannelRead(NIOAny(ByteBuffer(string: "\(count)")))
      context.fireChannelReadComplete()
    }
  }

  @Test func `a channel that responds to a read within the call is read as often as one likes`() async throws {
    try await onOwnThread {
      let channel = EmbeddedChannel()
      try channel.pipeline.syncOperations.addHandler(Source())
      let connection = try Bytes(wrapping: channel)
      try channel.connect(to: SocketAddress(ipAddress: "127.0.0.1", port: 1)).wait()
      let job = channel.eventLoop.co_launch {
        // Each read calls back on the stack of the loop's thread, which would not take so many frames.
        for number in 1...100_000 where try connection.read()?.text != "\(number)" { return number }
        return 0
      }
      channel.embeddedEventLoop.run()
      #expect(job.isFinished)
      #expect(try job.wait() == 0)
      try channel.embeddedEventLoop.syncShutdownGracefully()
    }
  }

  @Test func `a read whose coroutine is cancelled before the drain ends is not requested`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { connection in
        let loop = connection.channel.eventLoop
        let read = loop.co_launch { try connection.read()?.text }
        try co_yield()
        // The reader waits by now, and the drain has not ended.
        read.cancel()
        try? co_shield { _ = try read.join() }
        return "done"
      }
      #expect(embedded.result(of: job) == "done")
      #expect(embedded.reads.count == 0)
    }
  }

  @Test func `a write waits while the channel is not writable`() async throws {
    try await onEmbedded { embedded in
      embedded.channel.isWritable = false
      let job = embedded.launch { connection in
        try connection.write(ByteBuffer(string: "a"))
        return "written"
      }
      #expect(embedded.result(of: job) == "waiting")
      #expect(embedded.sent == nil)
      embedded.channel.isWritable = true
      embedded.channel.pipeline.fireChannelWritabilityChanged()
      #expect(embedded.result(of: job) == "written")
      #expect(embedded.sent == "a")
    }
  }

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
      let job = channel.eventLoop.co_launch {
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
      let said = try job.wait()
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
      let job = channel.eventLoop.co_launch {
        try connection.write(ByteBuffer(string: "a"))
        let refused = outcome { try connection.write(ByteBuffer(string: "refused")) }
        try connection.write(ByteBuffer(string: "b"))
        channel.pipeline.fireChannelInactive()
        return "\(refused) \(try connection.read()?.text ?? "end")"
      }
      channel.embeddedEventLoop.run()
      let said = try job.wait()
      #expect(said == "Oops() end")
      #expect([text(of: channel), text(of: channel), text(of: channel)] == ["a", "b", nil])
    }
  }

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
      let job = channel.eventLoop.co_launch {
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
      let result = try job.wait()
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
