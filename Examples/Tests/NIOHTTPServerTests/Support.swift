import Clients
import Coroutine
import CoroutineNet
import NIOConcurrencyHelpers
import NIOCore
import NIOHTTPServer
import NIOPosix
import Synchronization
import Testing

typealias Locked = NIOLockedValueBox
typealias Gate = Promise<Void>

extension Promise where Success == Void {
  func pass() throws { try co_await(self) }
  func open() { fulfill(()) }
}

extension NIOLockedValueBox where Value: Sendable {
  var current: Value { withLockedValue { $0 } }
}

struct Oops: Error {}

/// Runs `body` in a coroutine of the shared scheduler, while event loops of its own run.
func onWorker<Output: Sendable>(
  loops: Int = 1,
  _ body: @escaping @Sendable (MultiThreadedEventLoopGroup) throws -> Output
) async throws -> Output {
  let group = MultiThreadedEventLoopGroup(numberOfThreads: loops)
  do {
    let output = try await co_launch { try body(group) }.value
    try await group.shutdownGracefully()
    return output
  } catch {
    try? await group.shutdownGracefully()
    throw error
  }
}

private let serverNumber = Atomic<Int>(0)

/// A server that runs beside the test, at an address that no other server has.
final class Running: Sendable {
  let job: Job<Void>
  let host: String
  let port: UInt16
  let errors = Locked<[String]>([])

  /// Starts a server; called in a coroutine.
  init(
    _ group: any EventLoopGroup,
    limits: HTTPLimits = .init(),
    drain: Duration = .seconds(60),
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
    _ handle: @escaping NIOHTTPServer.Handler
  ) throws {
    let number = serverNumber.wrappingAdd(1, ordering: .relaxed).newValue
    let host = "127.2.\(number / 250).\(number % 250 + 1)"
    let bound = Promise<UInt16>()
    let errors = errors
    job = co_launch(name: "server") {
      do {
        try NIOHTTPServer.run(
          .init(ipAddress: host, port: 0),
          on: group,
          limits: limits,
          drain: drain,
          onListening: { bound.fulfill(UInt16($0.localAddress!.port!)) },
          onError: { error, _ in errors.withLockedValue { $0.append("\(error)") } },
          configure: configure,
          handle
        )
      } catch {
        bound.reject(error)
        throw error
      }
    }
    self.host = host
    port = try co_await(bound)
  }

  func stop() throws {
    job.cancel()
    try job.join()
  }

  func connect() throws -> Connection { try .connect(to: .ipv4(host, port: port)) }

  /// Sends `bytes`, and returns all that the server sends until it closes.
  func exchange(_ text: String) throws -> String {
    let connection = try connect()
    defer { connection.close() }
    try connection.write(text.utf8)
    return try connection.readAll()
  }

  var url: String { "http://\(host):\(port)" }
}
