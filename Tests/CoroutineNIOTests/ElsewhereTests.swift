#if NIO
import Coroutine
import CoroutineNIO
import Dispatch
import NIOCore
import NIOPosix
import Testing

/// Connects to `address`, and gives the connection to the calling coroutine, which is not one of its loop.
private func lend<Output: Sendable>(
  _ group: any EventLoopGroup,
  _ address: SocketAddress,
  _ body: (Bytes) throws -> Output
) throws -> Output {
  let lent = Promise<Bytes>()
  let isBack = Gate()
  let owner = co_launch {
    try connect(group, address) { connection in
      lent.fulfill(connection)
      try isBack.pass()
    }
  }
  defer {
    isBack.open()
    co_shield { _ = try? owner.join() }
  }
  return try body(try co_await(lent))
}

@Suite("A channel, used by coroutines that do not run on its loop", .timeLimit(.minutes(10)))
struct ElsewhereTests {
  @Test func `coroutines of workers, queues and other loops read, write, finish and close`() async throws {
    try await onWorker(loops: 2) { group in
      let server = try Running(group, halfClosure: true, echo)
      let queue = DispatchQueue(label: "elsewhere")
      let loops = [group.next(), group.next()]
      let talk: @Sendable (Bytes) throws -> String = { connection in
        try connection.write(ByteBuffer(string: "far"))
        let answer = try connection.read()
        try connection.finish()
        let end = try connection.read()
        try connection.close()
        return (answer?.text ?? "nothing") + (end == nil ? ", the end" : ", more")
      }
      let texts = try lend(group, server.address, talk)
      #expect(texts == "far, the end")
      let onQueue = try lend(group, server.address) { connection in
        try co_launch(on: queue) { try talk(connection) }.join()
      }
      #expect(onQueue == "far, the end")
      for loop in loops {
        let onLoop = try lend(group, server.address) { connection in
          try co_launch(on: loop) { try talk(connection) }.join()
        }
        #expect(onLoop == "far, the end")
      }
      try server.stop()
    }
  }

  @Test func `a cancelled read consumes nothing, wherever it waits`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let read = try lend(group, server.address) { connection in
        #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(5)) { try connection.read() } }
        let job = co_launch { try connection.read() }
        try co_yield()
        job.cancel(Oops())
        #expect(throws: Oops.self) { try job.join() }
        try connection.write(ByteBuffer(string: "kept"))
        return try connection.read()?.text
      }
      #expect(read == "kept")
      try server.stop()
    }
  }

  @Test func `a read that is cancelled as its value arrives returns it, or leaves it to the next`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      let lost = try lend(group, server.address) { connection in
        var lost = 0
        let rounds = stressed(2_000, least: 50)
        for round in 0..<rounds {
          let reader = co_launch { try connection.read() }
          try connection.write(ByteBuffer(string: "x"))
          // Other lengths in each round, around the time that the echo takes.
          let end = DispatchTime.now() + .microseconds(round * 97 % 100)
          while DispatchTime.now() < end {}
          reader.cancel()
          if (try? reader.join()) == nil {
            do {
              _ = try co_timeout(.seconds(30)) { try connection.read() }
            } catch is TimeoutError {
              lost += 1
              break
            }
          }
        }
        return lost
      }
      #expect(lost == 0)
      try server.stop()
    }
  }

  @Test func `a close by a cancelled coroutine closes all the same`() async throws {
    try await onWorker { group in
      let server = try Running(group, echo)
      try lend(group, server.address) { connection in
        let (hasBegun, isCancelled) = (Gate(), Gate())
        let job = co_launch {
          hasBegun.open()
          co_shield { try? isCancelled.pass() }
          try connection.close()
        }
        // Cancelled before, it would never run.
        try hasBegun.pass()
        job.cancel(Oops())
        isCancelled.open()
        #expect(throws: Oops.self) { try job.join() }
        try co_await(connection.channel.closeFuture)
      }
      try server.stop()
    }
  }

  @Test func `outside a coroutine every operation says so`() async throws {
    try await withLoops { group in
      let server = try await ServerBootstrap(group: group).bind(to: loopback()).get()
      let channel = try await ClientBootstrap(group: group).connect(to: server.localAddress!).get()
      let connection = try await channel.eventLoop.submit { try Bytes(wrapping: channel) }.get()
      try await onOwnThread {
        let said = [
          outcome { try connection.read() }, outcome { try connection.write(ByteBuffer(string: "?")) },
          outcome { try connection.finish() }, outcome { try connection.close() },
        ]
        #expect(said == Array(repeating: "\(CoroutineError.notInCoroutine)", count: 4))
      }
      #expect(channel.isActive)
      try await channel.close()
      try await server.close()
    }
  }
}
#endif
