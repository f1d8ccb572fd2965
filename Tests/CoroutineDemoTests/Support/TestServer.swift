#if Demo
import FlyingFox
import FlyingSocks
import Foundation

/// A site whose answers a test defines, on a free port of the loopback interface, until it is stopped.
struct TestServer {
  let url: URL
  private let server: HTTPServer
  private let run: Task<Void, any Error>

  /// Creates a server, which then listens.
  init(_ answer: @escaping @Sendable (HTTPRequest) async throws -> HTTPResponse) async throws {
    let server = HTTPServer(address: try .inet(ip4: "127.0.0.1", port: 0), timeout: 3600, logger: .disabled)
    await server.appendRoute("*", handler: answer)
    run = Task { try await server.run() }
    try await server.waitUntilListening()
    guard case .ip4(_, let port) = await server.listeningAddress, let url = URL(string: "http://127.0.0.1:\(port)/")
    else { throw SocketError.disconnected }
    self.url = url
    self.server = server
  }

  func stop() async {
    await server.stop()
    _ = await run.result
  }
}

/// A port of the loopback interface that is taken, so that no other test is given it, and on which nobody listens.
final class SilentPort {
  let number: UInt16
  private let socket: Socket

  init() throws {
    let socket = try Socket(domain: AF_INET)
    try socket.bind(to: .inet(ip4: "127.0.0.1", port: 0))
    guard case .ip4(_, let port) = try socket.sockname() else { throw SocketError.disconnected }
    (self.number, self.socket) = (port, socket)
  }

  deinit { try? socket.close() }
}
#endif
