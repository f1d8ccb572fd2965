import Clients
import Coroutine
import CoroutineNet
import Hummingbird
import HummingbirdCore
import HummingbirdCoroutines
import Logging
import NIOConcurrencyHelpers
import NIOCore
import NIOPosix

typealias Locked = NIOLockedValueBox
typealias Gate = Promise<Void>

extension Promise where Success == Void {
  func pass() throws { try co_await(self) }
  func open() { fulfill(()) }
}

struct Oops: Error {}

let quiet = {
  var logger = Logger(label: "quiet")
  logger.logLevel = .critical
  return logger
}()

/// Runs `body` in a coroutine, beside a server of its own with two event loops.
func withServer(
  _ router: Router<BasicEventLoopRequestContext>,
  _ server: HTTPServerBuilder = .http1(),
  _ body: @escaping @Sendable (_ port: UInt16) throws -> Void
) async throws {
  let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
  let bound = Promise<UInt16>()
  let app = Application(
    router: router,
    server: server,
    configuration: .init(address: .hostname("127.0.0.1", port: 0)),
    onServerRunning: { channel in bound.fulfill(UInt16(channel.localAddress!.port!)) },
    eventLoopGroupProvider: .shared(group),
    logger: quiet
  )
  let serving = Task { try await app.run() }
  let outcome = await Task { try await co_launch { try body(co_await(bound)) }.value }.result
  serving.cancel()
  _ = try? await serving.value
  try await group.shutdownGracefully()
  try outcome.get()
}

/// Waits until `value` has not changed for half a second, and returns it.
func settled(_ value: @Sendable () -> Int) throws -> Int {
  var last = value()
  var unchanged = 0
  while unchanged < 10 {
    try co_delay(.milliseconds(50))
    let now = value()
    unchanged = now == last ? unchanged + 1 : 0
    last = now
  }
  return last
}
