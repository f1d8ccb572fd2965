import CoroutineNIO
import Glibc
import Hummingbird
import HummingbirdCoroutines
import Logging
import NIOCore
import NIOPosix

/// A site of Hummingbird with synchronous handlers: `hummingbird-site [PORT] [--loop]`.
///
/// Port 0 lets the system choose. It prints "port N". With `--loop` there is one event loop, which runs the Tasks of
/// the requests and the coroutines of the handlers; the coroutines that write bodies stay on the shared workers.
@main
struct HummingbirdSiteProgram {
  static func main() async throws {
    let arguments = CommandLine.arguments.dropFirst()
    let port = arguments.first.flatMap { Int($0) } ?? 8080
    let isOnLoop = arguments.contains("--loop")
    let group = MultiThreadedEventLoopGroup(numberOfThreads: isOnLoop ? 1 : 2)
    var logger = Logger(label: "site")
    logger.logLevel = .error
    let app = Application(
      router: Site.router(BasicEventLoopRequestContext.self, onLoop: isOnLoop),
      configuration: .init(address: .hostname("127.0.0.1", port: port)),
      onServerRunning: { channel in
        print("port \(channel.localAddress?.port ?? port)")
        fflush(nil)
      },
      eventLoopGroupProvider: .shared(group),
      logger: logger
    )
    if isOnLoop {
      try await withTaskExecutorPreference(group.next().coroutineExecutor) { try await app.runService() }
    } else {
      try await app.runService()
    }
    try await group.shutdownGracefully()
  }
}
