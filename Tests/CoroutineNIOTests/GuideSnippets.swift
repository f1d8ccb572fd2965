#if NIO
import Coroutine
import CoroutineNIO
import NIOCore
import NIOPosix
import Testing

/// The code of the article On SwiftNIO and of docs/coming-from/async-await.md, run.
@Suite("What the guide shows of SwiftNIO", .timeLimit(.minutes(10)))
struct GuideSnippets {
  @Test func `futures, loops and jobs`() async throws {
    try await onWorker { group in
      let loop = group.next()
      let number = try co_await(loop.submit { 42 })

      let job = co_launch(on: loop, name: "on the loop") {
        loop.assertInEventLoop()
        return try co_await(loop.scheduleTask(in: .milliseconds(1)) { number + 1 })
      }
      let future: EventLoopFuture<Int> = job.future(on: loop)
      let next = try co_await(future)
      #expect(next == 43)
      let all = try co_all([loop.submit { 1 }, loop.submit { 2 }])
      #expect(all == [1, 2])
      try co_switch(to: loop)
      #expect(loop.inEventLoop)
    }
  }

  @Test func `a server of connections that are coroutines`() async throws {
    try await onWorker { group in
      let bound = Promise<SocketAddress?>()
      let server = co_launch {
        try ServerBootstrap(group: group)
          .serve(
            to: SocketAddress(ipAddress: "127.0.0.1", port: 0),
            drain: .seconds(5),
            onListening: { channel in bound.fulfill(channel.localAddress) }
          ) { (connection: NIOCoroutineChannel<ByteBuffer, ByteBuffer>) in
            while let part = try connection.read() { try connection.write(part) }
          }
      }
      let address = try #require(try co_await(bound))
      let answer = try connect(group, address) { connection in
        try connection.write(ByteBuffer(string: "hello"))
        return try connection.read()?.text
      }
      #expect(answer == "hello")
      server.cancel()
      try server.join()
    }
  }
}
#endif
