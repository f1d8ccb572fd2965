import Coroutine
import CoroutineNIO
import Glibc
import Harness
import NIOCore
import NIOPosix

// The servers of `run-net` on SwiftNIO, on one event loop: nio-server echo|http raw|checked|coroutine|async|async-loop
//
//   raw          a ChannelHandler
//   checked      the same, with a callback for each write that fails
//   coroutine    a coroutine of CoroutineNIO on the event loop
//   async        a Task for each NIOAsyncChannel, on the global executor
//   async-loop   the same, with the event loop for an executor

@main
struct NIOServer: Sendable {
  let answersHTTP: Bool

  private static func bootstrap() -> ServerBootstrap {
    ServerBootstrap(group: MultiThreadedEventLoopGroup(numberOfThreads: 1))
      .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
  }

  static func main() async throws {
    let arguments = Array(CommandLine.arguments.dropFirst())
    guard arguments.count == 2, ["echo", "http"].contains(arguments[0]) else { usage() }
    let server = NIOServer(answersHTTP: arguments[0] == "http")
    switch arguments[1] {
    case "raw": try await server.serveByHandlers(seeingFailures: false)
    case "checked": try await server.serveByHandlers(seeingFailures: true)
    case "coroutine": try await server.serveByCoroutines()
    case "async": try await server.serveByTasks(onLoop: false)
    case "async-loop": try await server.serveByTasks(onLoop: true)
    default: usage()
    }
  }

  private static func usage() -> Never {
    complain("error: use nio-server echo|http raw|checked|coroutine|async|async-loop")
    exit(2)
  }

  private static func announce(_ listener: any NIOCore.Channel) {
    print("port \(listener.localAddress?.port ?? 0)")
    fflush(nil)
  }

  private func serveByHandlers(seeingFailures: Bool) async throws {
    let listener = try await Self.bootstrap().childChannelInitializer { [answersHTTP] channel in
      channel.eventLoop.makeCompletedFuture {
        let session = Session(answersHTTP: answersHTTP)
        try channel.pipeline.syncOperations.addHandler(SessionHandler(session, seesFailures: seeingFailures))
      }
    }.bind(host: "127.0.0.1", port: 0).get()
    Self.announce(listener)
    try await listener.closeFuture.get()
  }

  private func serveByCoroutines() async throws {
    let address = try NIOCore.SocketAddress(ipAddress: "127.0.0.1", port: 0)
    try await co_launch { [answersHTTP] in
      try Self.bootstrap().serve(to: address, onListening: Self.announce, onError: { _, _ in }, configure: { _ in }) {
        (connection: NIOCoroutineChannel<ByteBuffer, ByteBuffer>) in
        var session = Session(answersHTTP: answersHTTP)
        while let bytes = try connection.read() {
          if let reply = session.reply(to: bytes) { try connection.write(reply) }
        }
      }
    }
    .value
  }

  private func serveByTasks(onLoop: Bool) async throws {
    let server = try await Self.bootstrap().bind(host: "127.0.0.1", port: 0) { channel in
      channel.eventLoop.makeCompletedFuture {
        try NIOAsyncChannel<ByteBuffer, ByteBuffer>(wrappingChannelSynchronously: channel)
      }
    }
    Self.announce(server.channel)
    try await withThrowingDiscardingTaskGroup { tasks in
      try await server.executeThenClose { connections in
        for try await connection in connections {
          let executor = onLoop ? LoopExecutor(connection.channel.eventLoop) : nil
          tasks.addTask(executorPreference: executor) {
            try? await serve(connection)
          }
        }
      }
    }
  }

  private func serve(_ connection: NIOAsyncChannel<ByteBuffer, ByteBuffer>) async throws {
    try await connection.executeThenClose { inbound, outbound in
      var session = Session(answersHTTP: answersHTTP)
      for try await bytes in inbound {
        if let reply = session.reply(to: bytes) { try await outbound.write(reply) }
      }
    }
  }
}
