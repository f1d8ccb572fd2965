#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOPosix
import Testing

@Suite("Servers on event loops", .timeLimit(.minutes(10)))
struct ServerTests {
  @Test func `each connection has a coroutine on its own loop, and a cancelled server returns without an error`()
    async throws
  {
    try await onWorker(loops: 2) { group in
      let loops = Locked<Set<ObjectIdentifier>>([])
      let server = try Running(group) { connection in
        let loop = connection.channel.eventLoop
        #expect(loop.inEventLoop)
        loops.withLock { _ = $0.insert(ObjectIdentifier(loop)) }
        try echo(connection)
      }
      let address = server.address
      try co_scope { scope in
        for index in 0..<100 {
          scope.launch {
            let answer = try connect(group, address) { connection in
              try connection.write(ByteBuffer(string: "\(index)"))
              return try connection.read()?.text
            }
            #expect(answer == "\(index)")
          }
        }
      }
      #expect(loops.current.count == 2)
      try server.stop()
    }
  }

  @Test func `a server that ends lets its handlers finish, and accepts no more`() async throws {
    try await onWorker { group in
      let isServing = Gate()
      let mayAnswer = Gate()
      // Longer than any process lives that another test forks: until that ends, it has a copy of the listener, and the
      // kernel goes on listening for it.
      let server = try Running(group, drain: .seconds(240)) { connection in
        isServing.open()
        try mayAnswer.pass()
        try connection.write(ByteBuffer(string: "late"))
      }
      let address = server.address
      let client = co_launch { try connect(group, address) { try $0.read()?.text } }
      try isServing.pass()
      server.job.cancel()
      try co_await(server.listener.closeFuture)
      #expect(throws: (any Error).self) { try connect(group, address) { try $0.read() } }
      #expect(!server.job.isFinished)
      mayAnswer.open()
      let answer = try client.join()
      #expect(answer == "late")
      try server.job.join()
    }
  }

  @Test(arguments: [.milliseconds(20), .zero, .seconds(-1), Duration(attoseconds: .min)])
  func `handlers that last longer than the drain are cancelled, and waited for`(_ drain: Duration) async throws {
    try await onWorker { group in
      let isServing = Gate()
      let hasCleaned = Locked(false)
      let errors = Locked<[String]>([])
      let server = try Running(
        group,
        drain: drain,
        onError: { error, _ in errors.withLock { $0.append("\(error)") } }
      ) { connection in
        isServing.open()
        defer {
          try? co_shield { try co_delay(.milliseconds(5)) }
          hasCleaned.withLock { $0 = true }
        }
        _ = try connection.read()
      }
      let address = server.address
      let client = co_launch { try connect(group, address) { try $0.read()?.text ?? "end" } }
      try isServing.pass()
      try server.stop()
      #expect(hasCleaned.current)
      let answer = try client.join()
      #expect(answer == "end")
      // The server's own cancellation is no error of a connection.
      #expect(errors.current.isEmpty)
    }
  }

