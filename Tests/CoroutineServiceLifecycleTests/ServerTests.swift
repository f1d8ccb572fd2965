#if ServiceLifecycle && NIO
import Coroutine
import CoroutineNIO
import CoroutineNet
import CoroutineServiceLifecycle
import Glibc
import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import Testing
import UnixSignals

@Suite("Servers as services", .timeLimit(.minutes(10)))
struct ServerTests {
  @Test func `SIGTERM ends servers of both kinds after their last answers, without an error`() async {
    await #expect(processExitsWith: .success) {
      let loops = MultiThreadedEventLoopGroup(numberOfThreads: 1)
      let (onWorkers, onLoops) = (Promise<UInt16>(), Promise<UInt16>())
      let asked = WaitGroup()
      asked.add(2)
      // Their handlers answer when they are told to finish, and not before.
      let services = [
        CoroutineService("on workers") {
          try Server.run(.loopback(port: 0), onListening: { onWorkers.fulfill($0.port!) }) { connection in
            _ = try connection.read(upTo: 1)
            asked.done()
            try co_await(co_stopping)
            try connection.write("the last answer".utf8)
          }
        },
        CoroutineService("on event loops") {
          try ServerBootstrap(group: loops).serve(
            to: .init(ipAddress: "127.0.0.1", port: 0),
            onListening: { onLoops.fulfill(UInt16($0.localAddress!.port!)) },
            configure: { _ in }
          ) { (connection: NIOCoroutineChannel<ByteBuffer, ByteBuffer>) in
            _ = try connection.read()
            asked.done()
            try co_await(co_stopping)
            try connection.write(ByteBuffer(string: "the last answer"))
          }
        },
      ]
      let group = ServiceGroup(
        services: services,
        gracefulShutdownSignals: [.sigterm],
        logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
      )
      let running = Task { try await group.run() }
      let clients = [onWorkers, onLoops].map { port in
        co_launch {
          let connection = try Connection.connect(to: .loopback(port: co_await(port)))
          defer { connection.close() }
          try connection.write("?".utf8)
          var answer: [UInt8] = []
          while case let part = try connection.read(upTo: 100), !part.isEmpty { answer += part }
          return String(decoding: answer, as: UTF8.self)
        }
      }
      try await co_launch { try asked.wait() }.value
      kill(getpid(), SIGTERM)
      for client in clients {
        let answer = try await client.value
        #expect(answer == "the last answer")
      }
      try await running.value
      try await loops.shutdownGracefully()
    }
  }
}
#endif
