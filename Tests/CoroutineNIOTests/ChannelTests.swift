#if NIO
import CTestSupport
import Coroutine
import CoroutineNIO
import NIOCore
import NIOEmbedded
import Testing

@Suite("A channel's reads and writes", .timeLimit(.minutes(10)))
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
      let all = try jobs.flatMap { try $0.blockingWait() }
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
      let job = co_launch(on: embedded.channel.eventLoop, start: .immediate) {
        try connection.write(ByteBuffer(string: "a"))
        return try connection.read()?.text ?? "end"
      }
      #expect(embedded.reads.count == 1)
      #expect(embedded.sent == "a")
      try embedded.receive("b")
      #expect(embedded.result(of: job) == "b")
      let pause = Gate()
      let writer = co_launch(on: embedded.channel.eventLoop, start: .immediate) {
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
      let job = co_launch(on: channel.eventLoop) {
        // Each read calls back on the stack of the loop's thread, whose 8 MiB would not hold so many frames.
        let reads = isSanitized ? 30_000 : 100_000
        for number in 1...reads where try connection.read()?.text != "\(number)" { return number }
        return 0
      }
      channel.embeddedEventLoop.run()
      #expect(job.isFinished)
      #expect(try job.blockingWait() == 0)
      try channel.embeddedEventLoop.syncShutdownGracefully()
    }
  }

  @Test func `a read whose coroutine is cancelled before the drain ends is not requested`() async throws {
    try await onEmbedded { embedded in
      let job = embedded.launch { connection in
        let loop = connection.channel.eventLoop
        let read = co_launch(on: loop) { try connection.read()?.text }
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
}
#endif
