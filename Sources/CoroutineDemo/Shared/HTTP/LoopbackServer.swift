#if Demo
import FlyingFox
import FlyingSocks
import Foundation

/// A server of the demo's own, on a free port of the loopback interface.
///
///     start ──► listening ── stop ──► stopped
///
/// `run` is the task that serves; it ends when `stop` is called, and only then.
final class LoopbackServer: Sendable {
  let url: URL
  private let server: HTTPServer
  private let run: Task<Void, any Error>

  /// Returns when the server listens.
  ///
  /// `timeout` is after how many seconds it gives up on an answer of its own.
  static func start(
    timeout: Double = 60,
    _ addRoutes: @Sendable (HTTPServer) async -> Void
  ) async throws -> LoopbackServer {
    let server = HTTPServer(address: try .inet(ip4: "127.0.0.1", port: 0), timeout: timeout, logger: .disabled)
    await addRoutes(server)
    let run = Task { try await server.run() }
    do {
      try await server.waitUntilListening()
      guard case .ip4(_, let port) = await server.listeningAddress, let url = URL(string: "http://127.0.0.1:\(port)/")
      else { throw SocketError.disconnected }
      return LoopbackServer(url: url, server: server, run: run)
    } catch {
      run.cancel()
      // Why it does not run says more than that it does not listen.
      _ = try await run.value
      throw error
    }
  }

  private init(url: URL, server: HTTPServer, run: Task<Void, any Error>) {
    self.url = url
    self.server = server
    self.run = run
  }

  /// Returns when the port is free again and every connection is closed; answers that are still waiting are dropped.
  func stop() async {
    await server.stop()
    run.cancel()
    _ = await run.result
  }

  /// Makes the requests of this process reach such a server whatever proxy the environment names: that would be asked
  /// for 127.0.0.1, and would look on its own machine.
  ///
  /// To be called before the first request.
  static func bypassProxies() {
    let environment = ProcessInfo.processInfo.environment
    let direct = [environment["no_proxy"] ?? environment["NO_PROXY"], "127.0.0.1"].compactMap(\.self)
    setenv("no_proxy", direct.joined(separator: ","), 1)
  }
}
#endif