  @Test(arguments: [.seconds(200), .seconds(Int64.max), Duration(attoseconds: .max)])
  func `handlers of a server that ends are told to finish, and so are their pipelines`(_ drain: Duration) async throws {
    final class Quiesced: ChannelInboundHandler {
      typealias InboundIn = ByteBuffer
      typealias InboundOut = ByteBuffer
      private let event: Promise<Void>
      init(_ event: Promise<Void>) { self.event = event }
      func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if event is ChannelShouldQuiesceEvent { self.event.fulfill(()) }
        context.fireUserInboundEventTriggered(event)
      }
    }
    try await onWorker { group in
      let isServing = Gate()
      let quiesced = Promise<Void>()
      let server = try Running(
        group,
        drain: drain,
        configure: { try $0.pipeline.syncOperations.addHandler(Quiesced(quiesced)) }
      ) { connection in
        #expect(!co_isStopping)
        isServing.open()
        try co_await(co_stopping)
        #expect(co_isStopping)
        #expect(!co_isCancelled)
        // The event follows, and reaches the pipeline while the channel lives.
        try co_await(quiesced)
        try connection.write(ByteBuffer(string: "stopped"))
      }
      let address = server.address
      let client = co_launch { try connect(group, address) { try readAll($0).text } }
      try isServing.pass()
      try server.stop()
      let answer = try client.join()
      #expect(answer == "stopped")
    }
  }

  @Test func `a server in a scope that is told to stop, and one whose deadline passes, end without an error`()
    async throws
  {
    try await onWorker { group in
      let isServing = Gate()
      let (server, client) = try co_scope(failures: .isolated) { scope in
        let target = try loopback()
        let bound = Promise<SocketAddress>()
        let server = scope.launch {
          try ServerBootstrap(group: group).serve(
            to: target,
            onListening: { bound.fulfill($0.localAddress!) },
            configure: { _ in }
          ) { (connection: Bytes) in
            isServing.open()
            try co_await(co_stopping)
            try connection.write(ByteBuffer(string: "stopped"))
          }
        }
        let address = try co_await(bound)
        let client = co_launch { try connect(group, address) { try readAll($0).text } }
        try isServing.pass()
        scope.stop(within: .seconds(60))
        return (server, client)
      }
      try server.join()
      let answer = try client.join()
      #expect(answer == "stopped")

      let bound = Promise<any NIOCore.Channel>()
      let isOver = co_launch {
        do {
          try co_timeout(.seconds(10)) {
            try ServerBootstrap(group: group)
              .serve(to: loopback(), onListening: { bound.fulfill($0) }, configure: { _ in }) { (_: Bytes) in }
          }
        } catch {
          bound.reject(error)
          throw error
        }
      }
      let listener = try co_await(bound)
      try isOver.join()
      #expect(!listener.isActive)
    }
  }

  @Test func `a cancellation after a stop ends the drain at once`() async throws {
    try await onWorker { group in
      let isTold = Gate()
      let errors = Locked(0)
      let (server, client) = try co_scope(failures: .isolated) { scope in
        let target = try loopback()
        let bound = Promise<SocketAddress>()
        let server = scope.launch {
          try ServerBootstrap(group: group).serve(
            to: target,
            drain: .seconds(3_600),
            onListening: { bound.fulfill($0.localAddress!) },
            onError: { _, _ in errors.withLock { $0 += 1 } },
            configure: { _ in }
          ) { (connection: Bytes) in
            try connection.write(ByteBuffer(string: "served"))
            try co_await(co_stopping)
            isTold.open()
            _ = try connection.read()
          }
        }
        let address = try co_await(bound)
        let isServed = Gate()
        let client = co_launch {
          try connect(group, address) { connection in
            _ = try connection.read()
            isServed.open()
            return try connection.read()?.text ?? "end"
          }
        }
        try isServed.pass()
        scope.stop(within: .seconds(3_600))
        try isTold.pass()
        scope.cancel()
        return (server, client)
      }
      try server.join()
      #expect(try client.join() == "end")
      // The server's own cancellation is no error of a connection.
      #expect(errors.current == 0)
    }
  }

  @Test func `errors of handlers and of configure are told, and end neither the server nor other connections`()
    async throws
  {
    struct Refused: Error {}
    try await onWorker { group in
      let errors = Locked<[String]>([])
      let count = Locked(0)
      let server = try Running(
        group,
        onError: { error, channel in
          #expect(channel.eventLoop.inEventLoop)
          errors.withLock { $0.append("\(type(of: error))") }
        },
        configure: { _ in
          if count.withLock({ count in
            count += 1
            return count == 1
          }) {
            throw Refused()
          }
        }
      ) { connection in
        guard let bytes = try connection.read(), bytes.text != "fail" else { throw Oops() }
        try connection.write(bytes)
      }
      let address = server.address
      let refused = try connect(group, address) { try $0.read()?.text ?? "end" }
      #expect(refused == "end")
      let failed = try connect(group, address) { connection in
        try connection.write(ByteBuffer(string: "fail"))
        return try connection.read()?.text ?? "end"
      }
      #expect(failed == "end")
      let served = try connect(group, address) { connection in
        try connection.write(ByteBuffer(string: "fine"))
        return try connection.read()?.text ?? "end"
      }
      #expect(served == "fine")
      #expect(errors.current == ["Refused", "Oops"])
      try server.stop()
    }
  }

  @Test func `an address in use throws, and a server cancelled before it begins throws`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let address = server.address
      #expect(throws: (any Error).self) {
        try ServerBootstrap(group: group).serve(to: address, configure: { _ in }) { (_: Bytes) in }
      }
      let job = co_launch(start: .lazy) {
        try ServerBootstrap(group: group).serve(to: loopback(), configure: { _ in }) { (_: Bytes) in }
      }
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      try server.stop()
    }
  }

  @Test func `handlers before the coroutine's translate what it reads and writes`() async throws {
    final class Lines: ByteToMessageDecoder {
      typealias InboundOut = String
      func decode(context: ChannelHandlerContext, buffer: inout ByteBuffer) throws -> DecodingState {
        guard let end = buffer.readableBytesView.firstIndex(of: 10) else { return .needMoreData }
        let line = buffer.readString(length: end - buffer.readerIndex)!
        buffer.moveReaderIndex(forwardBy: 1)
        if line == "bad" { throw Oops() }
        context.fireChannelRead(Self.wrapInboundOut(line))
        return .continue
      }
    }
    final class Newlines: ChannelOutboundHandler {
      typealias OutboundIn = String
      typealias OutboundOut = ByteBuffer
      func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        context.write(Self.wrapOutboundOut(ByteBuffer(string: Self.unwrapOutboundIn(data) + "\n")), promise: promise)
      }
    }
    try await onWorker { group in
      let bound = Promise<SocketAddress>()
      let target = try loopback()
      let job = co_launch {
        try ServerBootstrap(group: group).serve(
          to: target,
          onListening: { bound.fulfill($0.localAddress!) },
          configure: { channel in
            try channel.pipeline.syncOperations.addHandlers([ByteToMessageHandler(Lines()), Newlines()])
          }
        ) { (connection: NIOCoroutineChannel<String, String>) in
          do {
            while let line = try connection.read() { try connection.write(line.uppercased()) }
          } catch is Oops {
            try connection.write("an error, once")
            let next = try connection.read()
            #expect(next == nil)
          }
        }
      }
      let address = try co_await(bound)
      let answer = try connect(group, address, halfClosure: true) { connection in
        // In parts that cut lines, so that some reads bring no value.
        for part in ["on", "e\ntw", "", "o\n", "three\nbad\n"] {
          try connection.write(ByteBuffer(string: part))
          try co_delay(.milliseconds(1))
        }
        // The end of the input closes the server's connection, and an answer that was not written then is lost.
        var text = ""
        while !text.contains("once"), let next = try connection.read()?.text { text += next }
        try connection.finish()
        return text + (try readAll(connection).text)
      }
      #expect(answer.hasPrefix("ONE\nTWO\nTHREE\n"), "\(answer)")
      #expect(answer.contains("an error, once"), "\(answer)")
      job.cancel()
      try job.join()
    }
  }

  @Test func `a server that is cancelled while it binds leaves no listener`() async throws {
    let rounds = stressed(300)
    try await onWorker(loops: 2) { group in
      for round in 0..<rounds {
        let listeners = Locked<[any NIOCore.Channel]>([])
        let server = co_launch {
          try ServerBootstrap(group: group)
            .serverChannelInitializer { channel in
              listeners.withLock { $0.append(channel) }
              return channel.eventLoop.makeSucceededVoidFuture()
            }
            .serve(to: loopback(), configure: { _ in }) { (_: Bytes) in }
        }
        for _ in 0..<round % 20 { try co_yield() }
        server.cancel()
        _ = try? server.join()
        for listener in listeners.withLock({ $0 }) {
          try co_timeout(.seconds(60)) { try co_await(listener.closeFuture) }
        }
      }
    }
  }

  @Test func `connections that come and go while the server ends are all closed`() async throws {
    let rounds = stressed(30, least: 2)
    try await onWorker(loops: 2) { group in
      for round in 0..<rounds {
        let accepted = Locked<[any NIOCore.Channel]>([])
        let server = try Running(
          group,
          drain: round % 2 == 0 ? .zero : .milliseconds(1),
          configure: { channel in accepted.withLock { $0.append(channel) } },
          echo
        )
        let address = server.address
        let clients = (0..<8).map { _ in
          co_launch {
            while true {
              try connect(group, address) { connection in
                try connection.write(ByteBuffer(string: "x"))
                _ = try connection.read()
              }
            }
          }
        }
        for _ in 0..<round { try co_yield() }
        try server.stop()
        // The server has closed them all, also those whose coroutine was cancelled before it began.
        for channel in accepted.withLock({ $0 }) {
          try co_timeout(.seconds(60)) { try co_await(channel.closeFuture) }
        }
        for client in clients {
          client.cancel()
          #expect(throws: (any Error).self) { try client.join() }
        }
      }
    }
  }
}
#endif
