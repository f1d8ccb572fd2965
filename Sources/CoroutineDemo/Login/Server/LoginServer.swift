#if Demo
import FlyingFox
import FlyingSocks
import Foundation

/// How the built-in server misbehaves, for those who want to see a step fail.
struct Misbehaviour: Sendable {
  /// Which step of the login its answers spoil.
  enum Fault: String, CaseIterable, Sendable {
    /// 503 instead of a token.
    case login
    /// 503 instead of the profile.
    case profile
    /// 503 instead of the picture.
    case avatar
    /// A picture that breaks off in the middle: it downloads well, and no effect can be applied to it.
    case effect
  }

  var fault: Fault?
  /// Waited before each answer.
  var latency: Duration = .zero
}

/// A site to log in to, on a free port of the loopback interface.
///
///     start ──► listening ── stop ──► stopped
///
/// `run` is the task that serves; it ends when `stop` is called, and only then. What it answers is LoginServer+Routes.swift.
final class LoginServer: Sendable {
  let url: URL
  private let server: HTTPServer
  private let run: Task<Void, any Error>

  /// Returns when the server listens.
  static func start(_ misbehaviour: Misbehaviour = Misbehaviour()) async throws -> LoginServer {
    let server = HTTPServer(
      address: try .inet(ip4: "127.0.0.1", port: 0),
      // The server gives up on slow handlers, and a latency asked for is no reason to.
      timeout: Double(misbehaviour.latency.components.seconds) + 60,
      logger: .disabled
    )
    await LoginRoutes(misbehaviour).add(to: server)
    let run = Task { try await server.run() }
    do {
      try await server.waitUntilListening()
      guard case .ip4(_, let port) = await server.listeningAddress, let url = URL(string: "http://127.0.0.1:\(port)/")
      else { throw SocketError.disconnected }
      return LoginServer(url: url, server: server, run: run)
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
}
#endif
