#if NIO
import Coroutine
import CoroutineNIO
import Dispatch
import Glibc
import NIOCore
import NIOPosix
import Testing

@Suite("Channels over sockets", .timeLimit(.minutes(10)))
struct SocketTests {
  @Test func `bytes come back in order, from many connections at once`() async throws {
    try await onWorker(loops: 2) { group in
      // Or the server's channel would be closed when the client has finished, with answers still unsent.
      let server = try Running(group, halfClosure: true, echo)
      let address = server.address
      try co_scope { scope in
        for index in 0..<50 {
          scope.launch {
            let size = 1_000 * index
            let sent = ByteBuffer(bytes: (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 7 &+ index) })
            let received = try connect(group, address, halfClosure: true) { connection in
              let loop = connection.channel.eventLoop
              let writer = co_launch(on: loop) {
                for part in stride(from: 0, to: size, by: 777) {
                  try connection.write(sent.getSlice(at: part, length: min(777, size - part))!)
                }
                try connection.finish()
              }
              var all = ByteBuffer()
              while all.readableBytes < size, var bytes = try connection.read() { all.writeBuffer(&bytes) }
              try writer.join()
              return all
            }
            #expect(received == sent)
          }
        }
      }
      try server.stop()
    }
  }

  /// Notes when a read completes, around the handlers behind it.
  private final class Bracket: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    let order: Locked<[String]>
    init(_ order: Locked<[String]>) { self.order = order }
    func channelReadComplete(context: ChannelHandlerContext) {
      order.withLock { $0.append("complete") }
      context.fireChannelReadComplete()
      order.withLock { $0.append("completed") }
    }
  }

  @Test func `a reader is resumed within the callback that completes the read`() async throws {
    try await onWorker { group in
      let order = Locked<[String]>([])
      let server = try Running(group) { connection in
        let readsByItself = try connection.channel.syncOptions?.getOption(.autoRead)
        #expect(readsByItself == false)
        try connection.channel.pipeline.syncOperations.addHandler(Bracket(order), position: .first)
        while let bytes = try connection.read() {
          order.withLock { $0.append("read") }
          try connection.write(bytes)
        }
      }
      try connect(group, server.address) { connection in
        for _ in 0..<3 {
          try connection.write(ByteBuffer(string: "x"))
          _ = try connection.read()
        }
      }
      try server.stop()
      #expect(
        Array(order.current.prefix(9)) == Array(repeating: ["complete", "read", "completed"], count: 3).flatMap { $0 }
      )
    }
  }

  /// Options that nobody has by default.
  private struct Options {
    static let waterMark = ChannelOptions.Types.WriteBufferWaterMark(low: 3_000, high: 5_000)

    static func set(_ channel: any NIOCore.Channel) throws {
      try channel.syncOptions?.setOption(.writeBufferWaterMark, value: waterMark)
      try channel.syncOptions?.setOption(.maxMessagesPerRead, value: 7)
      try channel.syncOptions?.setOption(.tcpOption(.tcp_nodelay), value: 0)
      try channel.syncOptions?.setOption(.allowRemoteHalfClosure, value: true)
    }

    static func areSet(_ channel: any NIOCore.Channel) throws -> Bool {
      guard let options = channel.syncOptions else { return false }
      return try options.getOption(.writeBufferWaterMark).high == waterMark.high
        && options.getOption(.maxMessagesPerRead) == 7
        && options.getOption(.tcpOption(.tcp_nodelay)) == 0
        && options.getOption(.allowRemoteHalfClosure)
    }
  }

  @Test func `the options of a channel stay as they were set, on both sides`() async throws {
    try await onWorker { group in
      let server = try Running(group, configure: Options.set) { connection in
        let areSet = try Options.areSet(connection.channel)
        #expect(areSet)
        try echo(connection)
      }
      try connect(group, server.address, configure: Options.set) { connection in
        try connection.write(ByteBuffer(string: "x"))
        let answer = try connection.read()
        #expect(answer?.text == "x")
        let areSet = try Options.areSet(connection.channel)
        #expect(areSet)
        try connection.finish()
      }
      try server.stop()
    }
  }

  @Test func `a slow reader stops a fast writer: what lies between them is bounded`() async throws {
    let total = 8 << 20
    let most = try await onWorker(loops: 2) { group in
      let written = Locked(0)
      let most = Locked(0)
      let server = try Running(
        group,
        configure: { channel in
          try channel.syncOptions?.setOption(.socketOption(.so_rcvbuf), value: 32 << 10)
        }
      ) { connection in
        var taken = 0
        while let bytes = try connection.read() {
          let between = written.current - taken
          most.withLock { $0 = max($0, between) }
          taken += bytes.readableBytes
          try co_delay(.microseconds(500))
        }
        #expect(taken == total)
      }
      try connect(
        group,
        server.address,
        configure: { channel in
          try channel.syncOptions?.setOption(.socketOption(.so_sndbuf), value: 32 << 10)
        }
      ) { connection in
        let part = ByteBuffer(repeating: 1, count: 16 << 10)
        for _ in 0..<(total / part.readableBytes) {
          try connection.write(part)
          written.withLock { $0 += part.readableBytes }
        }
      }
      try server.stop()
      return most.current
    }
    // Without the stop it would be all of the 8 MiB: the writer needs milliseconds for them, the reader seconds.
    #expect(most < 2 << 20, "\(most) bytes")
    #expect(most > 64 << 10, "\(most) bytes: the writer was not the faster one")
  }

  @Test func `the peer's end of input is read as nil, and with half-closure writing goes on`() async throws {
    try await onWorker { group in
      let server = try Running(group, halfClosure: true) { connection in
        let question = try readAll(connection)
        try connection.write(ByteBuffer(string: "answer to \(question.text)"))
        try connection.finish()
        #expect(throws: ChannelError.self) { try connection.write(question) }
      }
      let answer = try connect(group, server.address, halfClosure: true) { connection in
        try connection.write(ByteBuffer(string: "what"))
        try connection.write(ByteBuffer(string: "ever"))
        try connection.finish()
        return try readAll(connection).text
      }
      #expect(answer == "answer to whatever")
      try server.stop()
    }
  }

  @Test func `what was read before the peer's close is still there, then nil, and writes throw`() async throws {
    try await onWorker { group in
      let outcomes = Promise<[String]>()
      let goesOn = Gate()
      let server = try Running(group) { connection in
        let first = try connection.read()?.text ?? "end"
        try goesOn.pass()
        var texts = [first]
        // The rest lies in the system's buffer: it is read although the peer is gone.
        texts.append(try readAll(connection).text)
        texts.append(outcome { try connection.read()?.text ?? "end" })
        texts.append(outcome { try connection.write(ByteBuffer(string: "late")) })
        outcomes.fulfill(texts)
      }
      try connect(group, server.address) { connection in
        try connection.write(ByteBuffer(string: "a"))
        try co_delay(.milliseconds(5))
        try connection.write(ByteBuffer(string: "b"))
      }
      goesOn.open()
      let texts = try co_await(outcomes)
      #expect(texts[0].hasPrefix("a"))
      #expect(texts[0] + texts[1] == "ab")
      #expect(texts[2] == "end")
      #expect(texts[3] == "ioOnClosedChannel")
      try server.stop()
    }
  }

  @Test func `writes to a dead peer end with one error, and then say that the channel is closed`() async throws {
    try await onWorker { group in
      let outcomes = Promise<[String]>()
      let server = try Running(group) { connection in
        var texts: [String] = []
        let part = ByteBuffer(repeating: 1, count: 64 << 10)
        while texts.isEmpty {
          do {
            try connection.write(part)
          } catch {
            texts.append("\(type(of: error))")
          }
        }
        texts.append(outcome { try connection.write(part) })
        texts.append(outcome { try connection.read()?.text ?? "end" })
        outcomes.fulfill(texts)
      }
      // Resets the connection, because what has arrived is not read.
      try connect(group, server.address) { connection in
        let options = try #require(connection.channel as? any SocketOptionProvider)
        try co_await(options.setSoLinger(linger(l_onoff: 1, l_linger: 0)))
        _ = try connection.read()
      }
      let texts = try co_await(outcomes)
      #expect(texts == ["IOError", "ioOnClosedChannel", "end"])
      try server.stop()
    }
  }

  @Test func `close sends what was written, however slow the peer is`() async throws {
    let total = 4 << 20
    let received = try await onWorker(loops: 2) { group in
      let server = try Running(group) { connection in
        // Far above the mark up to which the channel is writable, so most of it is pending at the close.
        try connection.write(ByteBuffer(repeating: 7, count: total))
      }
      let received = try connect(group, server.address) { connection in
        var count = 0
        while let bytes = try connection.read() {
          count += bytes.readableBytes
          try co_delay(.microseconds(100))
        }
        return count
      }
      try server.stop()
      return received
    }
    #expect(received == total)
  }

  @Test func `a connection that is refused throws, and a cancelled one is given up`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let address = server.address
      try server.stop()
      #expect(throws: (any Error).self) { try connect(group, address) { try $0.read() } }

      // There is one loop, and it does not come to the connection before the cancellation.
      let (isBlocked, mayGoOn) = (Gate(), DispatchSemaphore(value: 0))
      group.next().execute {
        isBlocked.open()
        mayGoOn.wait()
      }
      try isBlocked.pass()
      let job = co_launch { try connect(group, address) { _ in } }
      job.cancel()
      mayGoOn.signal()
      #expect(throws: CancellationError.self) { try job.join() }
    }
  }

  @Test func `cancelling the caller of a connection cancels its body, and waits for it`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let address = server.address
      let isConnected = Gate()
      let hasEnded = Locked(false)
      let job = co_launch {
        try connect(group, address) { connection in
          defer { hasEnded.withLock { $0 = true } }
          isConnected.open()
          _ = try connection.read()
        }
      }
      try isConnected.pass()
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(hasEnded.current)
      try server.stop()
    }
  }
}
#endif
