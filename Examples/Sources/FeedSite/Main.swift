import Coroutine
import Glibc
import NIOCore
import NIOPosix

/// A web service that reads feeds and shows them live: `feed-site [PORT]`.
///
/// Ctrl-C or SIGTERM ends it in two steps: idle connections are closed, streams of events end, requests finish.
@main
struct FeedSiteProgram {
  static func main() {
    let port = CommandLine.arguments.dropFirst().first.flatMap { Int($0) } ?? 8080
    co_main {
      let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
      // Ends the loops after the server; the process ends anyway if that fails.
      defer { try? co_await { try await group.shutdownGracefully() } }
      let address = try SocketAddress(ipAddress: "127.0.0.1", port: port)
      try Site(group).run(address) { bound in
        print("The feeds are at http://127.0.0.1:\(bound.port ?? port)/")
        fflush(nil)
      }
    }
  }
}
