import Coroutine
import CoroutineNIO
import Glibc
import Harness
import Hummingbird
import HummingbirdCoroutines
import Logging
import NIOCore
import NIOHTTP1
import NIOPosix

// The servers of `run-net` with the HTTP/1.1 stack of others: http-server handler|hummingbird|hummingbird-coroutine
//
//   handler                 a ChannelHandler behind SwiftNIO's codec, on one event loop
//   hummingbird             an async handler of Hummingbird, in its usual configuration
//   hummingbird-coroutine   a synchronous handler of Hummingbird, in a coroutine

private let answer = "Hello, World!"

@main
struct HTTPServer {
  static func main() async throws {
    let arguments = CommandLine.arguments.dropFirst()
    switch arguments.count == 1 ? arguments.first : nil {
    case "handler": try await serveByHandlers()
    case "hummingbird": try await serveByHummingbird(inCoroutines: false)
    case "hummingbird-coroutine": try await serveByHummingbird(inCoroutines: true)
    default:
      complain("error: use http-server handler|hummingbird|hummingbird-coroutine")
      exit(2)
    }
  }

  private static func announce(_ listener: any NIOCore.Channel) {
    print("port \(listener.localAddress?.port ?? 0)")
    fflush(nil)
  }

  private static func serveByHandlers() async throws {
    let listener = try await ServerBootstrap(group: MultiThreadedEventLoopGroup(numberOfThreads: 1))
      .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
      .childChannelInitializer { channel in
        channel.eventLoop.makeCompletedFuture {
          let pipeline = channel.pipeline.syncOperations
          try pipeline.configureHTTPServerPipeline()
          try pipeline.addHandler(AnswerHandler())
        }
      }
      .bind(host: "127.0.0.1", port: 0).get()
    announce(listener)
    try await listener.closeFuture.get()
  }

  private static func serveByHummingbird(inCoroutines: Bool) async throws {
    let router = Router()
    if inCoroutines {
      router.coroutines.get("/") { _, _ in answer }
    } else {
      router.get("/") { _, _ in answer }
    }
    var logger = Logger(label: "http-server")
    logger.logLevel = .error
    let app = Application(
      router: router,
      configuration: .init(address: .hostname("127.0.0.1", port: 0)),
      onServerRunning: { announce($0) },
      logger: logger
    )
    try await app.runService()
  }
}

/// Answers each request when it has arrived as a whole.
private final class AnswerHandler: ChannelInboundHandler {
  typealias InboundIn = HTTPServerRequestPart
  typealias OutboundOut = HTTPServerResponsePart

  private static let body = ByteBuffer(string: answer)
  private static let head = HTTPResponseHead(
    version: .http1_1,
    status: .ok,
    headers: ["Content-Type": "text/plain", "Content-Length": "\(answer.utf8.count)"]
  )

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    guard case .end = Self.unwrapInboundIn(data) else { return }
    context.write(Self.wrapOutboundOut(.head(Self.head)), promise: nil)
    context.write(Self.wrapOutboundOut(.body(.byteBuffer(Self.body))), promise: nil)
    context.write(Self.wrapOutboundOut(.end(nil)), promise: nil)
  }

  func channelReadComplete(context: ChannelHandlerContext) { context.flush() }

  func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}
