#if Demo
import Coroutine
import CoroutineNet
import Glibc
import Synchronization
import Testing

@testable import CoroutineDemo

/// A client of a chat server, used by one coroutine.
final class ChatClient {
  let connection: Connection
  private var reader: BufferedReader

  /// Takes over a connection, and reads the welcome.
  init(_ connection: Connection) throws {
    self.connection = connection
    reader = BufferedReader(connection)
  }

  /// Connects, and reads the welcome.
  convenience init(at address: SocketAddress) throws {
    try self.init(Connection.connect(to: address))
    _ = try line()
  }

  /// Connects, and enters a room under a name.
  convenience init(at address: SocketAddress, _ name: String, in room: String = "tea") throws {
    try self.init(at: address)
    try say("/nick \(name)")
    try say("/join \(room)")
    try skip(to: "* \(name) has joined \(room).")
  }

  func say(_ line: String) throws { try connection.write("\(line)\n".utf8) }

  /// Suspends until the next line; nil at the end of the stream.
  func line() throws -> String? { try reader.readLine(max: 100_000) }

  /// Reads until a line has come.
  func skip(to wanted: String) throws {
    while let line = try line() { if line == wanted { return } }
    throw NotSaid(wanted: wanted)
  }

  /// Says a line, and returns the next one that comes.
  func ask(_ line: String) throws -> String? {
    try say(line)
    return try self.line()
  }

  /// All lines to the end of the stream.
  func rest() throws -> [String] {
    var lines: [String] = []
    while let line = try line() { lines.append(line) }
    return lines
  }

  /// Breaks the connection: the server gets ECONNRESET.
  func reset() {
    connection.withUnsafeDescriptor { number in
      var option = linger(l_onoff: 1, l_linger: 0)
      setsockopt(number, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    }
    connection.close()
  }

  struct NotSaid: Error { var wanted: String }
}

/// Runs a chat server beside `body`, which gets its address, and a function that tells it to stop.
@discardableResult
func withChat(
  _ options: ChatOptions = ChatOptions(),
  at address: SocketAddress = .loopback(port: 0),
  _ body: (_ address: SocketAddress, _ stop: @escaping @Sendable () -> Void) throws -> Void
) throws -> ChatTally {
  let bound = Promise<SocketAddress>()
  let toldToStop = Promise<Void>()
  let stop: @Sendable () -> Void = { toldToStop.fulfill(()) }
  let server = co_launch(name: "server") {
    try co_scope { scope in
      let serving = scope.launch(name: "chat") {
        do {
          return try ChatServer(options).run(at: address) { bound.fulfill($0) }
        } catch {
          bound.reject(error)
          throw error
        }
      }
      let stopping = scope.launch(name: "stop") {
        try co_await(toldToStop)
        scope.stop(within: .seconds(60))
      }
      defer { stopping.cancel() }
      return try serving.join()
    }
  }
  do {
    try body(try co_await(bound), stop)
  } catch {
    server.cancel()
    _ = try? server.join()
    throw error
  }
  stop()
  return try server.join()
}

/// Runs `body` in a coroutine.
@discardableResult
func onCoroutine<Output: Sendable>(_ body: sending @escaping () throws -> Output) async throws -> Output {
  try await co_launch(body).value
}

/// A number that several coroutines count up.
final class Count: Sendable {
  private let number = Atomic<Int>(0)
  var current: Int { number.load(ordering: .relaxed) }
  func increment() { number.add(1, ordering: .relaxed) }
}
#endif
