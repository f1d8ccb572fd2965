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

  /// A port of the loopback interface that was free a moment ago.
  static func closedPort() throws -> UInt16 {
    let socket = try Socket(domain: AF_INET)
    defer { try? socket.close() }
    try socket.bind(to: .inet(ip4: "127.0.0.1", port: 0))
    guard case .ip4(_, let port) = try socket.sockname() else { throw SocketError.disconnected }
    return port
  }
}
#endif
