import Clients
import Coroutine
import CoroutineNIO
import CoroutineNet
import Glibc
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

/// A server that runs beside a test.
struct Running: Sendable {
  let port: UInt16
  let group: MultiThreadedEventLoopGroup

  /// Waits until `value` has not changed for 200 turns of everything that could change it, and returns it.
  ///
  /// In a turn each event loop polls its descriptors, and the Tasks and coroutines that were ready run.
  func settled(_ value: () throws -> Int) throws -> Int {
    var last = try value()
    var unchanged = 0
    while unchanged < 200 {
      for loop in group.makeIterator() { try co_await(loop.submit {}) }
      try co_await { await Task.detached { await Task.yield() }.value }
      try co_yield()
      let now = try value()
      unchanged = now == last ? unchanged + 1 : 0
      last = now
    }
    return last
  }
}

/// Runs `body` in a coroutine, beside a server of its own with two event loops.
func withServer(
  _ router: Router<BasicEventLoopRequestContext>,
  _ server: HTTPServerBuilder = .http1(),
  _ body: @escaping @Sendable (Running) throws -> Void
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
  let outcome = await Task {
    try await co_launch { try body(Running(port: co_await(bound), group: group)) }.value
  }.result
  serving.cancel()
  _ = try? await serving.value
  try await group.shutdownGracefully()
  try outcome.get()
}

extension Connection {
  /// Sends what the system takes without a wait; returns the number of bytes.
  func sendNow(_ bytes: ArraySlice<UInt8>) -> Int {
    max(
      0,
      withUnsafeDescriptor { descriptor in
        bytes.withUnsafeBytes { send(descriptor, $0.baseAddress, $0.count, Int32(MSG_DONTWAIT)) }
      }
    )
  }
}
